"""aten-overlay: puts a set of ATen operators into a PyTorch tree, or beside an installed wheel."""
