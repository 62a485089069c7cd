"""Memory before you run: what the pools of a cache take, layer by layer, by the same formula that allocates them."""

from __future__ import annotations

from dataclasses import dataclass

from kvedge.targets.spec import CacheSpec, LayerSpec

DEFAULT_CHUNK = 256
"""New tokens that one prefill step takes at most."""


@dataclass(frozen=True, kw_only=True)
class LayerPlan:
    """Bytes of one layer's pools, for all sessions."""

    layer: LayerSpec
    hot_pages: int
    packed_pages: int

    @property
    def hot_bytes(self) -> int:
        """Bytes of sinks and ring."""
        return self.hot_pages * self.layer.hot_page_bytes

    @property
    def packed_bytes(self) -> int:
        """Bytes of packed pages."""
        return self.packed_pages * self.layer.packed_layout.page_bytes if self.packed_pages else 0


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Pools of a cache for `sessions` sessions of at most `context` tokens, `chunk` new ones a step."""

    cache: CacheSpec
    context: int
    chunk: int
    sessions: int
    layers: tuple[LayerPlan, ...]

    @property
    def hot_bytes(self) -> int:
        """Full-precision pages of all layers."""
        return sum(layer.hot_bytes for layer in self.layers)

    @property
    def packed_bytes(self) -> int:
        """Packed pages of all layers."""
        return sum(layer.packed_bytes for layer in self.layers)

    @property
    def kv_bytes(self) -> int:
        """All pools."""
        return self.hot_bytes + self.packed_bytes

    @property
    def visible_tokens(self) -> int:
        """Tokens that the widest layer sees at most."""
        return max(min(self.context, rules.span(self.context) + rules.sinks) for rules in self.cache.groups)

    @property
    def fp16_bytes(self) -> int:
        """What plain fp16 caches of the tokens that each layer sees would take."""
        return self.sessions * sum(
            layer.fp16_token_bytes * min(self.context, layer.rules.span(self.context) + layer.rules.sinks)
            for layer in self.cache.layers
        )


def plan_memory(cache: CacheSpec, *, context: int, chunk: int = DEFAULT_CHUNK, sessions: int = 1) -> MemoryPlan:
    """Plan of the pools. With a window in every layer the context makes no difference."""
    context = cache.max_positions if cache.is_endless else context
    return MemoryPlan(
        cache=cache,
        context=context,
        chunk=chunk,
        sessions=sessions,
        layers=tuple(_plan_layer(layer, context, chunk, sessions) for layer in cache.layers),
    )


def _plan_layer(layer: LayerSpec, context: int, chunk: int, sessions: int) -> LayerPlan:
    capacity = layer.rules.capacity(context, chunk)
    return LayerPlan(
        layer=layer, hot_pages=sessions * capacity.hot_pages, packed_pages=sessions * capacity.packed_pages
    )


def second_pool_bytes(plan: MemoryPlan) -> int:
    """Bytes that an engine needs besides those of the plan where a step does not write its pools in place.

    Every pool is then an input and an output with a buffer each, and the two change places after the step: ScatterND
    of a graph without plugins copies a pool and writes into the copy. All of a step's inputs and outputs live at once.
    """
    return plan.kv_bytes


def largest_context(cache: CacheSpec, memory: int, *, chunk: int = DEFAULT_CHUNK, sessions: int = 1) -> int:
    """Most tokens a session, up to the model's positions, whose pools fit in `memory` bytes; 0 if none do."""
    low, high = 0, cache.max_positions
    while low < high:
        middle = (low + high + 1) // 2
        fits = plan_memory(cache, context=middle, chunk=chunk, sessions=sessions).kv_bytes <= memory
        low, high = (middle, high) if fits else (low, middle - 1)
    return low
