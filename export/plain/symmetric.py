"""Weights in blocks as engines take them: signed integers, a positive scale a block, and an offset.

Parsers of TensorRT want every scale above zero and no zero point, and blocks of 4-bit integers only. So a weight
scale * code + minimum is split into signed 4-bit integers, one or two, and what is left, the same for a whole block:

    4 bits  scale * (code - 8)                              + (minimum + 8 scale)
    8 bits  scale * (16 (high - 8) + (low - 8))             + (minimum + 136 scale)    with code = 16 high + low

A block of negative scale is turned round first, code to largest - code. The offset is rounded to float16.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvedge.plugins.reference.linear import Blocks

MIDDLES = {4: 8, 8: 136}
"""What is taken off a code before it is stored, by its bits."""


@dataclass(frozen=True)
class Symmetric:
    """A matrix [outputs, inputs] in blocks of 32 inputs.

    Args:
        codes: uint8 [outputs, inputs], of non-negative scales.
        bits: of a code, 4 or 8.
        scale: float16 [outputs, blocks], positive; offset: float16 [outputs, blocks].
    """

    codes: NDArray[np.uint8]
    bits: int
    scale: NDArray[np.float16]
    offset: NDArray[np.float16]

    @property
    def planes(self) -> int:
        """Tensors of 4-bit integers that the codes take."""
        return self.bits // 4

    def plane(self, number: int) -> NDArray[np.uint8]:
        """Integers of 4 bits in two's complement, uint8 [outputs, inputs]: plane 0 is worth the scale, 1 16 times that.

        A block of scale zero has zeros.
        """
        return (self.codes >> np.uint8(4 * number) & np.uint8(15)) ^ np.uint8(8)


def symmetric(blocks: Blocks) -> Symmetric:
    """The same weights, their offsets rounded to float16."""
    top, middle = (1 << blocks.bits) - 1, MIDDLES[blocks.bits]
    scale, minimum = blocks.scale.astype(np.float64), blocks.minimum.astype(np.float64)
    per_block = blocks.codes.reshape(*scale.shape, -1)
    codes = np.where((scale < 0)[..., None], np.uint8(top) - per_block, per_block)
    codes = np.where((scale == 0)[..., None], np.uint8(middle), codes)
    offset = minimum + np.where(scale < 0, top * scale, 0) + middle * np.abs(scale)
    return Symmetric(
        codes=codes.reshape(blocks.codes.shape),
        bits=blocks.bits,
        scale=np.where(scale == 0, 1, np.abs(scale)).astype(np.float16),
        offset=offset.astype(np.float16),
    )
