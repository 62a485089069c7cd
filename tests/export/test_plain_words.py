"""int32 words without bit operations, against numpy's bits: every width, the top bit, every float16."""

from __future__ import annotations

import numpy as np
import pytest
from plain_layers import run_formula as run

from kvedge.export.standard.expr import Expr, concat
from kvedge.export.standard.words import (
    half_values,
    join_words,
    pack_codes,
    split_words,
    to_float16,
    to_halves,
    unpack_codes,
)
from kvedge.plugins.reference.pages import pack_codes as pack_bits
from kvedge.plugins.reference.pages import unpack_codes as unpack_bits
from kvedge.plugins.reference.quantize import to_half
from kvedge.targets.packing import lane_words

EDGES = [0, 1, -1, 65535, 65536, -65536, -65537, 32768, -32768, (1 << 31) - 1, -1 << 31, (-1 << 31) + 1, 1 << 30]


def words(*shape: int) -> np.ndarray:
    """Random words; half of them have the top bit set."""
    return np.random.default_rng(0).integers(-1 << 31, 1 << 31, shape, np.int64).astype(np.int32)


def test_words_split_into_their_halves_and_back() -> None:
    x = np.concatenate([np.array(EDGES, np.int32), words(1000)])
    low, high = run(split_words, x)
    assert np.array_equal(low, (x.view(np.uint32) & 0xFFFF).astype(np.float32))
    assert np.array_equal(high, (x.view(np.uint32) >> 16).astype(np.float32))
    assert np.array_equal(run(lambda e: join_words(*split_words(e)), x)[0], x)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("depth", [8, 16, 24, 32, 40, 64, 80, 96, 128])
def test_codes_are_where_the_layout_puts_them(bits: int, depth: int) -> None:
    lanes = 24
    codes = np.random.default_rng(depth).integers(0, 1 << bits, (depth, lanes)).astype(np.uint8)
    packed = pack_bits(codes, bits).reshape(-1, lanes)
    assert (packed < 0).any() or depth == 8  # words with the top bit set; a single octet may not reach it
    assert np.array_equal(run(lambda e: _packed(e, bits, depth), codes.astype(np.float32))[0], packed)
    found = words(lane_words(bits, depth), lanes)
    want = unpack_bits(found.reshape(-1), bits, (depth, lanes))
    assert np.array_equal(run(lambda e: _unpacked(e, bits, depth), found)[0], want)


def _packed(codes: Expr, bits: int, depth: int) -> Expr:
    halves, number = pack_codes(codes, bits, depth), lane_words(bits, depth)
    return join_words(halves.part(-2, 0, number), halves.part(-2, number, 2 * number))


def _unpacked(words: Expr, bits: int, depth: int) -> Expr:
    return unpack_codes(concat(split_words(words), -2), bits, depth)


def test_all_ones_stay_all_ones() -> None:
    """Every bit of every word: -1."""
    ones = np.full((lane_words(3, 64), 8), -1, np.int32)
    assert np.array_equal(run(lambda e: _packed(_unpacked(e, 3, 64), 3, 64), ones)[0], ones)


def test_every_float16_from_its_bits() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    want = bits.view(np.float16).astype(np.float32)
    found = run(half_values, bits.astype(np.float32))[0]
    finite = np.isfinite(want)
    assert np.array_equal(found[finite], want[finite])
    assert np.isfinite(found).all()


def test_numbers_round_as_numpy_rounds() -> None:
    """Every float16, the midpoints between neighbours (ties to even), what lies close to them, and the overflow."""
    half = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middle = (half[1:] + half[:-1]) / 2
    around = [np.nextafter(middle, np.float32(to)) for to in (0, np.inf)]
    size = np.concatenate([half, middle, *around, np.array([65519, 65520, 1e6, 3e38, 1e-30], np.float32)])
    x = np.concatenate([size, -size[size > 0]])
    bits, value = run(lambda x: (to_halves(x), to_float16(x)), x)
    assert np.array_equal(bits, to_half(x).view(np.uint16).astype(np.float32))
    assert np.array_equal(value, to_half(x))
