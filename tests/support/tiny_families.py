"""Tiny random models of several families, and their originals reading what a cache keeps.

The oracle runs the Hugging Face model in float64 with an attention of its own: a mask per layer, and sink columns
scored with the query turned back, as P1 and P5 of the design say.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from kvedge.export.attention import using_attention
from kvedge.export.source import LoadedModel
from kvedge.targets.spec import CacheSpec, LayerSpec, RopeSpec

VOCAB = 512
LAYERS = 2
ORACLE = "family_oracle"


@dataclass(frozen=True)
class Family:
    """Changes to the tiny config, and what the trace must find."""

    changes: dict[str, object] = field(default_factory=dict)
    windows: tuple[int, int] = (0, 0)
    layer_rope: tuple[int | None, int | None] = (0, 0)
    pairs: int = 8
    interleaved: bool = False


SLIDING_FIRST: dict[str, object] = {
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 7,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
FAMILIES = {
    "llama": Family({"tie_word_embeddings": True, "rope_parameters": YARN}),
    "qwen2": Family(),
    "qwen3": Family({"head_dim": 32}, pairs=16),
    "mistral": Family({"sliding_window": 7}, windows=(7, 7)),
    "gemma3_text": Family(
        {**SLIDING_FIRST, "head_dim": 32, "query_pre_attn_scalar": 24},
        windows=(7, 0),
        layer_rope=(0, 1),
        pairs=16,
    ),
    "phi3": Family(
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        pairs=4,
    ),
    "smollm3": Family({"no_rope_layers": [0, 1]}, layer_rope=(None, 0)),
    "glm4": Family({"head_dim": 16}, pairs=4, interleaved=True),
}


def tiny_config(model_type: str, **changes: object) -> PretrainedConfig:
    """A config of a few hundred thousand weights."""
    sizes: dict[str, object] = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return AutoConfig.for_model(model_type, **{**sizes, **changes})


def tiny_model(model_type: str, **changes: object) -> LoadedModel:
    """A random model whose attention matters: with default weights, position and mask bugs hide."""
    config = tiny_config(model_type, **changes)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    gains = {"q_proj": 6.0, "k_proj": 6.0, "v_proj": 4.0, "o_proj": 4.0, "qkv_proj": 5.0}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter *= gains.get(name.split(".")[-2], 1.0)
            if name.endswith("bias") or "norm" in name:
                parameter += 0.1 * torch.randn_like(parameter)
    return LoadedModel(model, None, model_type, model.config)


def oracle_logits(loaded: LoadedModel, cache: CacheSpec, ids: np.ndarray) -> np.ndarray:
    """Logits [len(ids), vocab] of the original in float64."""
    model = loaded.model.double()
    try:
        with _oracle(model, cache), torch.no_grad():
            return model(input_ids=torch.from_numpy(ids)[None], use_cache=False).logits[0].numpy()
    finally:
        loaded.model.float()


@contextmanager
def _oracle(model: torch.nn.Module, cache: CacheSpec) -> Iterator[None]:
    layers = {layer.index: layer for layer in cache.layers}

    def attend(module, query, key, value, mask, **_):  # type: ignore[no-untyped-def]
        return _attend(layers[module.layer_idx], cache, query.double(), key.double(), value.double()), None

    ALL_ATTENTION_FUNCTIONS.register(ORACLE, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(ORACLE, lambda **_: None)
    with using_attention(model, ORACLE):
        yield


def _attend(layer: LayerSpec, cache: CacheSpec, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Output [B, N, Q, D] of q [B, Q, N, D], k and v [B, H, N, D]."""
    k, v = (x.repeat_interleave(layer.heads // layer.kv_heads, 1) for x in (k, v))
    order, sinks = torch.arange(q.shape[2]), layer.rules.sinks
    oldest = torch.full_like(order, sinks)
    if layer.rules.window is not None:
        oldest = (order - layer.rules.window + 1).clamp_min(sinks)
    scores = q @ k.transpose(-1, -2)
    if layer.rope is not None and sinks:
        turned = _turn(q, oldest - sinks, cache.ropes[layer.rope]) @ k.transpose(-1, -2)
        scores = torch.where(order < sinks, turned, scores)
    scores = scores * layer.scale
    if layer.softcap:
        scores = layer.softcap * torch.tanh(scores / layer.softcap)
    seen = (order <= order[:, None]) & ((order < sinks) | (order >= oldest[:, None]))
    return (scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v).transpose(1, 2)


def _turn(q: torch.Tensor, shift: torch.Tensor, rope: RopeSpec) -> torch.Tensor:
    """Queries turned back by `shift` [N] positions, through complex numbers."""
    size = 2 * rope.pairs
    rotary, rest = q[..., :size], q[..., size:]
    pairs = rotary.unflatten(-1, (-1, 2)) if rope.interleaved else rotary.unflatten(-1, (2, -1)).transpose(-1, -2)
    angle = -shift[:, None].double() * torch.tensor(rope.inv_freq, dtype=torch.float64)
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones_like(angle), angle))
    turned = turned if rope.interleaved else turned.transpose(-1, -2)
    return torch.cat([turned.flatten(-2), rest], -1)
