"""The levels that codes stand for.

Up to 4 bits: Lloyd-Max levels of the unit normal distribution (Max, 1960; Lloyd, 1982), one table for every
head_dim. A rotated key or value, divided by its norm and multiplied by sqrt(head_dim), is close to N(0, 1) in
every channel; the exact law on the sphere gives at most 0.5 % less error at head_dim 64.

8 bits: uniform steps of 1/32, the vector scaled so that its largest channel is the last of them.
"""

from __future__ import annotations

from itertools import pairwise

LEVELS: dict[int, tuple[float, ...]] = {
    2: (0.4527800346, 1.5104176085),
    3: (0.2450941789, 0.7560052812, 1.3439092785, 2.1519457045),
    4: (
        0.1283950299,
        0.3880482995,
        0.6567591185,
        0.9423404565,
        1.2562311973,
        1.6180463860,
        2.0690172265,
        2.7325895710,
    ),
}
"""Positive levels by bits; the negative ones mirror them."""

BYTE_LEVELS: dict[int, tuple[int, ...]] = {
    2: (18, 60),
    3: (10, 31, 55, 88),
    4: (5, 15, 25, 36, 48, 62, 79, 104),
}
BYTE_STEPS: dict[int, float] = {2: 0.025172043102140676, 3: 0.024444069130997465, 4: 0.02620844828650694}
"""The same levels as integers for byte products, level = step * integer: of all steps with integers up to 127 those of
least squared error (2e-4, 1e-3 and 4e-3 rms, where the codes themselves are off by 0.34, 0.19 and 0.10)."""

UNIFORM_BITS = 8
UNIFORM_STEPS = 32
"""Levels per unit at 8 bits."""

UNIFORM_LAST = 127
"""The largest code at 8 bits; codes are symmetric."""


def boundaries(bits: int) -> tuple[float, ...]:
    """Magnitudes between which the nearest level changes: midpoints, without the one at 0."""
    levels = LEVELS[bits]
    return tuple((low + high) / 2 for low, high in pairwise(levels))
