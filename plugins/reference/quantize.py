"""Codes and scales of rotated vectors: Lloyd-Max codes, one scale per vector.

With z the rotated vector, n its norm and c its decoded codes (levels with signs):

    code       the level nearest to z * (sqrt(D) / n), sign and magnitude apart
    unbiased   n * n / <z, c>        the expected inner product with any query is right (EDEN, 2021)
    squares    <z, c> / <c, c>       least error of the vector itself

A zero vector gets scale 0. All sums run over the channels in order, in float32, without fused
multiply-add; ties go to the smaller magnitude.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from kvedge.targets.codebook import LEVELS, boundaries
from kvedge.targets.kinds import ValueScale

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]


def encode(z: Floats, bits: int, scale: ValueScale) -> tuple[Codes, NDArray[np.float16]]:
    """Codes [..., D] (sign in the top bit) and float16 scales [...] of rotated vectors z [..., D]."""
    squares = _dot(z, z)
    norm = np.sqrt(squares)
    root = np.float32(math.sqrt(z.shape[-1]))
    inverse = np.divide(root, norm, out=np.zeros_like(norm), where=norm > 0)
    codes = nearest(z * inverse[..., None], bits)
    levels = decode(codes, bits)
    along = _dot(z, levels)
    top, bottom = (squares, along) if scale is ValueScale.UNBIASED else (along, _dot(levels, levels))
    scales = np.divide(top, bottom, out=np.zeros_like(norm), where=norm > 0)
    return codes, to_half(scales)


def nearest(y: Floats, bits: int) -> Codes:
    """Code of the level nearest to each value of y."""
    magnitude = np.abs(y)
    code = np.zeros(y.shape, np.uint8)
    for edge in boundaries(bits):
        code += magnitude > np.float32(edge)
    return code | ((y < 0).astype(np.uint8) << (bits - 1)).astype(np.uint8)


def decode(codes: Codes, bits: int) -> Floats:
    """Levels of codes."""
    positive = np.array(LEVELS[bits], np.float32)
    return np.concatenate([positive, -positive])[codes]


def to_half(x: Floats) -> NDArray[np.float16]:
    """Nearest float16, saturating at its largest finite value."""
    limit = np.float32(np.finfo(np.float16).max)
    return np.clip(x, -limit, limit).astype(np.float16)


def _dot(a: Floats, b: Floats) -> Floats:
    """Inner products over the last axis, summed in order."""
    total = a[..., 0] * b[..., 0]
    for i in range(1, a.shape[-1]):
        total = total + a[..., i] * b[..., i]
    return total
