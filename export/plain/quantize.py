"""Sealing in plain operators: vectors to codes and scales, pages to words; twin of kvedge.plugins.reference.

Formulas are the reference's; sums run in whatever order the engine likes, so a code may differ where its value is
within rounding of a boundary, and a scale or a mean by its last bit.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from kvedge.export.standard.expr import FLOAT, Expr, concat, where
from kvedge.export.standard.words import join_words, pack_codes, to_float16, to_halves
from kvedge.plugins.reference.rotation import rotate
from kvedge.targets.codebook import LEVELS, UNIFORM_BITS, UNIFORM_LAST, UNIFORM_STEPS, Code, boundaries
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
    mean = k.sum(-2) * (1 / layout.page)
    vectors = rotated(concat([k - to_float16(mean).cast(FLOAT), v], -2), layer.head_dim)
    codes, scales = _encode_both(layer, vectors)
    k_codes, v_codes = codes.part(-2, 0, layout.page), codes.after(-2, layout.page)
    numbers = to_halves(concat([scales, mean.transpose(0, 1, 3, 2)], -2))
    halves = [
        pack_codes(k_codes.transpose(0, 1, 3, 2), kind.k_bits, layout.head_dim),
        pack_codes(v_codes, kind.v_bits, layout.page),
        # Low and high halves: two numbers after each other share a word.
        numbers.reshape(-1, layer.kv_heads, layout.head_words - layout.k_scales, 2).transpose(0, 1, 3, 2),
    ]
    ends = (layout.v_codes, layout.k_scales, layout.head_words)
    words = np.diff(ends, prepend=0).tolist()
    sides = [x.reshape(-1, layer.kv_heads, 2, number) for x, number in zip(halves, words, strict=True)]
    low, high = (each.squeeze(2) for each in concat(sides, -1).halved(2))
    return join_words(low, high).reshape(-1, layout.page_words)


def _encode_both(layer: LayerSpec, z: Expr) -> tuple[Expr, Expr]:
    """Codes float32 [..., 2 * T, D] and scales float32 [..., 2 * T, 1], not yet rounded, of keys and then values."""
    kind, page = layer.kind, layer.rules.page
    unbiased = np.repeat([True, kind.value_scale is ValueScale.UNBIASED], page)
    if kind.k_code is kind.v_code:
        return encode(z, kind.k_code, unbiased, layer.head_dim)
    k = encode(z.part(-2, 0, page), kind.k_code, unbiased[:page], layer.head_dim)
    v = encode(z.after(-2, page), kind.v_code, unbiased[page:], layer.head_dim)
    codes, scales = (concat(both, -2) for both in zip(k, v, strict=True))
    return codes, scales


def encode(z: Expr, code: Code, unbiased: NDArray[np.bool_], head_dim: int) -> tuple[Expr, Expr]:
    """Codes float32 [..., n, D] and scales float32 [..., n, 1], not yet rounded, of rotated vectors z [..., n, D].

    unbiased: bool [n], whose scales are; the others have the least error.
    """
    squares = (z * z).sum(-1)
    codes, levels = _uniform(z) if code is Code.UNIFORM else _nearest(z, squares.sqrt(), code.bits, head_dim)
    along = (z * levels).sum(-1)
    if unbiased.all():
        return codes, _divided(squares, along)
    top, bottom = along, (levels * levels).sum(-1)
    if unbiased.any():
        first = z.recorder.constant(unbiased[:, None])
        top, bottom = where(first, squares, top), where(first, along, bottom)
    return codes, _divided(top, bottom)


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
