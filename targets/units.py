"""Sizes as people read them."""

from __future__ import annotations

_UNITS = (("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1_000))


def size(num_bytes: int) -> str:
    """Decimal units, three or four digits: 28.2 MB."""
    for unit, factor in _UNITS:
        if num_bytes >= factor:
            return f"{num_bytes / factor:.1f} {unit}"
    return f"{num_bytes} B"
