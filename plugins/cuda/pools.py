"""Pools full of random pages on a device, to time attention over them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from kvedge.plugins.cuda.attention import Attention
from kvedge.plugins.cuda.constants import PAGES_A_SPLIT
from kvedge.plugins.cuda.sized_layer import make_layer
from kvedge.plugins.cuda.step_tensors import StepTensors
from kvedge.plugins.cuda.variants import LayerForm
from kvedge.plugins.step import PagedStep
from kvedge.targets.kinds import Kind
from kvedge.targets.spec import DEFAULT_PAGE, LayerSpec


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One new token of each of `batch` sequences after `tokens` others, in one layer."""

    kind: Kind
    batch: int
    tokens: int
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    device: str = "cuda"

    @property
    def layer(self) -> LayerSpec:
        """The layer."""
        return make_layer(self.kind, self.heads, self.kv_heads, self.head_dim, DEFAULT_PAGE)


def packed_bytes(problem: Problem) -> int:
    """Bytes that a step reads: packed pages and exact ones."""
    layer, capacity = problem.layer, problem.layer.rules.capacity(problem.tokens + 1, 1)
    token = 2 * layer.kv_heads * layer.head_dim * layer.kind.hot_dtype.itemsize
    if not layer.rules.packs:
        return problem.batch * problem.tokens * token
    exact = layer.rules.sinks + layer.rules.recent + layer.rules.page
    return problem.batch * (capacity.packed_pages * layer.packed_layout.page_bytes + exact * token)


def attention_over(problem: Problem, seed: int) -> Attention:
    """Attention over pools of its own."""
    torch.manual_seed(seed)
    layer, device, batch = problem.layer, problem.device, problem.batch
    capacity = layer.rules.capacity(problem.tokens + 1, 1)
    new: dict[str, Any] = {
        name: torch.randn(batch, heads, 1, layer.head_dim, device=device)
        for name, heads in (("q", layer.heads), ("k", layer.kv_heads), ("v", layer.kv_heads))
    }
    shape = layer.hot_shape(batch * capacity.hot_pages)
    step = PagedStep(
        **new,
        hot=_pool(torch.randn(shape, device=device).to(getattr(torch, layer.kind.hot_dtype.value))),
        packed=_packed(layer, batch * capacity.packed_pages, device),
        hot_table=_table(batch, capacity.hot_pages, device),
        packed_table=_table(batch, capacity.packed_pages, device) if layer.rules.packs else None,
        context=_pool(torch.full((batch,), problem.tokens, dtype=torch.int32, device=device)),
        num_new=_pool(torch.ones(batch, dtype=torch.int32, device=device)),
    )
    form = LayerForm(layer=layer, rotary_pairs=0, interleaved=False, bias_pairs=0)
    return Attention(StepTensors(layer, step, device), form, PAGES_A_SPLIT)


def _pool(tensor: torch.Tensor) -> Any:
    """A tensor where PagedStep names an array."""
    return tensor


def _table(batch: int, slots: int, device: str) -> Any:
    return torch.randperm(batch * slots, device=device).to(torch.int32).reshape(batch, slots)


def _packed(layer: LayerSpec, pages: int, device: str) -> Any:
    """Random codes with scales of 0.5 and means of 0."""
    if not layer.rules.packs:
        return None
    at = layer.packed_layout
    words = torch.randint(-(2**31), 2**31 - 1, layer.packed_shape(pages), dtype=torch.int32, device=device)
    heads = words.view(pages * layer.kv_heads, at.head_words)
    heads[:, at.k_scales : at.k_mean] = 0x38003800
    heads[:, at.k_mean :] = 0
    return words
