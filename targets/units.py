"""Sizes as people read and write them."""

from __future__ import annotations

import re

from kvedge.targets.errors import KvedgeError

_UNITS = (("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1_000))
_FACTORS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(|[kmgt]i?)b?(?:/s)?\s*", re.IGNORECASE)


def size(num_bytes: int) -> str:
    """Decimal units, three or four digits: 28.2 MB."""
    for unit, factor in _UNITS:
        if num_bytes >= factor:
            return f"{num_bytes / factor:.1f} {unit}"
    return f"{num_bytes} B"


def parse_size(option: str, text: str) -> int:
    """Bytes of a size such as 2GB (decimal), 512MiB (binary) or 20GB/s, given as a value of `option`.

    Raises:
        KvedgeError: it is none.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise KvedgeError(option, expected="a size such as 2GB or 512MiB", got=text)
    return int(float(match[1]) * _FACTORS[match[2].lower()])
