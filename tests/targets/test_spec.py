"""The cache spec: what it refuses, what it counts, and that its capacities are enough and not too much."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import make_layer, make_rope

from kvedge.targets.errors import KvedgeError
from kvedge.targets.kinds import HotDtype, Kind, ValueScale
from kvedge.targets.settings import CacheSettings, parse_layer_kinds
from kvedge.targets.spec import CacheSpec, Capacity, LayerSpec, PageRules
from kvedge.targets.visibility import (
    hot_slot,
    is_visible,
    page_of,
    reads_packed,
    sealed_pages,
    sink_pages,
    window_start,
)

PAGE = 8


def make_rules(
    *, page: int = PAGE, sinks: int = 4, recent: int = PAGE, window: int | None = 40, exact: bool = False
) -> PageRules:
    return PageRules(page=page, sinks=sinks, recent=recent, window=window, exact=exact)


def make_spec(*layers: LayerSpec, max_positions: int = 1000) -> CacheSpec:
    numbered = tuple(replace(layer, index=index) for index, layer in enumerate(layers))
    return CacheSpec(max_positions=max_positions, layers=numbered, ropes=(make_rope(16),))


# ---- What is refused.

RECENT = "recent tokens; expected a positive multiple of the page size 8; got {}; change --recent or --page"
POSITIONS = (
    "window and sinks; expected together at most the model's 100 positions; got a window of {} and {} sinks; "
    "use a smaller --window or --sinks"
)
REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: make_rules(page=0), "page size; expected a multiple of 8 tokens; got 0"),
    (lambda: make_rules(page=-8), "page size; expected a multiple of 8 tokens; got -8"),
    (lambda: make_rules(page=12, recent=12), "page size; expected a multiple of 8 tokens; got 12"),
    (lambda: make_rules(sinks=-1), "sinks; expected 0 or more tokens; got -1"),
    (lambda: make_rules(recent=0), RECENT.format(0)),
    (lambda: make_rules(recent=4), RECENT.format(4)),
    (lambda: make_rules(recent=20), RECENT.format(20)),
    (lambda: make_rules(recent=-8), RECENT.format(-8)),
    (lambda: make_rules(window=0), "window; expected at least 1 token; got 0"),
    (lambda: make_rules(window=-3), "window; expected at least 1 token; got -3"),
    (lambda: make_layer(head_dim=20), "layer 0: head_dim; expected a positive multiple of 8; got 20"),
    (lambda: make_layer(heads=5), "layer 0: query heads; expected a positive multiple of 2; got 5"),
    (
        lambda: make_spec(make_layer(sinks=61), make_layer(window=None), max_positions=100),
        POSITIONS.format(40, 61),
    ),
    (lambda: make_spec(make_layer(window=101, sinks=0), max_positions=100), POSITIONS.format(101, 0)),
    (lambda: Kind.parse("int5"), "unknown KV kind; expected one of {}; got int5; choose another --kv"),
]


@pytest.mark.parametrize(("make", "text"), REFUSED)
def test_refused(make: Callable[[], object], text: str) -> None:
    known = ", ".join(kind.value for kind in Kind)
    with pytest.raises(KvedgeError) as caught:
        make()
    assert str(caught.value) == text.format(known)


SHAPES_REFUSED: list[dict[str, int]] = [
    {"head_dim": 0},
    {"head_dim": -8},
    {"kv_heads": 0},
    {"kv_heads": -2},
    {"heads": 0},
    {"heads": -2},
]


@pytest.mark.parametrize("sizes", SHAPES_REFUSED, ids=str)
def test_shapes_without_elements_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(KvedgeError, match="^layer 0: "):
        replace(make_layer(), **sizes)


def test_sinks_may_not_take_all_positions() -> None:
    with pytest.raises(KvedgeError, match="^window and sinks; expected together at most the model's 100 positions"):
        make_spec(make_layer(window=None, sinks=100), max_positions=100)


ALLOWED: list[Callable[[], object]] = [
    lambda: make_rules(sinks=0, window=1),
    lambda: make_spec(make_layer(window=60, sinks=40), max_positions=100),
    lambda: make_spec(make_layer(window=None, sinks=99), max_positions=100),
]


@pytest.mark.parametrize("make", ALLOWED)
def test_the_last_number_that_works(make: Callable[[], object]) -> None:
    make()


def test_kind_and_rules_must_agree() -> None:
    with pytest.raises(AssertionError):
        replace(make_layer(Kind.INT3), kind=Kind.FP)


KINDS = {
    "fp": (0, 0, ValueScale.LEAST_SQUARES),
    "fp16": (0, 0, ValueScale.LEAST_SQUARES),
    "int8": (8, 8, ValueScale.LEAST_SQUARES),
    "fp8": (8, 8, ValueScale.LEAST_SQUARES),
    "k8v4": (8, 4, ValueScale.LEAST_SQUARES),
    "int4": (4, 4, ValueScale.LEAST_SQUARES),
    "k4v3": (4, 3, ValueScale.LEAST_SQUARES),
    "int3": (3, 3, ValueScale.LEAST_SQUARES),
    "k4v2": (4, 2, ValueScale.UNBIASED),
    "k3v2": (3, 2, ValueScale.UNBIASED),
    "int2": (2, 2, ValueScale.LEAST_SQUARES),
}


def test_kinds() -> None:
    got = {kind.value: (kind.k_bits, kind.v_bits, kind.value_scale) for kind in Kind}
    assert got == KINDS
    for name in KINDS:
        kind = Kind.parse(name)
        assert kind.is_exact == (name in ("fp", "fp16")) and kind.has_floats == (name == "fp8")
        assert [kind.is_read_by(sm) for sm in (75, 87, 89, 120)] == [name != "fp8"] * 2 + [True] * 2
        assert kind.hot_dtype is (HotDtype.FLOAT32 if name == "fp" else HotDtype.FLOAT16)
        assert kind.hot_dtype.itemsize == np.dtype(kind.hot_dtype.value).itemsize


# ---- Groups, turns, bytes.


def some_layers() -> tuple[LayerSpec, ...]:
    """Three rules: a sliding window with sinks, one without, no window."""
    windowed, plain, endless = make_layer(), make_layer(sinks=0, window=16), make_layer(window=None)
    return (
        plain,
        windowed,
        replace(windowed, rope=1, head_dim=24),
        replace(windowed, rope=None),
        endless,
        plain,
        windowed,
    )


def test_groups_are_distinct_rules_by_first_use() -> None:
    spec = make_spec(*some_layers())
    assert [rules.window for rules in spec.groups] == [16, 40, None]
    assert [spec.group_of(layer) for layer in spec.layers] == [0, 1, 1, 1, 2, 0, 1]


def test_only_windows_with_sinks_turn_the_query() -> None:
    spec = make_spec(*some_layers())
    assert [spec.turn_of(layer) for layer in spec.layers] == [None, (1, 0), (1, 1), None, None, None, (1, 0)]
    assert spec.sink_turns == ((1, 0), (1, 1))


def test_a_stream_is_endless_when_every_layer_has_a_window() -> None:
    layers = some_layers()
    assert not make_spec(*layers).is_endless
    assert make_spec(*(layer for layer in layers if layer.rules.window)).is_endless


def test_bytes_are_the_sum_over_layers() -> None:
    layers = (*some_layers(), make_layer(Kind.FP))
    want = 0
    for layer in layers:
        capacity = layer.rules.capacity(200, 16)
        want += np.zeros(layer.hot_shape(capacity.hot_pages), layer.kind.hot_dtype.value).nbytes
        want += np.zeros(layer.packed_shape(capacity.packed_pages), np.int32).nbytes
    spec = make_spec(*layers)
    assert spec.cache_bytes(200, 16) == want


# ---- Packs.


@settings(deadline=None)
@given(
    sinks=st.integers(0, 12),
    recent=st.sampled_from((8, 16, 24)),
    window=st.none() | st.integers(1, 40),
    exact=st.booleans(),
)
def test_packs_means_that_some_visible_pair_is_read_packed(
    sinks: int, recent: int, window: int | None, exact: bool
) -> None:
    pairs = ((query, key) for query in range(sinks + 60) for key in range(query + 1))
    found = any(
        is_visible(query, key, sinks, window) and reads_packed(query, key, sinks, PAGE, recent) for query, key in pairs
    )
    rules = make_rules(sinks=sinks, recent=recent, window=window, exact=exact)
    assert rules.packs == (found and not exact)
    assert (rules.capacity(1000, 1).packed_pages > 0) == rules.packs


# ---- Capacity: a cache that remembers what it overwrote.


class LostError(Exception):
    """A token or page was needed after it had been overwritten."""


@dataclass
class Cache:
    """One session of one group, storing names instead of numbers.

    Every write of a token gets a new name, so that a token of a stream that was rolled back is not taken
    for its successor at the same order.
    """

    rules: PageRules
    capacity: Capacity
    num_tokens: int = 0
    high: int = 0
    names: dict[int, int] = field(default_factory=dict)
    hot: dict[tuple[int, int], int] = field(default_factory=dict)
    packed: dict[int, list[int]] = field(default_factory=dict)
    fresh: Iterator[int] = field(default_factory=itertools.count)

    @property
    def ring(self) -> int:
        return self.capacity.hot_pages - sink_pages(self.rules.sinks, self.rules.page)

    @property
    def free_to_roll_back(self) -> int:
        """The slack counts from the longest that the stream ever was."""
        return min(self.num_tokens, self.rules.slack - (self.high - self.num_tokens))

    def step(self, num_new: int) -> None:
        """Seal, attend, append."""
        first, last = self.num_tokens, self.num_tokens + num_new
        self.names.update((order, next(self.fresh)) for order in range(first, last))
        if self.rules.packs:
            self._seal(first, last)
        for query in range(first, last):
            self._attend(query, first)
        self._append(first, last)
        self.num_tokens, self.high = last, max(self.high, last)

    def roll_back(self, num_tokens: int) -> None:
        self.num_tokens -= num_tokens

    def _sealed(self, num_tokens: int) -> int:
        return sealed_pages(num_tokens, self.rules.sinks, self.rules.page, self.rules.recent)

    def _page_names(self, number: int) -> list[int]:
        start = self.rules.sinks + number * self.rules.page
        return [self.names[order] for order in range(start, start + self.rules.page)]

    def _seal(self, first: int, last: int) -> None:
        for number in range(self._sealed(first), self._sealed(last)):
            start = self.rules.sinks + number * self.rules.page
            for order in range(start, start + self.rules.page):
                self._read(order, first)
            self.packed[number % self.capacity.packed_pages] = self._page_names(number)

    def _attend(self, query: int, first: int) -> None:
        rules, seen = self.rules, set()
        window = range(window_start(query, rules.sinks, rules.window), query + 1)
        for key in (*range(min(rules.sinks, query + 1)), *window):
            if rules.packs and reads_packed(query, key, rules.sinks, rules.page, rules.recent):
                seen.add(page_of(key, rules.sinks, rules.page))
            else:
                self._read(key, first)
        for number in seen:
            if self.packed.get(number % self.capacity.packed_pages) != self._page_names(number):
                raise LostError(f"page {number} for query {query}")

    def _read(self, order: int, first: int) -> None:
        """A token is in the step, or in the hot pool."""
        slot = hot_slot(order, self.rules.sinks, self.rules.page, self.ring)
        if order < first and self.hot.get(slot) != self.names[order]:
            raise LostError(f"token {order} with {first} in the cache")

    def _append(self, first: int, last: int) -> None:
        for order in range(first, last):
            self.hot[hot_slot(order, self.rules.sinks, self.rules.page, self.ring)] = self.names[order]


some_rules = st.builds(
    make_rules,
    sinks=st.integers(0, 20),
    recent=st.sampled_from((8, 16, 24)),
    window=st.none() | st.integers(1, 50),
    exact=st.booleans(),
)


@settings(max_examples=300, deadline=None)
@given(
    rules=some_rules,
    chunk=st.integers(1, 40),
    context=st.integers(1, 150),
    moves=st.lists(st.integers(1, 40) | st.integers(-PAGE, -1), min_size=1, max_size=25),
)
def test_nothing_needed_is_ever_overwritten(rules: PageRules, chunk: int, context: int, moves: list[int]) -> None:
    """Any chunks, any rollbacks within the slack: positive moves are new tokens, negative ones rollbacks."""
    cache = Cache(rules, rules.capacity(context, chunk))
    for move in moves:
        room = 200 if rules.window else context - cache.num_tokens
        if move > 0:
            cache.step(min(move, chunk, room))
        else:
            cache.roll_back(min(-move, cache.free_to_roll_back))


@settings(max_examples=120, deadline=None)
@given(rules=some_rules, chunk=st.integers(1, 30), context=st.integers(1, 150))
def test_capacity_is_enough_and_at_most_two_pages_are_spare(rules: PageRules, chunk: int, context: int) -> None:
    """With three pages less of either kind the hardest stream loses something."""
    capacity = rules.capacity(context, chunk)
    limit = 400 if rules.window else context
    assert not loses(rules, capacity, chunk, limit)
    if capacity.hot_pages - sink_pages(rules.sinks, rules.page) > 3:
        assert loses(rules, replace(capacity, hot_pages=capacity.hot_pages - 3), chunk, limit)
    if capacity.packed_pages > 3:
        assert loses(rules, replace(capacity, packed_pages=capacity.packed_pages - 3), chunk, limit)


def loses(rules: PageRules, capacity: Capacity, chunk: int, limit: int) -> bool:
    """Whether the hardest stream fails: back by the whole slack, on in whole chunks, at every alignment."""
    cache = Cache(rules, capacity)
    try:
        for turn in itertools.count():
            is_last = cache.num_tokens == limit
            goal = min(cache.high + 1, limit)
            cache.roll_back(cache.free_to_roll_back)
            while cache.num_tokens < goal:
                cache.step(min(chunk, limit - cache.num_tokens))
            if is_last:
                return False
            cache.step(min(1 + turn % rules.page, chunk, limit - cache.num_tokens))
    except LostError:
        pass
    return True


def test_the_slack_counts_from_the_longest_stream() -> None:
    """Two rollbacks of a whole slack, with a token between them, reach back to what is gone."""
    rules = make_rules(recent=8, window=40)
    cache = Cache(rules, rules.capacity(1, 8))
    for _ in range(12):
        cache.step(8)
    cache.roll_back(8)
    cache.step(1)
    assert cache.free_to_roll_back == 1
    cache.roll_back(8)
    with pytest.raises(LostError):
        cache.step(1)


@given(rules=some_rules, chunk=st.integers(1, 100), context=st.integers(1, 200))
def test_capacities_are_page_counts(rules: PageRules, chunk: int, context: int) -> None:
    """At least one page in the ring and, where anything packs, in the packed pool: tables need a column."""
    capacity = rules.capacity(context, chunk)
    assert capacity.hot_pages > sink_pages(rules.sinks, rules.page)
    assert capacity.packed_pages >= rules.packs


@given(rules=some_rules, chunk=st.integers(1, 100), contexts=st.tuples(st.integers(1, 999), st.integers(1, 999)))
def test_capacity_grows_with_the_context_up_to_the_window(
    rules: PageRules, chunk: int, contexts: tuple[int, int]
) -> None:
    small, large = (rules.capacity(context, chunk) for context in sorted(contexts))
    if rules.window is None:
        assert small.hot_pages <= large.hot_pages and small.packed_pages <= large.packed_pages
    else:
        assert small == large


CAPACITIES: list[tuple[dict[str, Any], int, int, Capacity]] = [
    # rules, context, chunk, pages
    ({"page": 64, "sinks": 64, "recent": 128}, 4096, 64, Capacity(hot_pages=5, packed_pages=60)),
    (
        {"page": 64, "sinks": 64, "recent": 128, "window": 4096},
        9999,
        256,
        Capacity(hot_pages=5, packed_pages=67),
    ),
    (
        {"page": 64, "sinks": 4, "recent": 128, "window": 128},
        9999,
        256,
        Capacity(hot_pages=4, packed_pages=0),
    ),
    (
        {"page": 64, "sinks": 64, "recent": 128, "exact": True},
        4096,
        64,
        Capacity(hot_pages=64, packed_pages=0),
    ),
    (
        {"page": 64, "sinks": 0, "recent": 128, "window": 512, "exact": True},
        9999,
        64,
        Capacity(hot_pages=9, packed_pages=0),
    ),
]


@pytest.mark.parametrize(("rules", "context", "chunk", "want"), CAPACITIES)
def test_capacity_of_typical_settings(rules: dict[str, Any], context: int, chunk: int, want: Capacity) -> None:
    assert make_rules(**{"window": None} | rules).capacity(context, chunk) == want


def test_kinds_of_layers() -> None:
    found = parse_layer_kinds(["0, 4-6=int8", "5=fp"])
    assert found == ((0, Kind.INT8), (4, Kind.INT8), (5, Kind.FP), (6, Kind.INT8))
    chosen = CacheSettings(kind=Kind.INT3, layer_kinds=found)
    assert [chosen.of_layer(layer).kind for layer in (0, 1, 5)] == [Kind.INT8, Kind.INT3, Kind.FP]
    assert chosen.of_layer(3) == CacheSettings(kind=Kind.INT3)
    chosen.check_layers(7)


@pytest.mark.parametrize("option", ["", "=int3", "1", "a=int3", "1-=int3", "-1=int3", "1;2=int3"])
def test_what_names_no_layers(option: str) -> None:
    with pytest.raises(KvedgeError, match="^--kv-layer; expected layers and a kind"):
        parse_layer_kinds([option])
