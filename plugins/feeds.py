"""The small arrays that cross into the graph in one step: ids, counts, tables, rotary angles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvedge.plugins.rotary import rotary_table, turn_table
from kvedge.targets import names
from kvedge.targets.spec import CacheSpec, PageRules
from kvedge.targets.visibility import sink_shift, window_start

Feeds = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Row:
    """New tokens of one sequence.

    Args:
        ids: their token ids.
        context: tokens that the sequence holds already.
        hot: for each group of layers, the hot block table; packed: the packed one (empty where nothing is packed).
    """

    ids: Sequence[int]
    context: int
    hot: Sequence[Sequence[int]]
    packed: Sequence[Sequence[int]]


def build_feeds(cache: CacheSpec, rows: Sequence[Row], logits_index: Sequence[int]) -> Feeds:
    """Inputs of one step, pools apart. Rows shorter than the longest are padded at their end."""
    num_new = np.array([len(row.ids) for row in rows], np.int32)
    context = np.array([row.context for row in rows], np.int32)
    ids = np.zeros((len(rows), int(num_new.max())), np.int64)
    for line, row in zip(ids, rows, strict=True):
        line[: len(row.ids)] = row.ids
    feeds: Feeds = {
        names.INPUT_IDS: ids,
        names.LOGITS_INDEX: np.array(logits_index, np.int64),
        names.CONTEXT: context,
        names.NUM_NEW: num_new,
    }
    orders = context[:, None].astype(np.int64) + np.arange(ids.shape[1])
    return feeds | _tables(cache, rows) | _angles(cache, orders)


def _tables(cache: CacheSpec, rows: Sequence[Row]) -> Feeds:
    feeds: Feeds = {}
    for group, rules in enumerate(cache.groups):
        feeds[names.hot_table(group)] = np.array([row.hot[group] for row in rows], np.int32)
        if rules.packs:
            feeds[names.packed_table(group)] = np.array([row.packed[group] for row in rows], np.int32)
    return feeds


def _angles(cache: CacheSpec, orders: NDArray[np.int64]) -> Feeds:
    """Rotary tables of the new tokens (in plain text a token's position is its order), and sink turns."""
    feeds: Feeds = {}
    for number, rope in enumerate(cache.ropes):
        feeds[names.cos(number)], feeds[names.sin(number)] = rotary_table(rope, orders)
    for group, number in cache.sink_turns:
        turn = turn_table(cache.ropes[number], sink_shifts(cache.groups[group], orders))
        feeds[names.sink_cos(group, number)], feeds[names.sink_sin(group, number)] = turn
    return feeds


def sink_shifts(rules: PageRules, orders: NDArray[np.int64]) -> NDArray[np.int64]:
    """How far each query is turned towards the sinks."""
    return np.array([[_shift(rules, order) for order in row] for row in orders.tolist()], np.int64)


def _shift(rules: PageRules, order: int) -> int:
    oldest = window_start(order, rules.sinks, rules.window)
    return 0 if order < oldest else sink_shift(order, oldest, rules.sinks - 1)
