"""What went wrong with a Metal source or a kernel's run."""

from __future__ import annotations

from collections.abc import Sequence

from overlay.errors import OverlayError


class MetalErrors(OverlayError):
    """Everything that a source is refused for."""

    def __init__(self, errors: Sequence[OverlayError]):
        first = errors[0]
        super().__init__(first.place, first.rule, first.hint)
        self.errors = list(errors)

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors) if len(self.errors) > 1 else super().__str__()

    def render(self) -> str:
        return "\n".join(error.render() for error in self.errors)
