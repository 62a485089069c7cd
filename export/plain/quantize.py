"""Sealing in plain operators: vectors to codes and scales, pages to words; twin of kvedge.plugins.reference.

Formulas are the reference's; sums run in whatever order the engine likes, so a code may differ where its value is
within rounding of a boundary, and a scale or a mean by its last bit.
"""

from __future__ import annotations

import math

import numpy as np

from kvedge.export.plain.expr import FLOAT, Expr, concat, where
from kvedge.export.plain.words import join_words, pack_codes, to_halves
from kvedge.plugins.reference.rotation import rotate
from kvedge.targets.codebook import LEVELS, UNIFORM_BITS, UNIFORM_LAST, UNIFORM_STEPS, boundaries
from kvedge.targets.kinds import ValueScale
from kvedge.targets.spec import LayerSpec


def rotated(x: Expr, head_dim: int) -> Expr:
    """Vectors [..., D] in the rotated basis."""
    return x @ rotate(np.eye(head_dim, dtype=np.float32))


def unrotated(x: Expr, head_dim: int) -> Expr:
    """Vectors [..., D] back from the rotated basis."""
    return x @ np.ascontiguousarray(rotate(np.eye(head_dim, dtype=np.float32)).T)


def page_words(layer: LayerSpec, k: Expr, v: Expr) -> Expr:
    """int32 [pages, words]: packed pages of keys and values [pages, H, T, D] float32."""
    kind, layout = layer.kind, layer.packed_layout
    mean_bits, mean = to_halves(k.sum(-2) * (1 / layout.page))
    k_codes, k_scales = encode(rotated(k - mean, layer.head_dim), kind.k_bits, ValueScale.UNBIASED, layer.head_dim)
    v_codes, v_scales = encode(rotated(v, layer.head_dim), kind.v_bits, kind.value_scale, layer.head_dim)
    scale_bits, _ = to_halves(concat([k_scales, v_scales], -2))
    halves = [
        pack_codes(k_codes.transpose(0, 1, 3, 2), kind.k_bits, layout.head_dim),
        pack_codes(v_codes, kind.v_bits, layout.page),
        _pairs(scale_bits, layer, layout.k_mean - layout.k_scales),
        _pairs(mean_bits, layer, layout.head_words - layout.k_mean),
    ]
    ends = (layout.v_codes, layout.k_scales, layout.k_mean, layout.head_words)
    words = np.diff(ends, prepend=0).tolist()
    sides = [x.reshape(-1, layer.kv_heads, 2, number) for x, number in zip(halves, words, strict=True)]
    low, high = (each.squeeze(2) for each in concat(sides, -1).halved(2))
    return join_words(low, high).reshape(-1, layout.page_words)


def _pairs(bits: Expr, layer: LayerSpec, words: int) -> Expr:
    """Low and high halves [pages, H, 2, words] of float16 numbers' bits: two after the other share a word."""
    return bits.reshape(-1, layer.kv_heads, words, 2).transpose(0, 1, 3, 2)


def encode(z: Expr, bits: int, scale: ValueScale, head_dim: int) -> tuple[Expr, Expr]:
    """Codes float32 [..., n, D] and scales float32 [..., n, 1], not yet rounded, of rotated vectors z [..., n, D]."""
    squares = (z * z).sum(-1)
    codes, levels = _uniform(z) if bits == UNIFORM_BITS else _nearest(z, squares.sqrt(), bits, head_dim)
    along = (z * levels).sum(-1)
    if scale is ValueScale.UNBIASED:
        return codes, _divided(squares, along)
    return codes, _divided(along, (levels * levels).sum(-1))


def _nearest(z: Expr, norm: Expr, bits: int, head_dim: int) -> tuple[Expr, Expr]:
    """Codes and levels of sign and magnitude."""
    y = z * _divided(z.recorder.constant(np.array(math.sqrt(head_dim), np.float32)), norm)
    size, is_negative = y.abs(), y < 0
    above = [(size > edge).cast(FLOAT) for edge in boundaries(bits)]
    magnitude = sum(above[1:], above[0])
    level = magnitude.look_up(np.array(LEVELS[bits], np.float32))
    codes = magnitude + is_negative.cast(FLOAT) * float(1 << (bits - 1))
    return codes, where(is_negative, -level, level)


def _uniform(z: Expr) -> tuple[Expr, Expr]:
    """Codes of 8 bits, two's complement, and their levels."""
    largest = z.recorder.constant(np.array(UNIFORM_LAST / UNIFORM_STEPS, np.float32))
    y = z * _divided(largest, z.abs().max(-1))
    size = (y.abs() * float(UNIFORM_STEPS) + 0.5).floor().at_most(float(UNIFORM_LAST))
    number = where(y < 0, -size, size)
    codes = where(number < 0, number + float(1 << UNIFORM_BITS), number)
    return codes, number * (1 / UNIFORM_STEPS)


def _divided(top: Expr, bottom: Expr) -> Expr:
    """top / bottom, and 0 where the bottom is 0: there the vector is."""
    is_some = bottom > 0
    return where(is_some, top / where(is_some, bottom, 1.0), 0.0)
