"""`python -m overlay wheel-mode`: builds the overlay against an installed torch, for `import torch_overlay`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .build import build
from .target import from_python, from_root


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "wheel-mode", help="build the operators beside an installed torch", description=__doc__
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--python", default=sys.executable, help="the interpreter whose torch it is (default: this one)")
    where.add_argument("--torch-root", type=Path, help="the folder that holds torch/ and torchgen/ of a wheel")
    parser.add_argument("--compile-only", action="store_true", help="do not link; headers are enough for this")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    target = from_root(arguments.torch_root) if arguments.torch_root else from_python(arguments.python)
    folder = build(target, compile_only=arguments.compile_only)
    print(f"wheel mode: compiled in {folder}" if arguments.compile_only else "wheel mode: OK, import torch_overlay")
    return 0
