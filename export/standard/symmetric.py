"""Weights in blocks as engines take them: signed integers, a positive scale a block, and an offset.

Parsers of TensorRT want every scale above zero and no zero point, and blocks of 4-bit integers only. So a weight
scale * code + minimum becomes scale * (code - middle) + (minimum + middle * scale), where the middle is a whole number
of the block's own: code - middle takes one signed integer of 4 bits, or two, 16 high + low; and among the middles that
allow that it is the one of the smallest offset, which is zero in most blocks of formats that are symmetric themselves.
A block of negative scale is turned round first, code to largest - code. The offset is rounded to float16.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvedge.plugins.reference.linear import Blocks

RANGES = {4: (-8, 7), 8: (-8 * 16 - 8, 7 * 16 + 7)}
"""Numbers that one or two signed integers of 4 bits hold, by the bits of a code."""


@dataclass(frozen=True)
class Symmetric:
    """A matrix [outputs, inputs] in blocks of 32 inputs: weight = scale * number + offset.

    Args:
        numbers: int16 [outputs, inputs].
        planes: integers of 4 bits that each takes.
        scale: float16 [outputs, blocks], positive; offset: float16 [outputs, blocks].
    """

    numbers: NDArray[np.int16]
    planes: int
    scale: NDArray[np.float16]
    offset: NDArray[np.float16]

    def stacked(self) -> tuple[NDArray[np.uint8], NDArray[np.float16]]:
        """Integers of 4 bits in two's complement, [planes * inputs, outputs], and scales [planes * blocks, outputs].

        The low parts come first; the high ones are worth 16 times the scale.
        """
        parts = [self.numbers, (self.numbers + 8) >> 4][: self.planes]
        scales = [self.scale * np.float16(16**plane) for plane in range(self.planes)]
        codes = np.concatenate([(part & 15).astype(np.uint8) for part in parts], 1)
        return np.ascontiguousarray(codes.T), np.ascontiguousarray(np.concatenate(scales, 1).T)


def symmetric(blocks: Blocks) -> Symmetric:
    """The same weights, their offsets rounded to float16; numbers are zero where a scale is."""
    least, most = RANGES[blocks.bits]
    top = (1 << blocks.bits) - 1
    scale, minimum = blocks.scale.astype(np.float64), blocks.minimum.astype(np.float64)
    codes = blocks.codes.reshape(*scale.shape, -1).astype(np.int16)
    codes = np.where((scale < 0)[..., None], top - codes, codes)
    minimum, scale = minimum + np.where(scale < 0, top * scale, 0), np.abs(scale)
    wanted = np.rint(np.divide(-minimum, scale, out=np.zeros_like(scale), where=scale > 0))
    middle = np.clip(wanted, codes.max(-1) - most, codes.min(-1) - least)
    numbers = np.where((scale > 0)[..., None], codes - middle.astype(np.int16)[..., None], np.int16(0))
    return Symmetric(
        numbers=numbers.reshape(blocks.codes.shape),
        planes=blocks.bits // 4,
        scale=np.where(scale > 0, scale, 1).astype(np.float16),
        offset=(minimum + middle * scale).astype(np.float16),
    )
