"""The one error that users see: what is wrong, what was expected, what came, what to do."""

from __future__ import annotations


class KvedgeError(ValueError):
    """Bad input, said in one line.

    Args:
        what: the thing that is wrong, a noun phrase or short sentence.
        expected: what would have been right.
        got: what came instead.
        fix: what the user can do about it.
    """

    def __init__(self, what: str, *, expected: object = None, got: object = None, fix: str | None = None) -> None:
        parts = [what]
        if expected is not None:
            parts.append(f"expected {expected}")
        if got is not None:
            parts.append(f"got {got}")
        if fix is not None:
            parts.append(fix)
        super().__init__("; ".join(parts))


def require(condition: bool, what: str, *, expected: object = None, got: object = None, fix: str | None = None) -> None:
    """Raise KvedgeError unless condition holds."""
    if not condition:
        raise KvedgeError(what, expected=expected, got=got, fix=fix)
