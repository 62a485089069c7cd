"""What a step reads and writes, from the orders of its tokens: the rules of kvedge.targets.visibility as tensors.

One sequence, which held `context` tokens (C below) and gets `num_new`, of at most N. Where a step has less to write
than the graph has room for, the spare places write once more what another place writes, the same bytes to the same
slot, so nothing depends on which of them comes last.

    ring slot s     holds the newest order o < C with (o - S) mod ring = s
    packed column c holds the newest sealed page p with p mod columns = c

Older tokens that a slot has lost are out of sight by the capacity of the tables; tokens that a rollback took back
are newer than C, and their slots count as what they were before, which nobody sees either.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvedge.export.plain.expr import INT32, Expr, concat, where
from kvedge.targets.errors import require
from kvedge.targets.spec import PageRules
from kvedge.targets.visibility import sink_pages


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The fixed sizes of a graph.

    Args:
        new: tokens a step brings at most (N).
        hot_pages, packed_pages: pages of the pools.
        hot_slots, packed_slots: columns of the block tables; packed ones are 0 where nothing is packed.
    """

    new: int
    hot_pages: int
    hot_slots: int
    packed_pages: int
    packed_slots: int

    def seals(self, rules: PageRules) -> int:
        """Pages that a step makes old at most."""
        return min(-(-self.new // rules.page), self.packed_slots)

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

    num_new is at least 1.
    """

    hot: Expr
    packed: Expr | None
    context: Expr
    num_new: Expr


@dataclass(frozen=True, kw_only=True)
class PackedPlaces:
    """Packed pages of a step.

    Args:
        ids: int32 [packed slots], pages to read.
        seen: bool [N, packed slots * T], which of their tokens each query reads.
        sealed_tokens: int32 [M * T], tokens of the pages to seal, among the exact ones.
        sealed_ids: int32 [M], where they go; seals_any: bool [1], whether there is anything to seal at all.
    """

    ids: Expr
    seen: Expr
    sealed_tokens: Expr
    sealed_ids: Expr
    seals_any: Expr


@dataclass(frozen=True, kw_only=True)
class Places:
    """Exact tokens of a step: those of the hot columns one after the other, then the N new ones.

    Args:
        hot_ids: int32 [hot slots], pages to read.
        seen: bool [N, tokens], which of them each query reads.
        new_sinks: bool [N], which new tokens are sinks.
        is_new: bool [N], which new tokens there are.
        written: int32 [N], the new token that each place writes; pages, offsets: int32 [N], where to.
        tiles: int32 [1], pairs of a query page and a packed page that it reads.
        packed: packed pages, or None.
    """

    hot_ids: Expr
    seen: Expr
    new_sinks: Expr
    is_new: Expr
    written: Expr
    pages: Expr
    offsets: Expr
    tiles: Expr
    packed: PackedPlaces | None


def find_places(rules: PageRules, profile: Profile, tables: Tables) -> Places:
    """Places of one step, the same for all layers of a group."""
    index = tables.context.recorder.constant(np.arange(profile.new, dtype=np.int32))
    orders = tables.context + index
    is_new = index < tables.num_new
    written = _written(rules, profile, tables, index)
    columns, offsets = _hot_slot(rules, profile, tables.context + written)
    packed, tiles = _packed_places(rules, profile, tables, orders) if rules.packs else (None, tables.num_new * 0)
    return Places(
        hot_ids=tables.hot.reshape(profile.hot_slots).at_least(0),
        seen=_seen_exactly(rules, profile, tables, orders),
        new_sinks=orders < rules.sinks,
        is_new=is_new,
        written=written,
        pages=tables.hot.reshape(profile.hot_slots).take(columns, 0),
        offsets=offsets,
        tiles=tiles,
        packed=packed,
    )


def _written(rules: PageRules, profile: Profile, tables: Tables, index: Expr) -> Expr:
    """Which new token each place writes: its own, or the newest where there is none or the ring will not hold it."""
    orders = tables.context + index
    fits = (orders < rules.sinks) | (index + profile.ring_tokens(rules) >= tables.num_new)
    return where(fits & (index < tables.num_new), index, tables.num_new - 1)


def _hot_slot(rules: PageRules, profile: Profile, orders: Expr) -> tuple[Expr, Expr]:
    """Column of the hot table and offset in its page, int32 as orders."""
    slot = _exact_slot(rules, profile, orders)
    column = slot // rules.page
    return column, slot - column * rules.page


def _exact_slot(rules: PageRules, profile: Profile, orders: Expr) -> Expr:
    """Where a token lies among those of the hot columns."""
    ring = (orders - rules.sinks).at_least(0) % profile.ring_tokens(rules) + profile.sink_tokens(rules)
    return where(orders < rules.sinks, orders, ring)


def _page_of(rules: PageRules, orders: Expr) -> Expr:
    """Page of a token; 0 for sinks, which never read or are packed."""
    return (orders - rules.sinks).at_least(0) // rules.page


def _hot_orders(rules: PageRules, profile: Profile, tables: Tables) -> Expr:
    """Order of the token in every slot of the hot columns, int32; -1 for none."""
    constant = tables.context.recorder.constant
    sinks = np.arange(profile.sink_tokens(rules), dtype=np.int32)
    first = constant(np.where(sinks < rules.sinks, sinks, np.iinfo(np.int32).max))
    ring = np.arange(profile.ring_tokens(rules), dtype=np.int32)
    newest = tables.context - 1
    behind = newest - (ring + np.int32(rules.sinks))
    last = where(behind >= 0, newest - behind.at_least(0) % len(ring), -1)
    return concat([where(first < tables.context, first, -1), last], 0) if len(sinks) else last


def _in_window(rules: PageRules, queries: Expr, keys: Expr) -> Expr:
    """Whether queries see keys that are not newer and no sinks."""
    if rules.window is None:
        return keys <= queries
    return (keys <= queries) & (keys > queries - rules.window)


def _seen_exactly(rules: PageRules, profile: Profile, tables: Tables, orders: Expr) -> Expr:
    queries = orders.unsqueeze(-1)
    keys = concat([_hot_orders(rules, profile, tables), orders], 0)
    visible = _in_window(rules, queries, keys)
    if rules.packs:
        visible = visible & (_page_of(rules, queries) - _page_of(rules, keys) <= rules.recent // rules.page)
    is_sink = (keys < rules.sinks) & (keys <= queries)
    return (visible | is_sink) & (keys >= 0)


def _packed_places(rules: PageRules, profile: Profile, tables: Tables, orders: Expr) -> tuple[PackedPlaces, Expr]:
    """Packed pages, and the tiles that are read of them."""
    assert tables.packed is not None
    slots = profile.packed_slots
    table = tables.packed.reshape(slots)
    sealed = _sealed_pages(rules, tables.context + tables.num_new)
    behind = sealed - 1 - np.arange(slots, dtype=np.int32)
    pages = where(behind >= 0, sealed - 1 - behind.at_least(0) % slots, -1)
    reads = _page_of(rules, orders).unsqueeze(-1) - pages > rules.recent // rules.page
    reads = reads & (pages >= 0)
    seen = _packed_tokens(rules, profile, orders, pages) & reads.unsqueeze(-1)
    tokens, ids, seals_any = _sealed(rules, profile, tables, sealed)
    places = PackedPlaces(
        ids=table.at_least(0),
        seen=seen.reshape(profile.new, slots * rules.page),
        sealed_tokens=tokens,
        sealed_ids=ids,
        seals_any=seals_any,
    )
    return places, _tiles(rules, profile, tables, seen)


def _packed_tokens(rules: PageRules, profile: Profile, orders: Expr, pages: Expr) -> Expr:
    """bool [N, slots, T]: which tokens of the packed pages the window of each query has."""
    offsets = np.arange(rules.sinks, rules.sinks + rules.page, dtype=np.int32)
    keys = pages.unsqueeze(-1) * rules.page + offsets
    return _in_window(rules, orders.reshape(profile.new, 1, 1), keys)


def _tiles(rules: PageRules, profile: Profile, tables: Tables, seen: Expr) -> Expr:
    """Pairs of pages, int32 [1]. The first query of a page sees all that the others of its page see."""
    index = tables.context.recorder.constant(np.arange(profile.new, dtype=np.int32))
    ahead = tables.context + index - rules.sinks
    starts = index.equals(0) | (ahead.at_least(0) % rules.page).equals(0)
    counted = (starts & (index < tables.num_new)).reshape(profile.new, 1, 1) & seen
    by_page = counted.cast(INT32).max(-1)
    return by_page.reshape(1, profile.new * profile.packed_slots).sum(-1).reshape(1)


def _sealed_pages(rules: PageRules, tokens: Expr) -> Expr:
    """Pages sealed once that many tokens are in the cache, int32 as tokens."""
    return (_page_of(rules, tokens - 1) - rules.recent // rules.page).at_least(0)


def _sealed(rules: PageRules, profile: Profile, tables: Tables, sealed: Expr) -> tuple[Expr, Expr, Expr]:
    """Tokens and ids of the pages to seal, and whether there are any; places without one repeat the first."""
    assert tables.packed is not None
    seals = profile.seals(rules)
    before = _sealed_pages(rules, tables.context)
    step = tables.context.recorder.constant(np.arange(seals, dtype=np.int32))
    pages = where(before + step < sealed, before + step, before)
    table = tables.packed.reshape(profile.packed_slots)
    ids = table.take(pages % profile.packed_slots, 0).at_least(0)
    start = (pages * rules.page + rules.sinks).unsqueeze(-1)
    orders = (start + np.arange(rules.page, dtype=np.int32)).reshape(seals * rules.page)
    hot = profile.ring_tokens(rules) + profile.sink_tokens(rules)
    fresh = (orders - tables.context).at_least(0).at_most(profile.new - 1) + hot
    tokens = where(orders < tables.context, _exact_slot(rules, profile, orders), fresh)
    return tokens, ids, before < sealed
