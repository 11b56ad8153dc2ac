"""Where things stand in this repository."""

from pathlib import Path

REPO = Path(__file__).resolve().parents[2]

PATCHES = REPO / "patches"  # edits to files PyTorch already has
OVERLAYS = (REPO / "aten_overlay", REPO / "test_overlay")  # new files, at their path in the tree
VERSIONS = REPO / "versions.toml"

BUILD = REPO / "build"  # everything generated; `make clean` removes it
TREES = BUILD / "trees"  # fetched trees: trees/<version>[-<origin>]
WHEEL_MODE = BUILD / "wheel-mode"  # wheel-mode/<key>/
