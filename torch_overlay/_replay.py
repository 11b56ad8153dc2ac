"""What the edits of PyTorch's Python files would have given a build, done to the modules in memory.

A module that is imported already is changed at once, another one right after its import, so nothing slow is imported
before it is needed.
"""

from __future__ import annotations

import importlib
import importlib.abc
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from torch.backends import PropModule

Edit = dict[str, Any]  # an `operation` and its arguments, as in the patch files


def replay(packages: list[str], edits: dict[str, list[Edit]], folder: Path) -> None:
    """`folder` has the overlay's Python files at their place in the tree; `packages` are those that they belong to."""

    def extend(module: ModuleType) -> None:
        if module.__name__ in packages:
            module.__path__.append(str(folder / module.__name__.replace(".", "/")))

    def finish(module: ModuleType) -> None:
        extend(module)
        _apply(module, edits.get(module.__name__, []))

    names = {*packages, *edits}
    sys.meta_path.insert(0, _AfterImport({name: finish for name in names if name not in sys.modules}))
    # All packages first: the edits import from them. import_module waits for a thread that is still importing one.
    imported = [importlib.import_module(name) for name in sorted(names) if name in sys.modules]
    for module in imported:
        extend(module)
    for module in imported:
        _apply(module, edits.get(module.__name__, []))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls an action with a module that has just been imported."""

    def __init__(self, actions: dict[str, Callable[[ModuleType], None]]):
        self._actions = actions

    def find_spec(self, fullname, path, target=None):
        if fullname not in self._actions:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self._actions[fullname](module)

            spec.loader.exec_module = exec_module
        return spec


def _apply(module: ModuleType, edits: list[Edit]) -> None:
    for edit in edits:
        arguments = {name: value for name, value in edit.items() if name != "operation"}
        try:
            _OPERATIONS[edit["operation"]](module, **arguments)
        except Exception as error:
            raise ImportError(f"torch_overlay cannot replay an edit of {module.__name__}: {edit}: {error}") from error


def _names(module: ModuleType) -> dict[str, Any]:
    """What code of the module sees as its globals; those of torch.backends stand behind an object with properties."""
    return vars(module.m if isinstance(module, PropModule) else module)


def _add_import(module: ModuleType, statement: str, after: str) -> None:
    exec(statement, _names(module))


def _add_to_all(module: ModuleType, names: list[str], after: str | None = None, before: str | None = None) -> None:
    exported = list(module.__all__)
    module.__all__ += [name for name in names if name not in exported]
    # torch.nn does `from torch.nn.modules import *`, which was done before the names were there.
    parent = sys.modules[module.__name__.rpartition(".")[0]]
    if all(getattr(parent, name, None) is getattr(module, name) for name in exported):
        for name in names:
            setattr(parent, name, getattr(module, name))


def _add_element(
    module: ModuleType,
    to: str,
    elements: list[str] | None = None,
    key: str | None = None,
    value: str | None = None,
    after: str | None = None,
) -> None:
    name, _, variable = to.partition(".")
    owner = getattr(module, name)
    # A variable of a function: the function returns it, and hands out the same one each time.
    container = owner() if variable else owner
    if variable and container is not owner():
        raise TypeError(f"{name} does not cache what it returns")

    def evaluate(text: str) -> Any:
        return eval(text, vars(module))

    if key is not None:
        container[evaluate(key)] = evaluate(value)
    elif isinstance(container, dict):  # dict.fromkeys([...], value)
        container.update(dict.fromkeys(map(evaluate, elements), container[evaluate(after)]))
    elif isinstance(container, set):
        container.update(evaluate(f"[{', '.join(elements)}]"))
    else:
        container += evaluate(f"[{', '.join(elements)}]")
    # What the module has cached may derive from the container.
    for cached in vars(module).values():
        if hasattr(cached, "cache_clear") and cached is not owner:
            cached.cache_clear()


def _add_statement(module: ModuleType, statement: str, after: str, within: str | None = None) -> None:
    names = _names(module)
    if within is None:
        exec(statement, names)
        return
    bound: dict[str, Any] = {}
    exec(statement, names, bound)
    for name, value in bound.items():
        setattr(names[within], name, value)


_OPERATIONS = {
    "add_import": _add_import,
    "add_to_all": _add_to_all,
    "add_element": _add_element,
    "add_statement": _add_statement,
}
