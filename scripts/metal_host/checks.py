"""All .metal files of the overlay, as one library: each at both levels, then what holds across them."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from overlay.errors import OverlayError

from . import compiler, frontend, shared_structs
from .compiler import LEVELS, Level
from .errors import MetalErrors
from .kernels import Struct
from .upstream_kernels import stem, upstream_stems


@dataclass(frozen=True)
class _Kernel:
    host_name: str
    place: str


@dataclass(frozen=True)
class Checked:
    """What a file that passed defines."""

    kernels: list[_Kernel]


def metal_files(roots: Iterable[Path]) -> list[Path]:
    return sorted(path for root in roots for path in root.rglob("*.metal"))


def check_files(paths: Iterable[Path]) -> list[OverlayError]:
    """Everything that speaks against these files."""
    paths = list(paths)
    jobs = [(path, level) for path in paths for level in LEVELS.values()]
    with ThreadPoolExecutor() as pool:  # the compiler is another process
        results = list(pool.map(lambda job: _check_file(*job), jobs))
    errors, checked = [], {}
    for (path, _), result in zip(jobs, results, strict=True):
        if isinstance(result, Checked):
            checked[path] = result
        else:
            errors.extend(result.errors)
    unique = {(error.place, error.rule): error for error in errors}
    return [*unique.values(), *_across_files(checked), *_upstream_names(checked)]


def _check_file(path: Path, level: Level) -> Checked | MetalErrors:
    try:
        return check_file(path, level)
    except MetalErrors as error:
        return error
    except OverlayError as error:
        return MetalErrors([error])


def check_file(path: Path, level: Level, torch: Path | None = None) -> Checked:
    """Checks one file at one level. What passed before is not compiled again."""
    torch = torch or compiler.torch_include()
    source = path.read_text()
    text = compiler.preprocess(source, str(path), level, torch)
    record = compiler.CACHE / "checked" / f"{compiler.key_of(text, level.name, _own_sources())}.json"
    with compiler.made_once(record) as made:
        if made is None:
            return Checked([_Kernel(**kernel) for kernel in json.loads(record.read_text())["kernels"]])
        result = frontend.rewrite_preprocessed(text, str(path))
        errors = compiler.check(result.text, str(path), level)
        for struct in result.shared_structs:
            errors.extend(shared_structs.bool_members(struct))
        if not errors:
            errors.extend(_layouts(result.shared_structs, level, torch))
        if errors:
            raise MetalErrors(
                [OverlayError(compiler.shown_place(error.place), error.rule, error.hint) for error in errors]
            )
        checked = Checked([_Kernel(entry.host_name, entry.place) for entry in result.entries])
        made.write_text(json.dumps(asdict(checked)))
        return checked


def _layouts(structs: list[Struct], level: Level, torch: Path) -> Iterator[OverlayError]:
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return  # the kernel's side is compiled for that machine alone
    for header in sorted({struct.place.rpartition(":")[0] for struct in structs}):
        here = [struct for struct in structs if struct.place.rpartition(":")[0] == header]
        alone = frontend.rewrite(f'#include "{header}"\n', header, level, torch)
        yield from shared_structs.layouts(header, here, alone.text)


def _own_sources() -> str:
    return "".join(path.read_text() for path in sorted(compiler.PACKAGE.glob("*.py")))


def _across_files(checked: dict[Path, Checked]) -> Iterator[OverlayError]:
    first: dict[str, tuple[Path, _Kernel]] = {}
    for path, result in checked.items():
        for kernel in result.kernels:
            where, other = first.setdefault(kernel.host_name, (path, kernel))
            if where != path:
                yield OverlayError(
                    compiler.shown_place(kernel.place),
                    f'host_name "{kernel.host_name}" is used in another file too, and all are linked into one library',
                    f"first at {compiler.shown_place(other.place)}",
                )


def _upstream_names(checked: dict[Path, Checked]) -> Iterator[OverlayError]:
    seen = set()
    for result in checked.values():
        for kernel in result.kernels:
            name = stem(kernel.host_name)
            if name in upstream_stems() and name not in seen:
                seen.add(name)
                yield OverlayError(
                    compiler.shown_place(kernel.place),
                    f'host_name "{kernel.host_name}": PyTorch ships kernels named {name}',
                    "another name: all kernels are linked into one library",
                )
