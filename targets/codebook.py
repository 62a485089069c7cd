"""What codes stand for: integers that name a level, or floats of 8 bits.

Up to 4 bits: Lloyd-Max levels of the unit normal distribution (Max, 1960; Lloyd, 1982), one table for every
head_dim. A rotated key or value, divided by its norm and multiplied by sqrt(head_dim), is close to N(0, 1) in
every channel; the exact law on the sphere gives at most 0.5 % less error at head_dim 64.

8 bits: uniform steps of 1/32, the vector scaled so that its largest channel is the last of them.

e4m3: floats of 8 bits with 4 of exponent and 3 of mantissa, no infinities, 448 the largest (Micikevicius et al., FP8
Formats for Deep Learning, 2022). A level is the 256th part of such a number: the float16 whose bits are the float's
own, the seven below its sign moved up by seven. So levels are near 1, as those of the others.
"""

from __future__ import annotations

from enum import Enum
from itertools import pairwise


class Code(Enum):
    """What one code of a packed page is, and its bits."""

    NONE = ("none", 0)
    NORMAL_2 = ("normal", 2)
    NORMAL_3 = ("normal", 3)
    NORMAL_4 = ("normal", 4)
    UNIFORM = ("uniform", 8)
    E4M3 = ("e4m3", 8)

    @property
    def bits(self) -> int:
        """Bits of a code; 0 where nothing is coded."""
        return self.value[1]

    @property
    def by_largest(self) -> bool:
        """Whether a vector is scaled by its largest channel, not by its norm."""
        return self in (Code.UNIFORM, Code.E4M3)

    @property
    def last_level(self) -> float:
        """The largest level of codes that are scaled by it."""
        return E4M3_LAST if self is Code.E4M3 else UNIFORM_LAST / UNIFORM_STEPS


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

UNIFORM_BITS = Code.UNIFORM.bits
UNIFORM_STEPS = 32
"""Levels per unit at 8 bits."""

UNIFORM_LAST = 127
"""The largest code at 8 bits; codes are symmetric."""

E4M3_PARTS = 256
"""Levels of e4m3 are this part of its floats."""

E4M3_LAST = 448 / E4M3_PARTS
"""The largest level of e4m3."""

E4M3_NORMAL = 2.0**-14
"""The smallest level of e4m3 with all its mantissa; below, levels are multiples of an eighth of it."""

E4M3_DROPPED = 20
"""Bits of float32's mantissa that e4m3's has not."""

E4M3_BELOW_HALF = (1 << (E4M3_DROPPED - 1)) - 1
"""Of the last bit that is kept: added to float32's bits, with that bit, it makes cutting them round to even."""

E4M3_COUNTER = E4M3_NORMAL / 8 * 2**23
"""A float32 whose last place is one of those multiples: adding it rounds a smaller number to them."""


def boundaries(bits: int) -> tuple[float, ...]:
    """Magnitudes between which the nearest level changes: midpoints, without the one at 0."""
    levels = LEVELS[bits]
    return tuple((low + high) / 2 for low, high in pairwise(levels))
