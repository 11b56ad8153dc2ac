"""The one exception the tool raises for what a user can mend."""

from __future__ import annotations


class OverlayError(Exception):
    """A refusal that names the place, the rule and the next step.

    place: where it is, e.g. ``torch/nn/functional.py:12`` or ``patches/....yaml: edit id``
    rule:  what holds and what was found instead
    hint:  the next command or action
    """

    def __init__(self, place: str, rule: str, hint: str = ""):
        super().__init__(f"{place}: {rule}" + (f" ({hint})" if hint else ""))
        self.place, self.rule, self.hint = place, rule, hint

    def render(self) -> str:
        lines = [f"error: {self.place}", f"  rule: {self.rule}"]
        if self.hint:
            lines.append(f"  next: {self.hint}")
        return "\n".join(lines)
