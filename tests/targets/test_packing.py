"""Where everything lies in a packed page."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest

from kvedge.targets.errors import KvedgeError
from kvedge.targets.packing import PackedLayout, bit_place, group_words, lane_words

DIMS = range(8, 264, 8)
PAGES = (8, 16, 24, 64, 128)
BITS = ((2, 2), (3, 2), (3, 3), (4, 2), (4, 3), (4, 4), (8, 4), (8, 8))


def make_layout(
    *, kv_heads: int = 1, head_dim: int = 64, page: int = 64, k_bits: int = 3, v_bits: int = 3
) -> PackedLayout:
    return PackedLayout(kv_heads=kv_heads, head_dim=head_dim, page=page, k_bits=k_bits, v_bits=v_bits)


REFUSED = [
    ({"head_dim": 0}, "head_dim; expected a multiple of 8; got 0"),
    ({"head_dim": -8}, "head_dim; expected a multiple of 8; got -8"),
    ({"head_dim": 12}, "head_dim; expected a multiple of 8; got 12"),
    ({"page": 0}, "page size; expected a multiple of 8 tokens; got 0"),
    ({"page": -8}, "page size; expected a multiple of 8 tokens; got -8"),
    ({"page": 65}, "page size; expected a multiple of 8 tokens; got 65"),
]


@pytest.mark.parametrize(("change", "text"), REFUSED)
def test_refused(change: dict[str, int], text: str) -> None:
    with pytest.raises(KvedgeError) as caught:
        make_layout(**change)
    assert str(caught.value) == text


@pytest.mark.parametrize("octets", (1, 2, 3, 4))
@pytest.mark.parametrize("bits", (2, 3, 4, 8))
def test_every_bit_has_its_own_place(bits: int, octets: int) -> None:
    """Inside the words of the group; a whole group leaves nothing unused."""
    words = group_words(bits, octets)
    places = [bit_place(bits, octets, element, bit) for element in range(8 * octets) for bit in range(bits)]
    assert len(set(places)) == len(places)
    assert set(places) <= set(itertools.product(range(words), range(32)))
    assert words == -(-bits * octets // 4) or bits == 3 and octets == 1 and words == 2
    assert octets < 4 or len(places) == 32 * words


@pytest.mark.parametrize("octets", (1, 2, 3, 4))
@pytest.mark.parametrize("bits", (2, 3, 4, 8))
def test_four_elements_stand_at_one_bit_of_four_bytes(bits: int, octets: int) -> None:
    """What integer products of four need."""
    for first, bit in itertools.product(range(0, 8 * octets, 4), range(bits)):
        word, at = bit_place(bits, octets, first, bit)
        assert [bit_place(bits, octets, first + n, bit) for n in range(4)] == [(word, at + 8 * n) for n in range(4)]


def test_magnitudes_of_a_code_are_neighbours() -> None:
    """Up to 4 bits, all of a code is in one nibble of one word, but for the signs of 3 bits."""
    for bits, octets in itertools.product((2, 3, 4), (1, 2, 3, 4)):
        for element in range(8 * octets):
            word, first = bit_place(bits, octets, element, 0)
            magnitude = range(2 if bits == 3 else bits)
            assert [bit_place(bits, octets, element, bit) for bit in magnitude] == [
                (word, first + n) for n in magnitude
            ]
            assert {bit_place(bits, octets, element, bit)[1] // 4 for bit in range(bits)} == {first // 4}


@pytest.mark.parametrize(("bits", "depth", "words"), [(3, 64, 6), (3, 80, 8), (2, 40, 3), (4, 24, 3), (8, 72, 18)])
def test_words_of_a_lane(bits: int, depth: int, words: int) -> None:
    assert lane_words(bits, depth) == words


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(("k_bits", "v_bits"), BITS)
def test_parts_follow_each_other_without_gaps(k_bits: int, v_bits: int, page: int) -> None:
    """In the documented order, every part in whole words; nothing is rounded where groups are whole."""
    for dim in DIMS:
        layout = make_layout(head_dim=dim, page=page, k_bits=k_bits, v_bits=v_bits)
        starts = (0, layout.v_codes, layout.k_scales, layout.v_scales, layout.k_mean, layout.head_words)
        words = [end - start for start, end in itertools.pairwise(starts)]
        codes = [page * lane_words(k_bits, dim), dim * lane_words(v_bits, page)]
        assert words == [*codes, page // 2, page // 2, dim // 2]
        assert dim % 32 or 32 * codes[0] == k_bits * page * dim
        assert page % 32 or 32 * codes[1] == v_bits * page * dim


@pytest.mark.parametrize("kv_heads", (1, 2, 3, 8))
def test_a_page_is_its_heads(kv_heads: int) -> None:
    for dim, page in itertools.product(DIMS, PAGES):
        layout = make_layout(kv_heads=kv_heads, head_dim=dim, page=page)
        assert layout.page_words == kv_heads * layout.head_words
        assert layout.page_bytes == 4 * layout.page_words


BITS_PER_VALUE = [
    ({}, "3.375"),
    ({"head_dim": 128}, "3.25"),
    ({"k_bits": 4, "v_bits": 4}, "4.375"),
    ({"k_bits": 4, "v_bits": 4, "head_dim": 128, "page": 128}, "4.1875"),
    ({"k_bits": 4, "v_bits": 2}, "3.375"),
    ({"k_bits": 3, "v_bits": 2, "head_dim": 128}, "2.75"),
    ({"k_bits": 2, "v_bits": 2, "head_dim": 256}, "2.1875"),
    ({"head_dim": 80}, "3.425"),
    ({"k_bits": 2, "v_bits": 2, "head_dim": 8, "page": 8}, "7"),
]


@pytest.mark.parametrize(("change", "want"), BITS_PER_VALUE)
@pytest.mark.parametrize("kv_heads", (1, 5))
def test_bits_per_value(kv_heads: int, change: dict[str, int], want: str) -> None:
    assert make_layout(kv_heads=kv_heads, **change).bits_per_value == float(Fraction(want))
