"""What each technique would do to the memory of a cache: fewer bits, a window with sinks, both."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from kvedge.targets.kinds import HotDtype, Kind
from kvedge.targets.plan import MemoryPlan, largest_context, plan_memory
from kvedge.targets.spec import CacheSpec, PageRules

USUAL_WINDOW = 4096


@dataclass(frozen=True, kw_only=True)
class Technique:
    """One way to keep a cache.

    Args:
        kind: None for a plain fp16 cache, as most engines have it.
        window: keys that a token sees besides the sinks; None for all.
        sinks: first tokens that are never forgotten.
        bits: bits of a stored key or value, scales and means counted.
        kv_bytes: all pools, for as many tokens as were planned.
        largest_context: most tokens a session that fit the memory that was named, None where none was.
        endless: whether a stream may go on for ever.
        is_this: whether it is what was planned.
    """

    kind: Kind | None
    window: int | None
    sinks: int
    bits: float
    kv_bytes: int
    largest_context: int | None
    endless: bool
    is_this: bool


def list_techniques(
    plan: MemoryPlan, whole: CacheSpec, left: int | None, all_kinds: Iterable[Kind] = tuple(Kind)
) -> list[Technique]:
    """A plain fp16 cache, then every kind without a window, then every kind with one.

    The window is the plan's own, else the usual one, or as much of it as the model has positions.

    Args:
        plan: what was planned.
        whole: its cache without a window, but for those that are part of the model.
        left: bytes for the cache, None for no limit.
        all_kinds: those that are listed.
    """
    window = _window(plan.cache, whole)
    caches = [whole, _with_rules(whole, lambda rules: _within(rules, window))]
    kinds = [_technique(plan, _with_kind(cache, kind), kind, left) for cache in caches for kind in all_kinds]
    return [_plain(plan, whole, left), *kinds]


def without_window(cache: CacheSpec) -> CacheSpec:
    """The cache of an artifact without its window.

    Layers that slide by themselves have no sinks, so they are known and keep theirs.
    """
    return _with_rules(cache, lambda rules: replace(rules, window=None) if rules.sinks else rules)


def _plain(plan: MemoryPlan, whole: CacheSpec, left: int | None) -> Technique:
    def fp16_bytes(context: int) -> int:
        return replace(plan, cache=whole, context=context).fp16_bytes

    return Technique(
        kind=None,
        window=None,
        sinks=0,
        bits=8 * HotDtype.FLOAT16.itemsize,
        kv_bytes=fp16_bytes(plan.context),
        largest_context=None if left is None else _largest(fp16_bytes, left, whole.max_positions),
        endless=False,
        is_this=False,
    )


def _technique(plan: MemoryPlan, cache: CacheSpec, kind: Kind, left: int | None) -> Technique:
    made = plan_memory(cache, context=plan.context, chunk=plan.chunk, sessions=plan.sessions)
    fits = None if left is None else largest_context(cache, max(left, 0), chunk=plan.chunk, sessions=plan.sessions)
    windows = [rules.window for rules in cache.groups]
    packing = next((layer for layer in cache.layers if layer.rules.packs), None)
    return Technique(
        kind=kind,
        window=None if None in windows else max(window for window in windows if window is not None),
        sinks=max(rules.sinks for rules in cache.groups),
        bits=packing.packed_layout.bits_per_value if packing else 8 * kind.hot_dtype.itemsize,
        kv_bytes=made.kv_bytes,
        largest_context=fits,
        endless=cache.is_endless,
        is_this=cache == plan.cache,
    )


def _largest(bytes_of: Callable[[int], int], memory: int, limit: int) -> int:
    """Largest number up to the limit whose bytes fit into memory; 0 if none do."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if bytes_of(middle) <= memory else (low, middle - 1)
    return low


def _with_kind(cache: CacheSpec, kind: Kind) -> CacheSpec:
    layers = (replace(layer, kind=kind, rules=replace(layer.rules, exact=kind.is_exact)) for layer in cache.layers)
    return replace(cache, layers=tuple(layers))


def _with_rules(cache: CacheSpec, change: Callable[[PageRules], PageRules]) -> CacheSpec:
    return replace(cache, layers=tuple(replace(layer, rules=change(layer.rules)) for layer in cache.layers))


def _within(rules: PageRules, window: int) -> PageRules:
    return replace(rules, window=window if rules.window is None else min(rules.window, window))


def _window(cache: CacheSpec, whole: CacheSpec) -> int:
    pairs = zip(cache.layers, whole.layers, strict=True)
    own = [layer.rules.window for layer, free in pairs if layer.rules.window not in (None, free.rules.window)]
    room = cache.max_positions - max(rules.sinks for rules in cache.groups)
    return max((window for window in own if window), default=max(1, min(USUAL_WINDOW, room)))
