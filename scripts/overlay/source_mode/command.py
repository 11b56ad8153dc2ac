"""`build`, `build-objects`: builds torch from a source tree."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..trees import open_tree
from .build import Build, build, make_build
from .chroot import chroot_of, machine_for


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    for name, text in (
        ("build", "build torch in the tree"),
        ("build-objects", "configure, generate, and compile the overlay's own sources only"),
    ):
        parser = subparsers.add_parser(name, help=text, description=text)
        add_tree(parser)
        parser.set_defaults(run=run, objects=name == "build-objects")


def add_tree(parser: argparse.ArgumentParser, optional: bool = False) -> None:
    """The arguments of every command on a built tree."""
    parser.add_argument("tree", type=Path, nargs="?" if optional else None, help="the root of a PyTorch source tree")
    parser.add_argument("--chroot", type=Path, help="where to build (default: what `make chroot` made for the tree)")
    parser.add_argument("--python", help="the interpreter to build for (default: this one; in a chroot its python3)")


def job_of(arguments: argparse.Namespace) -> Build:
    tree = open_tree(arguments.tree)
    root = chroot_of(tree, arguments.chroot)
    python = arguments.python or ("python3" if root else sys.executable)
    return make_build(tree, machine_for(tree, root), python)


def run(arguments: argparse.Namespace) -> int:
    build(job_of(arguments), objects_only=arguments.objects)
    return 0
