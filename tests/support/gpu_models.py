"""Tiny models as artifacts whose weights are floats, halves or blocks of the same values; each traced once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from tiny_families import FAMILIES, SLIDING_FIRST, Family, tiny_model
from tiny_models import tiny_llama

from kvedge.export import artifact
from kvedge.export.fuse import fuse_for_ort
from kvedge.export.quantize import quantize_model
from kvedge.export.settings import CacheSettings, make_spec
from kvedge.export.source import LoadedModel
from kvedge.export.stamp import stamp
from kvedge.export.trace import TracedModel, trace
from kvedge.export.weights import store_half
from kvedge.plugins.reference.linear import Blocks
from kvedge.targets.kinds import Kind
from kvedge.targets.settings import WeightType
from kvedge.targets.spec import CacheSpec

LLAMA, KEY_BIAS = "tiny llama", "qwen2 with a key bias"
MODELS = {**FAMILIES, "gemma2": Family({**SLIDING_FIRST, "head_dim": 32, "attn_logit_softcapping": 20.0})}
POSITIONS = 128


@dataclass(frozen=True)
class Traced:
    """A model whose weights lie on lattices of 4 bits, so that blocks of either width keep them."""

    loaded: LoadedModel
    traced: TracedModel
    blocks: Mapping[WeightType, Mapping[str, Blocks]]


@cache
def traced_model(name: str) -> Traced:
    """One of MODELS, LLAMA or KEY_BIAS."""
    loaded = _loaded(name)
    blocks = {}
    for weights in (WeightType.INT4, WeightType.INT8):
        quantized = quantize_model(loaded.model, weights)
        assert quantized is not None
        blocks[weights] = quantized.blocks
    return Traced(loaded, trace(loaded), blocks)


def _loaded(name: str) -> LoadedModel:
    if name == LLAMA:
        return tiny_llama(max_positions=POSITIONS)
    if name != KEY_BIAS:
        return tiny_model(name, **MODELS[name].changes)
    loaded = tiny_model("qwen2")
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter, value in loaded.model.named_parameters():
            if parameter.endswith("k_proj.bias"):
                value += 4 * torch.randn_like(value)
    return loaded


def write(name: str, kind: Kind, weights: WeightType, folder: Path, window: int | None = 37) -> CacheSpec:
    """Write a graph and its weights; the cache that it was stamped with."""
    made = traced_model(name)
    copy = replace(made.traced, model=made.traced.model.clone())
    fuse_for_ort(copy, made.blocks.get(weights, {}))
    if weights is WeightType.FP16:
        store_half(copy.model)
    spec = make_spec(copy, CacheSettings(kind=kind, window=window, sinks=4, recent=16, page=8), POSITIONS)
    folder.mkdir(parents=True, exist_ok=True)
    artifact.write_graph(stamp(copy, spec), folder)
    return spec
