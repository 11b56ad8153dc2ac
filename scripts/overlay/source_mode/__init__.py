"""Source mode: building torch from a tree that the overlay is applied to, and running PyTorch's own suites on it."""
