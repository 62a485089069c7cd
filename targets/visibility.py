"""What a token may see, and how it reads it: pure functions of token orders.

Three numbers are never mixed. The *order* of a token is its index in the stream and decides what it may
see. Its *position* is where it stands for the rotary embedding (equal to the order in plain text). Its
*slot* is where its bytes lie.

With S sinks, pages of T tokens, R recent tokens (a multiple of T) and a window of W keys:

    page(o)         = (o - S) // T                     negative for sinks
    visible(q, k)   = k <= q and (k < S or k > q - W)   W counts the query itself
    packed(q, k)    = k >= S and page(q) - page(k) > R / T

Both are pure functions of orders, so results never depend on how a prompt was cut into chunks, and
`packed` is constant over a (query page, key page) tile. An example with S=2, T=4, R=4:

    order   0 1 | 2 3 4 5 | 6 7 8 9 | 10 11 12 13 | 14
    page     -1 |    0    |    1    |      2      |  3
    query 14 (page 3) reads page 2 exactly, pages 0 and 1 packed, sinks 0 and 1 exactly.
"""

from __future__ import annotations


def page_of(order: int, sinks: int, page: int) -> int:
    """Page of a token; negative for sinks."""
    return (order - sinks) // page


def window_start(query: int, sinks: int, window: int | None) -> int:
    """Order of the oldest token outside the sinks that a query sees."""
    return sinks if window is None else max(sinks, query - window + 1)


def is_visible(query: int, key: int, sinks: int, window: int | None) -> bool:
    """Whether a query sees a key."""
    return key <= query and (key < sinks or key >= window_start(query, sinks, window))


def reads_packed(query: int, key: int, sinks: int, page: int, recent: int) -> bool:
    """Whether a query reads a visible key from a packed page, in a cache that packs at all."""
    return key >= sinks and page_of(query, sinks, page) - page_of(key, sinks, page) > recent // page


def sink_shift(query_position: int, oldest_position: int, last_sink_position: int) -> int:
    """How far the query is turned back before it scores the sinks, in positions.

    After the turn the sinks look as if they stood right before the window (StreamingLLM, 2023, with the
    query moved and not the keys, so that stored keys are never rotated again).
    """
    assert query_position >= oldest_position
    return max(0, oldest_position - last_sink_position - 1)


def sealed_pages(num_tokens: int, sinks: int, page: int, recent: int) -> int:
    """Number of pages (from page 0 on) that are sealed once num_tokens are in the cache."""
    if num_tokens == 0:
        return 0
    return max(0, page_of(num_tokens - 1, sinks, page) - recent // page)


def sink_pages(sinks: int, page: int) -> int:
    """Hot pages that hold the sinks."""
    return -(-sinks // page)


def ring_pages(reach: int, slack: int, page: int) -> int:
    """Hot pages of the ring: `reach` tokens that a query may read exactly, and `slack` to roll back over."""
    return -(-(reach + slack) // page)


def hot_slot(order: int, sinks: int, page: int, ring: int) -> tuple[int, int]:
    """Column of the hot block table, and offset in that page, where a token lies; `ring` in pages."""
    if order < sinks:
        return order // page, order % page
    slot = (order - sinks) % (ring * page)
    return sink_pages(sinks, page) + slot // page, slot % page
