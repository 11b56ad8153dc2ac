"""String and floating literals, which in Metal are not what they are in C++."""

from __future__ import annotations

from collections.abc import Iterator

from overlay.errors import OverlayError

from .attributes import attribute_end
from .tokens import Kind, Token, matching


def rewrite(tokens: list[Token]) -> Iterator[OverlayError]:
    """Puts strings into constant memory and makes floating literals float, half or bfloat."""
    i = own = 0  # before `own`, strings are the compiler's own, not values
    while i < len(tokens):
        token = tokens[i]
        if token.spelling in ("static_assert", "asm", "_Pragma", "extern") or attribute_end(tokens, i):
            bracket = i if token.spelling == "[" else i + 1
            own = matching(tokens, bracket) if tokens[bracket].spelling in "([" else i + 2
        if token.kind is Kind.STRING and i >= own:
            i = _string(tokens, i)
            continue
        if token.spelling in ("__func__", "__FUNCTION__"):
            token.text = f"::metal_host::literal({token.text})"
        elif token.kind is Kind.NUMBER:
            yield from _number(token)
        i += 1


def _string(tokens: list[Token], start: int) -> int:
    """The index after the string at `start`, with those that follow it directly."""
    end = start
    while end < len(tokens) and tokens[end].kind is Kind.STRING:
        end += 1
    if not (tokens[start - 1].spelling == "=" and tokens[start - 2].spelling == "]"):  # not an array's value
        tokens[start].text = "::metal_host::literal(" + tokens[start].text
        tokens[end - 1].text += ")"
    return end


def _number(token: Token) -> Iterator[OverlayError]:
    text = token.spelling
    hexadecimal = text[:2].lower() == "0x"
    if not ("." in text or ("p" if hexadecimal else "e") in text.lower()):
        return
    # In a hexadecimal literal f and b are digits, but not after its exponent.
    number = text.rstrip("fFlLhHbB")
    suffix = text[len(number) :].lower()
    if suffix == "":
        token.text = number + "f"
    elif suffix == "h":
        token.text = f"half({number}f)"
    elif suffix == "bf":
        token.text = f"bfloat({number}f)"
    elif suffix != "f":
        yield OverlayError(token.place, f"`{text}`: Metal has no `double`", "the suffix `f`, `h` or `bf`, or none")
