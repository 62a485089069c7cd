"""Where everything lies in a packed page."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest

from kvedge.targets.errors import KvedgeError
from kvedge.targets.packing import PackedLayout

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


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(("k_bits", "v_bits"), BITS)
def test_parts_follow_each_other_without_gaps(k_bits: int, v_bits: int, page: int) -> None:
    """In the documented order, every part in whole words, nothing rounded."""
    for dim in DIMS:
        layout = make_layout(head_dim=dim, page=page, k_bits=k_bits, v_bits=v_bits)
        starts = (0, layout.v_planes, layout.k_scales, layout.v_scales, layout.k_mean, layout.head_words)
        bits = [32 * (end - start) for start, end in itertools.pairwise(starts)]
        assert bits == [k_bits * page * dim, v_bits * page * dim, 16 * page, 16 * page, 16 * dim]
        assert 32 * layout.plane_words == page * dim


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
    ({"k_bits": 2, "v_bits": 2, "head_dim": 8, "page": 8}, "5"),
]


@pytest.mark.parametrize(("change", "want"), BITS_PER_VALUE)
@pytest.mark.parametrize("kv_heads", (1, 5))
def test_bits_per_value(kv_heads: int, change: dict[str, int], want: str) -> None:
    assert Fraction(make_layout(kv_heads=kv_heads, **change).bits_per_value) == Fraction(want)
