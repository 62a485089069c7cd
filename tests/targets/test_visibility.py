"""What a token sees and how it reads it, against the definitions spelt out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvedge.targets.visibility import (
    hot_slot,
    is_visible,
    page_of,
    reads_packed,
    ring_pages,
    sealed_pages,
    sink_pages,
    sink_shift,
    window_start,
)

orders = st.integers(0, 120)
sinks = st.integers(0, 20)
pages = st.sampled_from((1, 4, 8, 16))
windows = st.none() | st.integers(1, 60)


def test_the_documented_example() -> None:
    """S=2, T=4, R=4: query 14 reads page 2 exactly, pages 0 and 1 packed, sinks exactly."""
    want_pages = [-1, -1, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3]
    assert [page_of(order, 2, 4) for order in range(15)] == want_pages
    packed = [key for key in range(15) if reads_packed(14, key, 2, 4, 4)]
    assert packed == list(range(2, 10))
    assert sealed_pages(15, 2, 4, 4) == 2


@given(orders, sinks, pages)
def test_pages_start_after_the_sinks(order: int, sinks: int, page: int) -> None:
    number = page_of(order, sinks, page)
    assert sinks + number * page <= order < sinks + (number + 1) * page
    assert (number < 0) == (order < sinks)


@given(orders, orders, sinks, windows)
def test_visible(query: int, key: int, sinks: int, window: int | None) -> None:
    in_window = window is None or key > query - window
    assert is_visible(query, key, sinks, window) == (key <= query and (key < sinks or in_window))


@given(orders, sinks, windows)
def test_window_start_is_the_oldest_visible_token(query: int, sinks: int, window: int | None) -> None:
    seen = [key for key in range(sinks, query + 1) if is_visible(query, key, sinks, window)]
    start = window_start(query, sinks, window)
    if query >= sinks:
        assert seen == list(range(start, query + 1))
        assert len(seen) == min(query + 1 - sinks, query + 1 if window is None else window)
    else:
        assert seen == [] and start == sinks


@given(orders, orders, sinks, pages, st.integers(1, 4))
def test_packed_is_a_matter_of_pages(query: int, key: int, sinks: int, page: int, recent: int) -> None:
    """The definition; so it is the same over a whole tile of queries and keys."""
    apart = (query - sinks) // page - (key - sinks) // page
    assert reads_packed(query, key, sinks, page, recent * page) == (key >= sinks and apart > recent)


@given(orders, orders, sinks, pages, st.integers(1, 4))
def test_recent_tokens_are_read_exactly(query: int, key: int, sinks: int, page: int, recent: int) -> None:
    if key >= query - recent * page:
        assert not reads_packed(query, key, sinks, page, recent * page)
    elif key >= sinks and key < query - recent * page - page:
        assert reads_packed(query, key, sinks, page, recent * page)


SHIFTS = [
    # query, oldest visible, last sink, shift
    (9, 4, 3, 0),
    (10, 5, 3, 1),
    (100, 61, 3, 57),
    (7, 7, 3, 3),
    (3, 2, 3, 0),
    (3, 3, 3, 0),
]


@pytest.mark.parametrize(("query", "oldest", "last_sink", "shift"), SHIFTS)
def test_sink_shift(query: int, oldest: int, last_sink: int, shift: int) -> None:
    assert sink_shift(query, oldest, last_sink) == shift


@given(orders, orders, orders)
def test_sinks_stand_right_before_the_window(last_sink: int, gap: int, back: int) -> None:
    """The turned query is as far from the last sink as from a token just before the oldest visible one."""
    oldest = last_sink + 1 + gap
    query = oldest + back
    shift = sink_shift(query, oldest, last_sink)
    assert shift == gap
    assert query - shift - last_sink == query - (oldest - 1)


def test_the_oldest_token_is_not_newer_than_the_query() -> None:
    with pytest.raises(AssertionError):
        sink_shift(4, 5, 3)


@given(orders, sinks, pages, st.integers(1, 4))
def test_sealed_pages_are_those_that_the_newest_token_reads_packed(
    num_tokens: int, sinks: int, page: int, recent: int
) -> None:
    read = {
        page_of(key, sinks, page)
        for key in range(num_tokens)
        if reads_packed(num_tokens - 1, key, sinks, page, recent * page)
    }
    assert list(range(sealed_pages(num_tokens, sinks, page, recent * page))) == sorted(read)


@given(orders, sinks, pages, st.integers(1, 4))
def test_sealed_pages_are_complete_and_stay_after_a_rollback(
    num_tokens: int, sinks: int, page: int, recent: int
) -> None:
    """A page of slack never takes back a token of a sealed page."""
    end = sinks + sealed_pages(num_tokens, sinks, page, recent * page) * page
    assert end <= max(sinks, num_tokens - page)


@given(sinks, pages)
def test_sink_pages_hold_the_sinks(sinks: int, page: int) -> None:
    number = sink_pages(sinks, page)
    assert number * page >= sinks > (number - 1) * page or number == sinks == 0


@given(st.integers(1, 60), st.integers(0, 20), pages)
def test_ring_pages_hold_reach_and_slack(reach: int, slack: int, page: int) -> None:
    number = ring_pages(reach, slack, page)
    assert number * page >= reach + slack > (number - 1) * page


@given(st.integers(1, 200), sinks, pages, st.integers(1, 5))
def test_hot_slots_are_a_ring_behind_the_sinks(count: int, sinks: int, page: int, ring: int) -> None:
    """Cells in storage order, written one after the other; the ring's pointer goes round, sinks stay."""
    columns = sink_pages(sinks, page) + ring
    cells: list[int | None] = [None] * (columns * page)
    first = sink_pages(sinks, page) * page
    pointer = 0
    for order in range(count):
        if order == sinks:
            pointer = first
        column, offset = hot_slot(order, sinks, page, ring)
        assert (column, offset) == divmod(pointer, page)
        cells[pointer] = order
        pointer = pointer + 1 if pointer + 1 < len(cells) else first
    kept = [order for order in range(count) if order < sinks or order >= count - ring * page]
    assert sorted(order for order in cells if order is not None) == kept
