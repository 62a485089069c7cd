"""The shapes that an engine is built for: one range for every input of the graph, for decode steps and for prefill.

One engine serves both, with its weights in memory once: a decode step brings one token of each session, a prefill step
up to a chunk of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvedge.targets import names
from kvedge.targets.errors import require
from kvedge.targets.plan import MemoryPlan, plan_memory
from kvedge.targets.spec import CacheSpec

_MOST_ROWS = 16


@dataclass(frozen=True, kw_only=True)
class StepLimits:
    """What page pools, block tables and profiles are made for.

    Args:
        context: tokens of a stream at most, where a layer has no window.
        chunk: new tokens of a step at most, in each session.
        sessions: sessions that share the pools, all of them in one step at most.

    Raises:
        KvedgeError: a number below 1.
    """

    context: int
    chunk: int
    sessions: int

    @property
    def rows(self) -> int:
        """Tokens of a step that get logits at most, in each session: a vocabulary is wide, and only one is sampled."""
        return min(self.chunk, _MOST_ROWS)

    def __post_init__(self) -> None:
        for name, number in (("context", self.context), ("chunk", self.chunk), ("sessions", self.sessions)):
            require(number > 0, name, expected="at least 1", got=number)


def limits_plan(cache: CacheSpec, limits: StepLimits) -> MemoryPlan:
    """The pools of these sizes, each counted once."""
    return plan_memory(cache, context=limits.context, chunk=limits.chunk, sessions=limits.sessions)


Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Range:
    """Shapes of one input: the least, the one to be fast at, and the most."""

    least: Shape
    usual: Shape
    most: Shape


Profile = dict[str, Range]

PROFILES = DECODE, PREFILL = "decode", "prefill"
"""In the order in which an engine numbers them."""


def profiles(cache: CacheSpec, limits: StepLimits) -> dict[str, Profile]:
    """Ranges of all inputs of a graph with this cache, by profile and by name."""
    return {
        DECODE: _profile(cache, limits, _Sizes(batch=_up_to(limits.sessions), new=_ONE, rows=_ONE)),
        PREFILL: _profile(
            cache,
            limits,
            _Sizes(batch=(1, 1, limits.sessions), new=_up_to(limits.chunk), rows=(1, 1, limits.rows)),
        ),
    }


def token_range(profile: Profile, widths: Shape) -> Range:
    """Range of a value [B, N, *widths] of the new tokens in a profile."""
    ids = profile[names.INPUT_IDS]
    return Range(least=(*ids.least, *widths), usual=(*ids.usual, *widths), most=(*ids.most, *widths))


_Sides = tuple[int, int, int]
"""Least, usual and most of one dimension."""

_ONE: _Sides = (1, 1, 1)


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """Dimensions that are known at run time only."""

    batch: _Sides
    new: _Sides
    rows: _Sides


def _up_to(most: int) -> _Sides:
    return 1, most, most


def _profile(cache: CacheSpec, limits: StepLimits, sizes: _Sizes) -> Profile:
    fixed = {
        names.INPUT_IDS: _range(sizes.batch, sizes.new),
        names.LOGITS_INDEX: _range(sizes.rows),
        names.CONTEXT: _range(sizes.batch),
        names.NUM_NEW: _range(sizes.batch),
    }
    return fixed | _tables(cache, limits, sizes) | _pools(cache, limits) | _angles(cache, sizes)


def _tables(cache: CacheSpec, limits: StepLimits, sizes: _Sizes) -> Profile:
    found = {}
    for group, rules in enumerate(cache.groups):
        pages = rules.capacity(limits.context, limits.chunk)
        found[names.hot_table(group)] = _range(sizes.batch, pages.hot_pages)
        if rules.packs:
            found[names.packed_table(group)] = _range(sizes.batch, pages.packed_pages)
    return found


def _pools(cache: CacheSpec, limits: StepLimits) -> Profile:
    found = {}
    plan = limits_plan(cache, limits)
    for pool in plan.layers:
        layer = pool.layer
        found[names.hot(layer.index)] = _range(*layer.hot_shape(pool.hot_pages))
        if layer.rules.packs:
            found[names.packed(layer.index)] = _range(*layer.packed_shape(pool.packed_pages))
    return found


def _angles(cache: CacheSpec, sizes: _Sizes) -> Profile:
    found = {}
    for number, rope in enumerate(cache.ropes):
        for name in (names.cos(number), names.sin(number)):
            found[name] = _range(sizes.batch, sizes.new, rope.pairs)
    for group, number in cache.sink_turns:
        for name in (names.sink_cos(group, number), names.sink_sin(group, number)):
            found[name] = _range(sizes.batch, sizes.new, cache.ropes[number].pairs)
    return found


def _range(*dims: _Sides | int) -> Range:
    least, usual, most = zip(*((dim, dim, dim) if isinstance(dim, int) else dim for dim in dims), strict=True)
    return Range(least=least, usual=usual, most=most)
