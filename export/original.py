"""Logits of the original model, as it is or forgetting what a cache forgets.

While a cache has not forgotten anything, the original is run untouched. Past that, its attention is replaced by
one that reads the rules of the cache literally: every token sees the sinks and its window, and its query is
turned back before it scores the sinks, so that they seem to stand right before the window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from kvedge.export.attention import probe_attention, using_attention
from kvedge.export.logits_of import logits_of
from kvedge.export.source import LoadedModel
from kvedge.targets.spec import CacheSpec, LayerSpec, RopeSpec
from kvedge.targets.visibility import window_start

FORGETTING = "kvedge_forgetting"


class Original:
    """The model that an artifact was made from, next to the artifact's cache."""

    def __init__(self, loaded: LoadedModel, cache: CacheSpec) -> None:
        self.loaded, self._cache = loaded, cache
        native = {layer: call.window for layer, call in probe_attention(loaded.model).calls.items()}
        shrunk = [layer.rules for layer in cache.layers if layer.rules.window not in (None, native.get(layer.index))]
        self._reach = min((rules.span(cache.max_positions) + rules.sinks for rules in shrunk), default=None)

    def forgets(self, tokens: int) -> bool:
        """Whether the cache forgets anything of so many tokens that the model by itself does not."""
        return self._reach is not None and tokens > self._reach

    @property
    def reach(self) -> int:
        """Tokens up to which the model needs no help to see what the cache keeps."""
        return self._cache.max_positions if self._reach is None else self._reach

    def logits(self, ids: Sequence[int], positions: Sequence[int]) -> NDArray[np.float32]:
        """Logits [len(positions), vocab] at some positions, with the cache's windows and sinks where they matter."""
        if not self.forgets(len(ids)):
            return self._run(ids, positions)
        ALL_ATTENTION_FUNCTIONS.register(FORGETTING, _Forgetting(self._cache))
        ALL_MASK_ATTENTION_FUNCTIONS.register(FORGETTING, _no_mask)
        with using_attention(self.loaded.model, FORGETTING):
            return self._run(ids, positions)

    def _run(self, ids: Sequence[int], positions: Sequence[int]) -> NDArray[np.float32]:
        model, wanted = self.loaded.model, torch.tensor(list(positions))
        with torch.no_grad(), _fixed_longrope(model, self._cache.ropes), logits_of(model, wanted):
            logits = model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]
        return np.asarray(logits.float().numpy())


@contextmanager
def _fixed_longrope(model: nn.Module, ropes: tuple[RopeSpec, ...]) -> Iterator[None]:
    """Longrope picks its factors by the length of a text; a cache has them chosen once. Make both choices that one."""
    modules = [module for module in model.modules() if getattr(module, "rope_type", None) == "longrope"]
    names = ("original_inv_freq", "long_inv_freq")
    before = [(module, name, getattr(module, name, None)) for module in modules for name in names]
    try:
        for module, name, _ in before:
            setattr(module, name, torch.tensor(ropes[0].inv_freq))
        yield
    finally:
        for module, name, old in before:
            setattr(module, name, old)


def _no_mask(**_: object) -> None:
    """The attention function masks by itself."""


class _Forgetting:
    """An attention function for transformers."""

    def __init__(self, cache: CacheSpec) -> None:
        self._cache = cache
        self._layers = {layer.index: layer for layer in cache.layers}

    def __call__(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, _mask: object, **_: object
    ) -> tuple[Tensor, None]:
        layer = self._layers[int(str(module.layer_idx))]
        group = query.shape[1] // key.shape[1]
        key, value = (tensor.repeat_interleave(group, 1).double() for tensor in (key, value))
        scores = self._scores(query.double(), key, layer) * layer.scale
        if layer.softcap:
            scores = layer.softcap * (scores / layer.softcap).tanh()
        weights = scores.masked_fill(~_visible(layer, query.shape[2]), float("-inf")).softmax(-1)
        return (weights @ value).to(query.dtype).transpose(1, 2), None

    def _scores(self, query: Tensor, key: Tensor, layer: LayerSpec) -> Tensor:
        plain = query @ key.transpose(-1, -2)
        if self._cache.turn_of(layer) is None or layer.rope is None:
            return plain
        tokens, sinks = query.shape[2], layer.rules.sinks
        turned = turn_back(query, _starts(layer, tokens) - sinks, self._cache.ropes[layer.rope])
        return torch.where(torch.arange(tokens) < sinks, turned @ key.transpose(-1, -2), plain)


def _starts(layer: LayerSpec, tokens: int) -> Tensor:
    """Oldest token outside the sinks that each query sees."""
    rules = layer.rules
    return torch.tensor([window_start(order, rules.sinks, rules.window) for order in range(tokens)])


def _visible(layer: LayerSpec, tokens: int) -> Tensor:
    keys, queries = torch.arange(tokens), torch.arange(tokens)[:, None]
    return (keys <= queries) & ((keys < layer.rules.sinks) | (keys >= _starts(layer, tokens)[:, None]))


def turn_back(query: Tensor, positions: Tensor, rope: RopeSpec) -> Tensor:
    """Queries [..., N, D] as if each stood so many positions [N] earlier; a pure rotation."""
    angle = -positions[:, None].double() * torch.tensor(rope.inv_freq, dtype=torch.float64)
    cos, sin, pairs = angle.cos(), angle.sin(), rope.pairs
    turned = query.clone()
    first = slice(0, 2 * pairs, 2) if rope.interleaved else slice(0, pairs)
    second = slice(1, 2 * pairs, 2) if rope.interleaved else slice(pairs, 2 * pairs)
    a, b = query[..., first], query[..., second]
    turned[..., first], turned[..., second] = a * cos - b * sin, b * cos + a * sin
    return turned
