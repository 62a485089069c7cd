"""Find the bias that attention layers add to their keys in front of the rotary embedding.

By experiment, not by the names of projections: every attention layer is fed zeros, and the key at position 0
is what it adds by itself. Where keys are normalized afterwards that is no plain sum; those biases are left to
the page mean, since normalized keys are never large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from kvedge.export.attention import probe_attention
from kvedge.targets.spec import RopeSpec

Hidden = Callable[[Tensor], Tensor]
"""Makes an attention layer's input from the one it would get."""

LARGE_BIAS = 4.0
"""Root mean square of a head's bias that is worth a word: keys themselves are about 1 a channel."""

_TOLERANCE = 1e-3  # of the largest key, for sums to count as equal


def key_biases(model: PreTrainedModel, layer_rope: dict[int, RopeSpec]) -> dict[int, NDArray[np.float32]]:
    """Bias [H, D] float32 of each layer that adds one, by layer number; before the rotary embedding and its scaling.

    `layer_rope` names the layers that have a rotary embedding.
    """
    at_zero = _first_keys(model, torch.zeros_like)
    if not any(bool(key.abs().max() > 0) for key in at_zero.values()):
        return {}
    once, other, both = (_first_keys(model, hidden) for hidden in (_ramp, _wave, lambda x: _ramp(x) + _wave(x)))
    found = {}
    for layer, rope in layer_rope.items():
        bias = at_zero[layer]
        excess = (both[layer] - once[layer] - other[layer] + bias).abs().max()
        if bool(bias.abs().max() > 0) and bool(excess <= _TOLERANCE * both[layer].abs().max()):
            found[layer] = (bias / rope.attention_scaling).numpy()
    return found


def large_biases(biases: dict[int, NDArray[np.float32]]) -> dict[int, float]:
    """Largest norm of a head's bias, for the layers where it is large."""
    norms = {layer: float(np.linalg.norm(bias, axis=-1).max()) for layer, bias in biases.items()}
    return {layer: norm for layer, norm in norms.items() if norm > LARGE_BIAS * biases[layer].shape[-1] ** 0.5}


def _first_keys(model: PreTrainedModel, hidden: Hidden) -> dict[int, Tensor]:
    """Keys [H, D] of all layers at position 0, their attention fed with `hidden`."""
    with _fed(model, hidden):
        return {layer: call.k[0, :, 0].clone() for layer, call in probe_attention(model).calls.items()}


@contextmanager
def _fed(model: nn.Module, hidden: Hidden) -> Iterator[None]:
    def replace(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if "hidden_states" in kwargs:
            return args, kwargs | {"hidden_states": hidden(kwargs["hidden_states"])}
        return (hidden(args[0]), *args[1:]), kwargs

    handles = [module.register_forward_pre_hook(replace, with_kwargs=True) for module in _attention_layers(model)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _attention_layers(model: nn.Module) -> Iterator[nn.Module]:
    """Modules with a layer number that hold no other such module."""
    for module in model.modules():
        below = (child for child in module.modules() if child is not module)
        if _is_numbered(module) and not any(_is_numbered(child) for child in below):
            yield module


def _is_numbered(module: nn.Module) -> bool:
    return isinstance(getattr(module, "layer_idx", None), int)


def _ramp(x: Tensor) -> Tensor:
    return torch.linspace(-1, 1, x.shape[-1]).expand_as(x)


def _wave(x: Tensor) -> Tensor:
    return torch.sin(torch.arange(x.shape[-1])).expand_as(x)
