"""The contents of a sequence's pages, by order of tokens and number of pages: independent of where they lay.

What is taken out is all that is still whole in the ring and the packed table. It can be put into tables of other
sizes (another chunk or context): those hold what the next step reads as well, or they could not run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvedge.runtime.backend import Backend
from kvedge.runtime.sequence import Sequence
from kvedge.runtime.table import GroupTables, Held
from kvedge.targets import names
from kvedge.targets.spec import CacheSpec

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class SavedPages:
    """All that a sequence has in the cache.

    Args:
        num_tokens: tokens in the cache.
        high: most tokens that may ever have been written.
        held: what the arrays hold, by group.
        arrays: hot.{i} [2, kv_heads, tokens, head_dim] and packed.{i} [pages, words] for layer i.
    """

    num_tokens: int
    high: int
    held: list[Held]
    arrays: Arrays


def take_pages(cache: CacheSpec, sequence: Sequence, backend: Backend) -> SavedPages:
    """Copies of what the tables of a sequence hold."""
    groups, held = sequence.groups, sequence.held(sequence.num_tokens, sequence.high)
    arrays: Arrays = {}
    places = [tables.hot_places(part.orders) for tables, part in zip(groups, held, strict=True)]
    for layer in cache.layers:
        group = cache.group_of(layer)
        ids, offsets = places[group]
        hot, packed = names.hot(layer.index), names.packed(layer.index)
        arrays[hot] = np.ascontiguousarray(backend.read_pool(hot)[ids, :, :, offsets].transpose(1, 2, 0, 3))
        if layer.rules.packs:
            arrays[packed] = backend.read_pool(packed)[groups[group].packed_places(held[group].packed)]
    return SavedPages(num_tokens=sequence.num_tokens, high=sequence.high, held=held, arrays=arrays)


def put_pages(cache: CacheSpec, sequence: Sequence, backend: Backend, pages: SavedPages) -> None:
    """Give an empty sequence what was taken from another, as far as its tables reach back."""
    groups, held = sequence.groups, sequence.held(pages.num_tokens, pages.high)
    for tables, part in zip(groups, held, strict=True):
        tables.hold(part)
    moves = [_moves(*each) for each in zip(groups, held, pages.held, strict=True)]
    for layer in cache.layers:
        move, hot, packed = moves[cache.group_of(layer)], names.hot(layer.index), names.packed(layer.index)
        tokens = pages.arrays[hot][:, :, move.tokens].transpose(2, 0, 1, 3)
        pool = backend.read_pool(hot)
        pool[move.hot_pages, :, :, move.offsets] = tokens
        backend.write_pool(hot, pool)
        if layer.rules.packs:
            pool = backend.read_pool(packed)
            pool[move.packed_pages] = pages.arrays[packed][move.rows]
            backend.write_pool(packed, pool)
    sequence.resume(pages.num_tokens, pages.high)


@dataclass(frozen=True)
class _Moves:
    """Which saved tokens and packed pages go where, for one group."""

    tokens: list[int]
    hot_pages: list[int]
    offsets: list[int]
    rows: list[int]
    packed_pages: list[int]


def _moves(tables: GroupTables, held: Held, saved: Held) -> _Moves:
    kept = [(at, order) for at, order in enumerate(saved.orders) if _holds(held, order)]
    hot_pages, offsets = tables.hot_places(order for _, order in kept)
    numbers = [number for number in saved.packed if number in held.packed]
    return _Moves(
        tokens=[at for at, _ in kept],
        hot_pages=hot_pages,
        offsets=offsets,
        rows=[number - saved.packed.start for number in numbers],
        packed_pages=tables.packed_places(numbers),
    )


def _holds(held: Held, order: int) -> bool:
    return order in held.sinks or order in held.ring
