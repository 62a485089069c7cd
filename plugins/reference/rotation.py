"""The rotation of keys and values: Hadamard over head_dim, Kronecker with a small DCT for other sizes.

head_dim = 2**k * m with m odd. Channel i splits into (i // m, i % m): a Hadamard butterfly runs over the
first part, an orthonormal DCT-II of size m over the second. The matrix is orthogonal; it is symmetric only
for m = 1, so un-rotating takes the transpose. Everything is float32 in a fixed order, one rounding per
operation, so that every backend gets the same bits.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def split(head_dim: int) -> tuple[int, int]:
    """Power of two and odd part of head_dim."""
    power = head_dim & -head_dim
    return power, head_dim // power


def dct_matrix(size: int) -> Floats:
    """Orthonormal DCT-II [size, size], computed in float64: row r holds frequency r."""
    rows = [
        [math.sqrt((1 if r == 0 else 2) / size) * math.cos(math.pi * (c + 0.5) * r / size) for c in range(size)]
        for r in range(size)
    ]
    return np.array(rows, np.float64).astype(np.float32)


def rotate(x: Floats) -> Floats:
    """Rotate vectors [..., D]."""
    power, odd = split(x.shape[-1])
    parts = x.astype(np.float32).reshape(*x.shape[:-1], power, odd)
    return _butterfly(_mix(parts, dct_matrix(odd))).reshape(x.shape)


def unrotate(x: Floats) -> Floats:
    """Undo rotate: multiply by the transpose."""
    power, odd = split(x.shape[-1])
    parts = x.astype(np.float32).reshape(*x.shape[:-1], power, odd)
    return _butterfly(_mix(parts, dct_matrix(odd).T)).reshape(x.shape)


def _mix(parts: Floats, matrix: Floats) -> Floats:
    """Multiply the last axis by matrix, summing in order; nothing for size 1."""
    if matrix.shape[0] == 1:
        return parts
    out = np.empty_like(parts)
    for r in range(matrix.shape[0]):
        total = parts[..., 0] * matrix[r, 0]
        for c in range(1, matrix.shape[1]):
            total = total + parts[..., c] * matrix[r, c]
        out[..., r] = total
    return out


def _butterfly(parts: Floats) -> Floats:
    """Orthonormal Hadamard transform of the axis before the last: sums and differences, then one scaling."""
    power = parts.shape[-2]
    out, step = parts.copy(), 1
    while step < power:
        pairs = out.reshape(*out.shape[:-2], power // (2 * step), 2, step, out.shape[-1])
        low, high = pairs[..., 0, :, :], pairs[..., 1, :, :]
        out = np.stack([low + high, low - high], axis=-3).reshape(parts.shape)
        step *= 2
    return out * np.float32(1 / math.sqrt(power))
