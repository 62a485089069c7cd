"""What a step reads and writes, from the orders of its tokens: the rules of kvedge.targets.visibility as tensors.

One sequence, which held `context` tokens (C below) and gets `num_new`, of at most N: the length of the step's inputs,
which only a run knows. Where a step has less to write than there is room for, the spare places write once more what
another place writes, the same bytes to the same slot, so nothing depends on which of them comes last.

    ring slot s     holds the newest order o < C with (o - S) mod ring = s
    packed column c holds the newest sealed page p with p mod columns = c

Older tokens that a slot has lost are out of sight by the capacity of the tables; tokens that a rollback took back
are newer than C, and their slots count as what they were before, which nobody sees either.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvedge.export.standard.expr import INT32, Expr, concat, where
from kvedge.targets.errors import require
from kvedge.targets.spec import LayerSpec, PageRules
from kvedge.targets.visibility import sink_pages


@dataclass(frozen=True, kw_only=True)
class GraphSize:
    """The fixed sizes of a graph.

    Args:
        chunk: new tokens of any step at most: N is 1 to that many.
        hot_pages, packed_pages: pages of the pools.
        hot_slots, packed_slots: columns of the block tables; packed ones are 0 where nothing is packed.
    """

    chunk: int
    hot_pages: int
    hot_slots: int
    packed_pages: int
    packed_slots: int

    def sink_tokens(self, rules: PageRules) -> int:
        """Tokens of the hot columns that hold sinks."""
        return sink_pages(rules.sinks, rules.page) * rules.page

    def ring_tokens(self, rules: PageRules) -> int:
        """Tokens of the other hot columns."""
        ring = self.hot_slots * rules.page - self.sink_tokens(rules)
        require(ring > 0, "columns of the hot table", expected="more than the sinks take", got=self.hot_slots)
        return ring


@dataclass(frozen=True, kw_only=True)
class Tables:
    """Inputs that say where the tokens are: block tables int32 [1, slots], context and num_new int32 [1].

    num_new is at least 1. new: int64 [1], N.
    """

    hot: Expr
    packed: Expr | None
    context: Expr
    num_new: Expr
    new: Expr


@dataclass(frozen=True, kw_only=True)
class PackedPlaces:
    """Packed pages of a step.

    Args:
        ids: int32 [packed slots], pages to read.
        pages: int32 [packed slots], the numbers of those pages, -1 for none; sealed_pages: int32 [M], of those to seal.
        sealed_tokens: int32 [M * T] with M = N / T rounded up, tokens of the pages to seal, among the exact ones.
        sealed_ids: int32 [M, 1], where they go; seals_any: bool [1], whether there is anything to seal at all.
    """

    ids: Expr
    pages: Expr
    sealed_pages: Expr
    sealed_tokens: Expr
    sealed_ids: Expr
    seals_any: Expr


@dataclass(frozen=True, kw_only=True)
class Places:
    """Exact tokens of a step: those of the hot columns one after the other, then the N new ones.

    Args:
        hot_ids: int32 [hot slots], pages to read.
        seen: bool [G * N, tokens], which of them each query reads; tokens of packed pages come first.
        new_sinks: bool [N], which new tokens are sinks.
        is_new: bool [N], which new tokens there are.
        written: int32 [N], the new token that each place writes.
        rows: int32 [N * 2 * H, 1], where to: rows of D numbers of the hot pool.
        tiles: int32 [1], pairs of a query page and a packed page that it reads.
        packed: packed pages, or None.
    """

    hot_ids: Expr
    seen: Expr
    new_sinks: Expr
    is_new: Expr
    written: Expr
    rows: Expr
    tiles: Expr
    packed: PackedPlaces | None


def find_places(layer: LayerSpec, size: GraphSize, tables: Tables) -> Places:
    """Places of one step, the same for all layers of a group that have as many heads."""
    rules = layer.rules
    index = _index(size, tables)
    orders = tables.context + index
    is_new = index < tables.num_new
    written = _written(rules, size, tables, index)
    seen, packed, tiles = _seen_exactly(rules, size, tables, orders), None, tables.num_new * 0
    if rules.packs:
        seen_packed, packed, tiles = _packed_places(rules, size, tables, orders)
        seen = concat([seen_packed, seen], -1)
    return Places(
        hot_ids=tables.hot.reshape(size.hot_slots).at_least(0),
        seen=concat([seen] * (layer.heads // layer.kv_heads), 0),
        new_sinks=orders < rules.sinks,
        is_new=is_new,
        written=written,
        rows=_rows(layer, size, tables, tables.context + written),
        tiles=tiles,
        packed=packed,
    )


def _index(size: GraphSize, tables: Tables) -> Expr:
    """0 to N - 1, int32."""
    return tables.context.recorder.constant(np.arange(size.chunk, dtype=np.int32)).first(tables.new)


def _written(rules: PageRules, size: GraphSize, tables: Tables, index: Expr) -> Expr:
    """Which new token each place writes: its own, or the newest where there is none or the ring will not hold it."""
    orders = tables.context + index
    fits = (orders < rules.sinks) | (index + size.ring_tokens(rules) >= tables.num_new)
    return where(fits & (index < tables.num_new), index, tables.num_new - 1)


def _rows(layer: LayerSpec, size: GraphSize, tables: Tables, orders: Expr) -> Expr:
    """Rows of the hot pool [pages, 2, H, T, D] that hold keys and values of tokens [n]: int32 [n * 2 * H, 1]."""
    page, sides = layer.rules.page, 2 * layer.kv_heads
    slot = _exact_slot(layer.rules, size, orders)
    column = slot // page
    first = tables.hot.reshape(size.hot_slots).take(column, 0) * (sides * page) + (slot - column * page)
    return (first.unsqueeze(-1) + np.arange(0, sides * page, page, dtype=np.int32)).reshape(-1, 1)


def _exact_slot(rules: PageRules, size: GraphSize, orders: Expr) -> Expr:
    """Where a token lies among those of the hot columns."""
    ring = (orders - rules.sinks).at_least(0) % size.ring_tokens(rules) + size.sink_tokens(rules)
    return where(orders < rules.sinks, orders, ring)


def _page_of(rules: PageRules, orders: Expr) -> Expr:
    """Page of a token; 0 for sinks, which never read or are packed."""
    return (orders - rules.sinks).at_least(0) // rules.page


def _hot_orders(rules: PageRules, size: GraphSize, tables: Tables) -> Expr:
    """Order of the token in every slot of the hot columns, int32; -1 for none."""
    constant = tables.context.recorder.constant
    sinks = np.arange(size.sink_tokens(rules), dtype=np.int32)
    first = constant(np.where(sinks < rules.sinks, sinks, np.iinfo(np.int32).max))
    ring = np.arange(size.ring_tokens(rules), dtype=np.int32)
    newest = tables.context - 1
    behind = newest - (ring + np.int32(rules.sinks))
    last = where(behind >= 0, newest - behind.at_least(0) % len(ring), -1)
    return concat([where(first < tables.context, first, -1), last], 0) if len(sinks) else last


def _in_window(rules: PageRules, queries: Expr, keys: Expr) -> Expr:
    """Whether queries see keys that are not newer and no sinks."""
    if rules.window is None:
        return keys <= queries
    return (keys <= queries) & (keys > queries - rules.window)


def _seen_exactly(rules: PageRules, size: GraphSize, tables: Tables, orders: Expr) -> Expr:
    queries = orders.unsqueeze(-1)
    keys = concat([_hot_orders(rules, size, tables), orders], 0)
    visible = _in_window(rules, queries, keys)
    if rules.packs:
        visible = visible & (_page_of(rules, queries) - _page_of(rules, keys) <= rules.recent // rules.page)
    is_sink = (keys < rules.sinks) & (keys <= queries)
    return (visible | is_sink) & (keys >= 0)


def _packed_places(rules: PageRules, size: GraphSize, tables: Tables, orders: Expr) -> tuple[Expr, PackedPlaces, Expr]:
    """Which of their tokens queries read, bool [N, packed slots * T], packed pages, and tiles that are read of them."""
    assert tables.packed is not None
    slots = size.packed_slots
    table = tables.packed.reshape(slots)
    sealed = _sealed_pages(rules, tables.context + tables.num_new)
    behind = sealed - 1 - np.arange(slots, dtype=np.int32)
    pages = where(behind >= 0, sealed - 1 - behind.at_least(0) % slots, -1)
    reads = _page_of(rules, orders).unsqueeze(-1) - pages > rules.recent // rules.page
    reads = reads & (pages >= 0)
    seen = _packed_tokens(rules, orders, pages) & reads.unsqueeze(-1)
    to_seal, tokens, ids, seals_any = _sealed(rules, size, tables, sealed)
    places = PackedPlaces(
        ids=table.at_least(0),
        pages=pages,
        sealed_pages=to_seal,
        sealed_tokens=tokens,
        sealed_ids=ids.unsqueeze(-1),
        seals_any=seals_any,
    )
    return seen.reshape(-1, slots * rules.page), places, _tiles(rules, size, tables, seen)


def _packed_tokens(rules: PageRules, orders: Expr, pages: Expr) -> Expr:
    """bool [N, slots, T]: which tokens of the packed pages the window of each query has."""
    offsets = np.arange(rules.sinks, rules.sinks + rules.page, dtype=np.int32)
    keys = pages.unsqueeze(-1) * rules.page + offsets
    return _in_window(rules, orders.reshape(-1, 1, 1), keys)


def _tiles(rules: PageRules, size: GraphSize, tables: Tables, seen: Expr) -> Expr:
    """Pairs of pages, int32 [1]. The first query of a page sees all that the others of its page see."""
    index = _index(size, tables)
    ahead = tables.context + index - rules.sinks
    starts = index.equals(0) | (ahead.at_least(0) % rules.page).equals(0)
    counted = (starts & (index < tables.num_new)).reshape(-1, 1, 1) & seen
    by_page = counted.cast(INT32).max(-1)
    return by_page.reshape(1, -1).sum(-1).reshape(1)


def _sealed_pages(rules: PageRules, tokens: Expr) -> Expr:
    """Pages sealed once that many tokens are in the cache, int32 as tokens."""
    return (_page_of(rules, tokens - 1) - rules.recent // rules.page).at_least(0)


def _sealed(rules: PageRules, size: GraphSize, tables: Tables, sealed: Expr) -> tuple[Expr, ...]:
    """Numbers, tokens and ids of the pages to seal, and whether there are any; places without one repeat the first."""
    assert tables.packed is not None
    most = min(size.chunk, size.packed_slots * rules.page)
    before = _sealed_pages(rules, tables.context)
    numbers = np.arange(most, dtype=np.int32) // rules.page
    step = tables.context.recorder.constant(numbers).first(tables.new, rules.page)
    pages = where(before + step < sealed, before + step, before)
    table = tables.packed.reshape(size.packed_slots)
    ids = table.take(pages % size.packed_slots, 0).at_least(0)
    start = (pages * rules.page + rules.sinks).unsqueeze(-1)
    orders = (start + np.arange(rules.page, dtype=np.int32)).reshape(-1)
    hot = size.ring_tokens(rules) + size.sink_tokens(rules)
    fresh = (orders - tables.context).at_least(0).at_most(tables.num_new - 1) + hot
    tokens = where(orders < tables.context, _exact_slot(rules, size, orders), fresh)
    return pages, tokens, ids, before < sealed
