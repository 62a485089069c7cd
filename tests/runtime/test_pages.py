"""Pages, block tables and sequences: what is taken, kept and given back, against models made of lists."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvedge.runtime.pages import NO_PAGE, PagePool
from kvedge.runtime.sequence import Sequence
from kvedge.runtime.table import GroupTables
from kvedge.targets.errors import KvedgeError
from kvedge.targets.spec import PageRules

CONTEXT = 160
CHUNK = 24


def rules_of(
    *, page: int = 8, sinks: int = 4, recent: int = 16, window: int | None = 37, exact: bool = False
) -> PageRules:
    return PageRules(page=page, sinks=sinks, recent=recent, window=window, exact=exact)


RULES = {
    "window": rules_of(),
    "no sinks": rules_of(sinks=0),
    "sinks of several pages": rules_of(sinks=19),
    "large pages": rules_of(page=16),
    "no window": rules_of(window=None),
    "exact": rules_of(exact=True),
    "never packs": rules_of(window=17),
}


def pools_for(rules: PageRules, sessions: int = 1) -> tuple[PagePool, PagePool]:
    capacity = rules.capacity(CONTEXT, CHUNK)
    return PagePool(sessions * capacity.hot_pages), PagePool(sessions * capacity.packed_pages)


def tables_of(rules: PageRules, pools: tuple[PagePool, PagePool]) -> GroupTables:
    return GroupTables(rules, rules.capacity(CONTEXT, CHUNK), *pools)


def sequence_of(*rules: PageRules, limit: int | None = None) -> Sequence:
    return Sequence([tables_of(each, pools_for(each)) for each in rules], limit)


# ---- The pool.


def test_a_pool_gives_every_page_once_and_then_says_what_to_do() -> None:
    pool = PagePool(3)
    assert sorted(pool.take() for _ in range(3)) == [0, 1, 2]
    assert pool.num_free == 0
    with pytest.raises(MemoryError, match="^all 3 pages are in use: close a session, or load with more"):
        pool.take()
    pool.release(1)
    assert pool.take() == 1


def test_a_shared_page_is_free_after_its_last_release() -> None:
    pool = PagePool(2)
    page = pool.take()
    pool.share(page)
    pool.release(page)
    assert pool.num_free == 1
    pool.release(page)
    assert pool.num_free == 2


@pytest.mark.parametrize("operation", [PagePool.release, PagePool.share])
def test_a_free_page_is_neither_released_nor_shared(operation) -> None:  # type: ignore[no-untyped-def]
    pool = PagePool(2)
    page = pool.take()
    pool.release(page)
    with pytest.raises(AssertionError):
        operation(pool, page)
    assert pool.num_free == 2


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(["take", "share", "release"]), st.integers(0, 99)), max_size=60))
def test_a_pool_walks_like_a_list_of_holds(walk: list[tuple[str, int]]) -> None:
    pool, holds = PagePool(5), []
    for operation, number in walk:
        if operation == "take" and len(set(holds)) < 5:
            page = pool.take()
            assert page in set(range(5)) - set(holds)
            holds.append(page)
        elif operation != "take" and holds:
            page = holds[number % len(holds)]
            getattr(pool, operation)(page)
            holds.append(page) if operation == "share" else holds.remove(page)
        assert pool.num_free == 5 - len(set(holds))


# ---- Block tables.


def hot_columns(rules: PageRules, num_tokens: int, width: int) -> set[int]:
    """Columns that the first tokens of a stream have written."""
    sinks = -(-rules.sinks // rules.page)
    pages = range(-(-max(0, num_tokens - rules.sinks) // rules.page))
    written = {order // rules.page for order in range(min(num_tokens, rules.sinks))}
    return written | {sinks + page % (width - sinks) for page in pages}


def packed_columns(rules: PageRules, num_tokens: int, width: int) -> set[int]:
    """Columns of the pages that the newest token reads packed, and of all before them."""
    newest = (num_tokens - 1 - rules.sinks) // rules.page
    return {page % width for page in range(max(0, newest - rules.recent // rules.page))} if width else set()


def filled(table: list[int]) -> set[int]:
    return {column for column, page in enumerate(table) if page != NO_PAGE}


def check_columns(tables: GroupTables, num_tokens: int) -> None:
    assert filled(tables.hot) == hot_columns(tables.rules, num_tokens, len(tables.hot))
    assert filled(tables.packed) == packed_columns(tables.rules, num_tokens, len(tables.packed))
    for table in (tables.hot, tables.packed):
        pages = [page for page in table if page != NO_PAGE]
        assert len(pages) == len(set(pages)), "a page in two columns"


@pytest.mark.parametrize(
    ("num_tokens", "hot", "packed"),
    [
        (1, 1, 0),
        (4, 1, 0),
        (5, 2, 0),
        (12, 2, 0),
        (13, 3, 0),
        (28, 4, 0),
        (29, 5, 1),
        (37, 5, 2),
        (1000, 5, 7),
    ],
)
def test_columns_are_filled_when_a_token_needs_them(num_tokens: int, hot: int, packed: int) -> None:
    """Four sinks, pages of 8, 16 recent: one sink page, a ring of four pages, seven packed ones."""
    tables = tables_of(RULES["window"], pools_for(RULES["window"]))
    tables.reserve(0, num_tokens)
    assert (len(tables.hot), len(tables.packed)) == (5, 7)
    assert (len(filled(tables.hot)), len(filled(tables.packed))) == (hot, packed)


def test_sealed_pages_stand_in_a_circle() -> None:
    """Page p stands in column p mod 7, however far the stream has come."""
    tables = tables_of(RULES["window"], pools_for(RULES["window"]))
    tables.reserve(700, 724)  # tokens of pages 87 to 89: seals 84 to 86
    assert filled(tables.packed) == {84 % 7, 85 % 7, 86 % 7}
    tables.reserve(724, 725)  # the first token of page 90 seals 87
    assert filled(tables.packed) == {84 % 7, 85 % 7, 86 % 7, 87 % 7}


@pytest.mark.parametrize("name", RULES)
def test_a_chunk_longer_than_the_ring_fills_it_once(name: str) -> None:
    rules = RULES[name]
    pools = pools_for(rules)
    tables = tables_of(rules, pools)
    tables.reserve(0, CONTEXT)
    assert NO_PAGE not in tables.hot
    check_columns(tables, CONTEXT)
    assert pools[0].num_free == 0


@pytest.mark.parametrize("name", RULES)
def test_release_gives_all_pages_back(name: str) -> None:
    pools = pools_for(RULES[name])
    before = [pool.num_free for pool in pools]
    tables = tables_of(RULES[name], pools)
    for _ in range(3):
        tables.reserve(0, 100)
        assert pools[0].num_free < before[0]
        tables.release()
        assert [pool.num_free for pool in pools] == before
        assert not filled(tables.hot) | filled(tables.packed)
    tables.release()  # nothing is held: nothing happens
    assert [pool.num_free for pool in pools] == before


STEPS = st.lists(st.tuples(st.sampled_from([0, 1, 2]), st.integers(1, CHUNK)), max_size=20)


@pytest.mark.parametrize("name", RULES)
@settings(deadline=None, max_examples=60)
@given(steps=STEPS)
def test_tables_of_two_sessions_walk_like_lists(name: str, steps: list[tuple[int, int]]) -> None:
    """Two tables on the same pools, stepped in any order; 2 stands for releasing the first."""
    rules = RULES[name]
    pools = pools_for(rules, sessions=2)
    total = [pool.num_free for pool in pools]
    tables, lengths = [tables_of(rules, pools), tables_of(rules, pools)], [0, 0]
    for which, num_new in steps:
        if which == 2:
            tables[0].release()
            lengths[0] = 0
        elif lengths[which] + num_new <= CONTEXT:
            before = (list(tables[which].hot), list(tables[which].packed))
            tables[which].reserve(lengths[which], lengths[which] + num_new)
            lengths[which] += num_new
            kept = zip((*before[0], *before[1]), (*tables[which].hot, *tables[which].packed), strict=True)
            assert all(old in (NO_PAGE, new) for old, new in kept), "a column lost its page"
        for table, length in zip(tables, lengths, strict=True):
            check_columns(table, length)
        check_shared_pools(tables, pools, total)


def check_shared_pools(tables: list[GroupTables], pools: tuple[PagePool, PagePool], total: list[int]) -> None:
    for pool, size, both in zip(pools, total, ([t.hot for t in tables], [t.packed for t in tables]), strict=True):
        held = [page for table in both for page in table if page != NO_PAGE]
        assert len(held) == len(set(held)), "two sessions hold the same page"
        assert pool.num_free == size - len(held)


# ---- Sequences.


def test_room_is_what_is_left_of_the_limit() -> None:
    bounded, endless = sequence_of(RULES["no window"], limit=100), sequence_of(RULES["window"])
    for sequence in (bounded, endless):
        sequence.reserve(24)
        assert sequence.num_tokens == 0, "reserving counts nothing"
        sequence.advance(24)
        assert sequence.num_tokens == 24
    assert (bounded.room, endless.room) == (76, None)
    bounded.rollback(5)
    assert bounded.room == 81


def test_reserve_continues_where_the_sequence_ends() -> None:
    sequence = sequence_of(RULES["window"], RULES["exact"])
    for num_new in (3, 1, 24, 8, 17):
        sequence.reserve(num_new)
        sequence.advance(num_new)
        for tables in sequence.groups:
            check_columns(tables, sequence.num_tokens)


def test_slack_is_that_of_the_smallest_pages() -> None:
    assert sequence_of(RULES["window"]).slack == 8
    assert sequence_of(RULES["large pages"], RULES["window"], RULES["large pages"]).slack == 8


@pytest.mark.parametrize(
    ("history", "num_tokens", "allowed"),
    [
        ((20,), 8, 8),
        ((20,), 9, 8),
        ((5,), 5, 5),
        ((5,), 6, 5),
        ((), 1, 0),
        ((20,), -1, 8),
        ((20, -5), 3, 3),
        ((20, -5), 4, 3),  # the ring once held 20 tokens: what they overwrote is gone
        ((20, -5, 3), 6, 6),
        ((20, -5, 3), 7, 6),
        ((20, -5, 5, 2), 8, 8),
        ((20, -8), 1, 0),
    ],
)
def test_rollback_reaches_as_far_as_the_ring(history: tuple[int, ...], num_tokens: int, allowed: int) -> None:
    sequence = sequence_of(RULES["window"])
    for change in history:
        sequence.rollback(-change) if change < 0 else sequence.advance(change)
    before = sequence.num_tokens
    if 0 <= num_tokens <= allowed:
        sequence.rollback(num_tokens)
        assert sequence.num_tokens == before - num_tokens
    else:
        message = f"^rollback; expected 0 to {allowed} tokens; got {num_tokens}; start a new session instead$"
        with pytest.raises(KvedgeError, match=message):
            sequence.rollback(num_tokens)
        assert sequence.num_tokens == before, "a refused rollback changes nothing"


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(-9, 12), max_size=40))
def test_a_sequence_walks_like_a_ring(walk: list[int]) -> None:
    """The model: a list of the slots of a ring, with the token that each of them last took."""
    sequence, tokens, high = sequence_of(RULES["window"]), 0, 0
    exact, slots = 24, [-1] * 32  # tokens that a query may read exactly, and slack besides
    for change in walk:
        left = tokens + change
        if change >= 0:
            for order in range(tokens, left):
                slots[order % 32] = order
            sequence.advance(change)
            tokens, high = left, max(high, left)
        elif left >= 0 and high - left <= 8:
            sequence.rollback(-change)
            tokens = left
            assert all(slots[order % 32] == order for order in range(max(0, left - exact), left))
        else:
            with pytest.raises(KvedgeError, match="rollback"):
                sequence.rollback(-change)
        assert sequence.num_tokens == tokens


def test_clear_forgets_everything() -> None:
    pools = pools_for(RULES["window"])
    before = [pool.num_free for pool in pools]
    sequence = Sequence([tables_of(RULES["window"], pools)], 100)
    sequence.reserve(60)
    sequence.advance(60)
    sequence.clear()
    assert (sequence.num_tokens, sequence.room) == (0, 100)
    assert [pool.num_free for pool in pools] == before
    sequence.advance(3)
    sequence.rollback(3)  # the old high-water mark is forgotten too
    assert sequence.num_tokens == 0
