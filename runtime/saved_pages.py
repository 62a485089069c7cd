"""The contents of a sequence's pages, by order of tokens and number of pages: independent of where they lay.

What is taken out is all that is still whole in the ring and the packed table. It can be put into tables of other
sizes (another chunk or context): those hold what the next step reads as well, or they could not run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvedge.runtime.sequence import Sequence
from kvedge.runtime.table import Held
from kvedge.targets import names
from kvedge.targets.spec import CacheSpec

Arrays = dict[str, NDArray[Any]]
Pools = Mapping[str, NDArray[Any]]


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


def take_pages(cache: CacheSpec, sequence: Sequence, pools: Pools) -> SavedPages:
    """Copies of what the tables of a sequence hold."""
    groups, held = sequence.groups, sequence.held(sequence.num_tokens, sequence.high)
    arrays: Arrays = {}
    for layer in cache.layers:
        group = cache.group_of(layer)
        ids, offsets = groups[group].hot_places(held[group].orders)
        hot, packed = names.hot(layer.index), names.packed(layer.index)
        arrays[hot] = np.ascontiguousarray(pools[hot][ids, :, :, offsets].transpose(1, 2, 0, 3))
        if layer.rules.packs:
            arrays[packed] = pools[packed][groups[group].packed_places(held[group].packed)]
    return SavedPages(num_tokens=sequence.num_tokens, high=sequence.high, held=held, arrays=arrays)


def put_pages(cache: CacheSpec, sequence: Sequence, pools: Pools, pages: SavedPages) -> None:
    """Give an empty sequence what was taken from another, as far as its tables reach back."""
    groups, held = sequence.groups, sequence.held(pages.num_tokens, pages.high)
    saved, arrays = pages.held, pages.arrays
    for group, tables in enumerate(groups):
        tables.hold(held[group])
    for layer in cache.layers:
        group = cache.group_of(layer)
        hot, packed = names.hot(layer.index), names.packed(layer.index)
        kept = [at for at, order in enumerate(saved[group].orders) if _holds(held[group], order)]
        ids, offsets = groups[group].hot_places(saved[group].orders[at] for at in kept)
        pools[hot][ids, :, :, offsets] = arrays[hot][:, :, kept].transpose(2, 0, 1, 3)
        if layer.rules.packs:
            numbers = [number for number in saved[group].packed if number in held[group].packed]
            rows = [number - saved[group].packed.start for number in numbers]
            pools[packed][groups[group].packed_places(numbers)] = arrays[packed][rows]
    sequence.resume(pages.num_tokens, pages.high)


def _holds(held: Held, order: int) -> bool:
    return order in held.sinks or order in held.ring
