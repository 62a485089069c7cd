"""Byte layout of weights that are stored in blocks of 4 or 8 bits.

A weight matrix has [outputs, inputs] elements. 32 inputs of one output are a block: each is an unsigned code,
and weight = scale * code + minimum, with scale and minimum in fp16. That holds what symmetric and asymmetric
formats of this block size say (GGUF's Q4_0, Q4_1 and Q8_0) without a second rounding.

16 outputs side by side are a tile; a matrix is stored as uint8 [tiles, inputs / 32, block bytes], where the block
of a tile is

    codes     four (4 bits) or eight (8 bits) chunks of 64 bytes, byte 4 * output + i of a chunk for input i of four;
              at 4 bits the low halves of chunk c are inputs 8c to 8c + 3, the high halves the four after them
    scales    16 fp16, one per output
    minima    16 fp16

so that one load brings four inputs of 16 outputs, as the byte products of CPUs want them. Outputs that fill up
the last tile are zero.
"""

from __future__ import annotations

BLOCK = 32
"""Inputs that share a scale and a minimum."""

TILE = 16
"""Outputs that lie side by side."""

FOUR = 4
"""Inputs side by side in a chunk."""

HALF_BYTES = 2
BITS = (4, 8)


def code_bytes(bits: int) -> int:
    """Bytes of the codes of a tile's block."""
    return BLOCK * TILE * bits // 8


def block_bytes(bits: int) -> int:
    """Bytes of a tile's block."""
    return code_bytes(bits) + 2 * HALF_BYTES * TILE


def stored_shape(bits: int, outputs: int, inputs: int) -> tuple[int, int, int]:
    """Shape of a stored [outputs, inputs] matrix; inputs is a multiple of BLOCK."""
    return -(-outputs // TILE), inputs // BLOCK, block_bytes(bits)


def bits_per_weight(bits: int) -> float:
    """Scales and minima included."""
    return 8 * block_bytes(bits) / (BLOCK * TILE)
