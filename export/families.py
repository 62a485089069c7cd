"""Model types that were shown to trace and to equal the original model.

A type that is missing here is still tried: the table only serves error messages and the documentation.
"""

from __future__ import annotations

from difflib import get_close_matches

VERIFIED: tuple[str, ...] = ()
"""`config.model_type` of each family whose tiny model gave the same logits after the trace."""


def nearest(model_type: str) -> str:
    """Return the verified types that look most like `model_type`, else all of them, as text."""
    close = get_close_matches(model_type.lower(), VERIFIED, n=4, cutoff=0.5)
    return ", ".join(close or VERIFIED)
