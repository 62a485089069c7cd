"""int32 words to numbers and back, without bit operations.

A word is split into two halves of 16 bits, as whole float32 numbers from 0 to 65535: everything after that is exact
in float32, whose whole numbers reach 2**24. Words with the top bit set are negative, and Div truncates, so the top bit
t is taken off first, as word + 2147483647 t + t; then only numbers that are not negative are divided, and 32768 t is
put back onto the high half. Joined the other way round: 31 bits by multiply and add, then -2**31 where the top bit is
wanted. No step leaves int32, so none depends on how an engine overflows.

A float16 is a half: sign, 5 bits of exponent, 10 of mantissa. Its value and its bits come from a table of powers of
two and from rounding, ties to even, at the last mantissa bit; a mantissa that is rounded up to the next power carries
into the exponent by itself. Infinities and NaNs are never written; read from pages that nobody wrote, they are finite.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvedge.export.standard.expr import FLOAT, FLOAT16, INT32, Expr, where
from kvedge.targets.packing import GROUP, OCTET, bit_place, group_words, lane_words, octets_of

_HALF = 1 << 16
_TOP_OF_HALF = 1 << 15
_MOST = (1 << 31) - 1
_LEAST = -1 << 31
_MANTISSA = 1 << 10
_LARGEST = float(np.finfo(np.float16).max)
_EXPONENTS = np.arange(32)
_STEPS = np.ldexp(1.0, np.maximum(_EXPONENTS, 1) - 25).astype(np.float32)
"""Worth of the last mantissa bit, by exponent field."""
_STARTS = np.ldexp(1.0, _EXPONENTS[2:31] - 15).astype(np.float32)
"""Where exponent fields 2 to 30 begin; 0 and 1 have the same step."""


def split_words(words: Expr) -> tuple[Expr, Expr]:
    """Low and high halves, float32, of int32 words of any shape."""
    has_top = (words < 0).cast(INT32)
    rest = words + has_top * _MOST + has_top
    high = rest // _HALF
    low = rest - high * _HALF
    return low.cast(FLOAT), (high + has_top * _TOP_OF_HALF).cast(FLOAT)


def join_words(low: Expr, high: Expr) -> Expr:
    """int32 words of low and high halves: whole float32 numbers from 0 to 65535."""
    has_top = high >= _TOP_OF_HALF
    below = (high - has_top.cast(FLOAT) * _TOP_OF_HALF).cast(INT32) * _HALF + low.cast(INT32)
    return below + has_top.cast(INT32) * _LEAST


@dataclass(frozen=True, eq=False)
class Field:
    """A run of bits that lies together in every code of a lane.

    Args:
        first: its lowest bit in the code; width: number of bits.
        half: int32 [depth], where it lies: a word's low half, or its high one `lane_words` further.
        bit: int32 [depth], the lowest bit in that half.
    """

    first: int
    width: int
    half: NDArray[np.int32]
    bit: NDArray[np.int32]


def fields(bits: int, depth: int) -> tuple[Field, ...]:
    """The runs of which codes in a lane of `depth` elements consist: the same ones in all."""
    places = np.array(_places(bits, depth), np.int32)  # [depth, bits, (half, bit)]
    together = np.all(np.diff(places, axis=1) == (0, 1), axis=(0, 2))
    starts = [0, *(np.flatnonzero(~together) + 1).tolist(), bits]
    return tuple(
        Field(start, stop - start, places[:, start, 0].copy(), places[:, start, 1].copy())
        for start, stop in zip(starts[:-1], starts[1:], strict=True)
    )


def _places(bits: int, depth: int) -> list[list[tuple[int, int]]]:
    """Half and bit there, of each bit of each element's code."""
    words, first, places = lane_words(bits, depth), 0, []
    for octets in octets_of(depth):
        for element in range(OCTET * octets):
            found = [bit_place(bits, octets, element, bit) for bit in range(bits)]
            places.append([(first + word + words * (bit // 16), bit % 16) for word, bit in found])
        first += group_words(bits, octets)
    assert len(places) == depth, f"groups of {GROUP}"
    return places


def unpack_codes(halves: Expr, bits: int, depth: int) -> Expr:
    """Codes float32 [..., depth, lanes] of halves [..., 2 * lane_words, lanes], first all low ones."""
    runs = [_read(halves, field) for field in fields(bits, depth)]
    return sum(runs[1:], runs[0])


def _read(halves: Expr, field: Field) -> Expr:
    """What a field adds to the codes."""
    shifted = (halves.take(field.half, -2) * np.ldexp(np.float32(1), -field.bit)[:, None]).floor()
    size = float(1 << field.width)
    run = shifted - (shifted * (1 / size)).floor() * size
    return run * float(1 << field.first) if field.first else run


def pack_codes(codes: Expr, bits: int, depth: int) -> Expr:
    """Halves [..., 2 * lane_words, lanes], first all low ones, of codes float32 [..., depth, lanes]."""
    words = lane_words(bits, depth)
    runs = [_write(codes, field, bits, words) for field in fields(bits, depth)]
    return sum(runs[1:], runs[0])


def _write(codes: Expr, field: Field, bits: int, words: int) -> Expr:
    """What a field adds to the halves [..., 2 * words, lanes]: a product with powers of two, exact in any order."""
    run = (codes * (1 / float(1 << field.first))).floor() if field.first else codes
    if field.first + field.width < bits:
        size = float(1 << field.width)
        run = run - (run * (1 / size)).floor() * size
    places = np.zeros((2 * words, len(field.half)), np.float32)
    places[field.half, np.arange(len(field.half))] = np.ldexp(np.float32(1), field.bit)
    return codes.recorder.constant(places) @ run


def half_values(halves: Expr) -> Expr:
    """float32 numbers that halves stand for as float16."""
    is_negative = halves >= _TOP_OF_HALF
    bits = halves - is_negative.cast(FLOAT) * _TOP_OF_HALF
    exponent = (bits * (1 / _MANTISSA)).floor()
    mantissa = bits - (exponent - 1).at_least(0.0) * _MANTISSA
    value = mantissa * exponent.look_up(_STEPS)
    return where(is_negative, -value, value)


def to_float16(x: Expr) -> Expr:
    """The nearest float16 of float32 numbers, saturating."""
    return x.at_least(-_LARGEST).at_most(_LARGEST).cast(FLOAT16)


def to_halves(x: Expr) -> Expr:
    """Bits, as a half, of the nearest float16 of float32 numbers, saturating."""
    size = x.abs().at_most(_LARGEST)
    step = (size.unsqueeze(-1) >= _STARTS).cast(FLOAT).sum(-1).squeeze(-1)  # 0 for the exponent fields 0 and 1
    worth = (step + 1).look_up(_STEPS)
    mantissa = (size / worth).round()
    return (x < 0).cast(FLOAT) * _TOP_OF_HALF + step * _MANTISSA + mantissa
