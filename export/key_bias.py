"""Find attention layers whose key projection adds a bias that reaches the rotary embedding."""

from __future__ import annotations

import torch
from torch import nn

_KEY_PROJECTIONS = ("k_proj", "key", "qkv_proj", "query_key_value", "qkv", "Wqkv", "c_attn")
_KEY_NORMS = ("k_norm", "k_layernorm", "key_norm")


def biased_key_layers(model: nn.Module) -> tuple[int, ...]:
    """Numbers of the layers with a nonzero key bias. A norm behind the projection makes it harmless."""
    found = []
    for module in model.modules():
        layer = getattr(module, "layer_idx", None)
        children = dict(module.named_children())
        if isinstance(layer, int) and not any(name in children for name in _KEY_NORMS):
            biases = (getattr(children.get(name), "bias", None) for name in _KEY_PROJECTIONS)
            if any(isinstance(bias, torch.Tensor) and bool(bias.any()) for bias in biases):
                found.append(layer)
    return tuple(sorted(set(found)))
