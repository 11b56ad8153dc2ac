"""`mps-coverage`: what the overlay gives a tree on MPS, and what it leaves behind."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from .errors import OverlayError
from .model import Edit, load_patches
from .paths import OVERLAYS, PATCHES
from .plan import Plan, make_plan
from .trees import NATIVE_FUNCTIONS, open_tree
from .versions import find_release

XFAILS = "torch/testing/_internal/common_mps.py"
_LISTS = ("UNIMPLEMENTED_XFAILLIST", "UNIMPLEMENTED_XFAILLIST_SPARSE")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# As kernels are named, and as torch names them.
_TYPES = {
    "float": "float32", "half": "float16", "bfloat": "bfloat16", "long": "int64", "int": "int32", "short": "int16",
    "char": "int8", "uchar": "uint8", "bool": "bool", "float2": "complex64", "half2": "complex32",
}  # fmt: skip


@dataclass(frozen=True)
class Kernels:
    """An entry of native_functions.yaml: its kernel for each dispatch key, none where it delegates."""

    name: str
    by_key: dict[str, str]

    @property
    def lacks_mps(self) -> bool:
        return "CUDA" in self.by_key and "MPS" not in self.by_key and not self.is_composed

    @property
    def is_composed(self) -> bool:
        return any(key.startswith("Composite") for key in self.by_key)

    @property
    def family(self) -> str:
        return family_of(self.name)


@dataclass(frozen=True)
class Coverage:
    lacking_before: list[str]
    lacking_after: list[str]
    xfails_before: list[str]  # of whole operators
    xfails_removed: list[str]
    left_behind: list[str]  # overloads that lack a kernel, of operators that gain one
    dtypes: dict[str, list[str]]  # of each .metal file's kernels
    label: str


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    text = "operators that lack a Metal kernel in a tree, with and without the overlay"
    parser = subparsers.add_parser("mps-coverage", help=text, description=text)
    parser.add_argument("tree", type=Path, help="the root of a PyTorch tree")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    tree = open_tree(arguments.tree)
    coverage = measure(make_plan(tree, load_patches(PATCHES), OVERLAYS, rebase=False, progress=lambda planned: None))
    print(tree.describe())
    print("\n".join(_lines(coverage)))
    return 1 if coverage.left_behind else 0


def measure(plan: Plan, roots: tuple[Path, ...] = OVERLAYS) -> Coverage:
    if plan.refusals:
        raise plan.refusals[0]
    texts = {file.path: (file.original, file.new) for file in plan.files}
    for path in (NATIVE_FUNCTIONS, XFAILS):
        if path not in texts:
            raise OverlayError(path, "an edit of the overlay for this release touches it, and none does",
                               "name the tree of a release that has Metal in versions.toml")
    before, after = (parse(text) for text in texts[NATIVE_FUNCTIONS])
    served_before = {entry.name for entry in before if "MPS" in entry.by_key}
    gained = {entry.family for entry in after if "MPS" in entry.by_key and entry.name not in served_before}
    gained -= {entry.family for entry in after if entry.name not in {old.name for old in before}}
    replaced = set(_replaced([planned.edit for planned in plan.edits]))
    gained |= {entry.family for entry in after if entry.by_key.get("MPS") in replaced}
    failing_before, failing_after = (set(failing(text)) for text in texts[XFAILS])
    release = find_release(plan.tree.version.base_version)
    return Coverage(
        lacking_before=[entry.name for entry in before if entry.lacks_mps],
        lacking_after=[entry.name for entry in after if entry.lacks_mps],
        xfails_before=sorted(failing_before),
        xfails_removed=sorted(failing_before - failing_after),
        left_behind=[entry.name for entry in after if entry.family in gained and entry.lacks_mps],
        dtypes=dict(_dtypes(roots)),
        label=release.metal if release and release.metal else "not in versions.toml",
    )


def family_of(name: str) -> str:
    """The operator that this one is an overload, an in-place variant, an inner function or the gradient of."""
    return name.partition(".")[0].strip("_").removesuffix("_backward")


def parse(native_functions: bytes) -> list[Kernels]:
    entries = []
    for entry in yaml.load(native_functions, _LOADER):
        lines = entry.get("dispatch", {}).items()
        by_key = {key.strip(): kernel for line, kernel in lines for key in line.split(",")}
        entries.append(Kernels(entry["func"].partition("(")[0].strip(), by_key))
    return entries


def failing(common_mps: bytes) -> Iterator[str]:
    """The operators that PyTorch's suites expect to fail on MPS for every dtype."""
    for node in ast.walk(ast.parse(common_mps)):
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict) and ast.unparse(node.target) in _LISTS:
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                if isinstance(value, ast.Constant) and value.value is None:
                    yield ast.literal_eval(key)


def _replaced(edits: list[Edit]) -> Iterator[str]:
    for edit in edits:
        if edit.operation == "remove_definition" and edit.target.endswith(".mm"):
            yield edit.arguments["definition"]


def _dtypes(roots: tuple[Path, ...]) -> Iterator[tuple[str, list[str]]]:
    from metal_host import checks, compiler  # they build on this package

    for path in checks.metal_files(roots):
        names = [kernel.host_name for kernel in checks.check_file(path, compiler.METAL_3_1).kernels]
        found = {word for name in names for word in re.split(r"_(?=[a-z0-9]+)", name)} & _TYPES.keys()
        yield path.stem, [dtype for word, dtype in _TYPES.items() if word in found]


def _lines(coverage: Coverage) -> Iterator[str]:
    gained = [name for name in coverage.lacking_before if name not in coverage.lacking_after]
    before, after = len(coverage.lacking_before), len(coverage.lacking_after)
    yield f"CUDA kernels without one for MPS: {before}, with the overlay {after}"
    yield f"  {len(gained)} gained: {', '.join(gained) or 'none'}"
    remaining = len(coverage.xfails_before) - len(coverage.xfails_removed)
    yield f"operators that PyTorch's suites expect to fail: {len(coverage.xfails_before)}, with the overlay {remaining}"
    yield f"  {len(coverage.xfails_removed)} removed: {', '.join(coverage.xfails_removed) or 'none'}"
    yield f"overloads left behind: {len(coverage.left_behind)}"
    yield from (f"  {name}" for name in coverage.left_behind)
    yield "dtypes of the kernels, by file:"
    yield from (f"  {stem}: {', '.join(dtypes)}" for stem, dtypes in coverage.dtypes.items())
    yield f"label: {coverage.label}"
