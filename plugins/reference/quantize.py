"""Codes and scales of rotated vectors: Lloyd-Max codes, uniform ones or floats at 8 bits, one scale per vector.

With z the rotated vector, n its norm and c its decoded codes (levels with signs):

    code       the level nearest to z * (sqrt(D) / n), sign and magnitude apart;
               at 8 bits to z * (127 / 32 / max |z|), in two's complement;
               of e4m3 to z * (448 / 256 / max |z|), the float of it
    unbiased   n * n / <z, c>        the expected inner product with any query is right (EDEN, 2021)
    squares    <z, c> / <c, c>       least error of the vector itself

A zero vector gets scale 0. All sums run over the channels in order, in float32, without fused
multiply-add; ties go to the smaller magnitude, of uniform codes to the larger, of e4m3 to the even code.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from kvedge.targets.codebook import (
    E4M3_BELOW_HALF,
    E4M3_COUNTER,
    E4M3_DROPPED,
    E4M3_LAST,
    E4M3_NORMAL,
    LEVELS,
    UNIFORM_LAST,
    UNIFORM_STEPS,
    Code,
    boundaries,
)
from kvedge.targets.kinds import ValueScale

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]


def encode(z: Floats, code: Code, scale: ValueScale) -> tuple[Codes, NDArray[np.float16]]:
    """Codes [..., D] and float16 scales [...] of rotated vectors z [..., D]."""
    squares = _dot(z, z)
    norm = np.sqrt(squares)
    codes = nearest(z * _spread(z, norm, code)[..., None], code)
    levels = decode(codes, code)
    along = _dot(z, levels)
    top, bottom = (squares, along) if scale is ValueScale.UNBIASED else (along, _dot(levels, levels))
    scales = np.divide(top, bottom, out=np.zeros_like(norm), where=norm > 0)
    return codes, to_half(scales)


def _spread(z: Floats, norm: Floats, code: Code) -> Floats:
    """Factor that brings each vector to the range of the levels; 0 for zero vectors."""
    if code.by_largest:
        largest, target = np.abs(z).max(-1), np.float32(code.last_level)
    else:
        largest, target = norm, np.float32(math.sqrt(z.shape[-1]))
    return np.asarray(np.divide(target, largest, out=np.zeros_like(norm), where=norm > 0))


def nearest(y: Floats, code: Code) -> Codes:
    """Code of the level nearest to each value of y."""
    magnitude = np.abs(y)
    if code is Code.E4M3:
        return nearest_float(magnitude) | ((y < 0).astype(np.uint8) << 7).astype(np.uint8)
    if code is Code.UNIFORM:
        steps = magnitude * np.float32(UNIFORM_STEPS) + np.float32(0.5)
        level = np.minimum(steps, np.float32(UNIFORM_LAST)).astype(np.int8)
        return np.asarray(np.where(y < 0, -level, level).view(np.uint8))
    number = np.zeros(y.shape, np.uint8)
    for edge in boundaries(code.bits):
        number += magnitude > np.float32(edge)
    return number | ((y < 0).astype(np.uint8) << (code.bits - 1)).astype(np.uint8)


def nearest_float(magnitude: Floats) -> Codes:
    """e4m3 of levels, without a sign: the upper bits of float32, rounded to even; small ones count eighths."""
    most = np.fmin(magnitude, np.float32(E4M3_LAST)).view(np.int32)
    rounded = (most + E4M3_BELOW_HALF + (most >> E4M3_DROPPED & 1)) >> E4M3_DROPPED
    exponents = np.float32(E4M3_NORMAL / 2).view(np.int32) >> E4M3_DROPPED
    counter = np.float32(E4M3_COUNTER)
    small = (magnitude + counter).view(np.int32) - counter.view(np.int32)
    return np.where(magnitude < np.float32(E4M3_NORMAL), small, rounded - exponents).astype(np.uint8)


def decode(codes: Codes, code: Code) -> Floats:
    """Levels of codes."""
    if code is Code.E4M3:
        bits = codes.astype(np.uint16)
        return np.asarray((bits >> 7 << 15 | (bits & 127) << 7).astype(np.uint16).view(np.float16).astype(np.float32))
    if code is Code.UNIFORM:
        return np.asarray(codes.view(np.int8).astype(np.float32) / np.float32(UNIFORM_STEPS))
    positive = np.array(LEVELS[code.bits], np.float32)
    return np.asarray(np.concatenate([positive, -positive])[codes])


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
