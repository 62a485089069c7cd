"""Layers that share their kernels: those of one form, by number. No Triton is needed to tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvedge.targets.kinds import Kind
from kvedge.targets.spec import CacheSpec, LayerSpec


@dataclass(frozen=True, kw_only=True)
class Form:
    """All of a layer that its kernels are compiled for; window, sinks, recent tokens and scale are arguments.

    Args:
        heads, kv_heads, head_dim, page, kind, softcap: as in LayerSpec.
        packs: whether pages get packed.
        rotary_pairs: of the turn towards the sinks, 0 where queries meet them as they are.
        interleaved: pairing of these.
        bias_pairs: of a key bias that is kept out of the codes.
    """

    heads: int
    kv_heads: int
    head_dim: int
    page: int
    kind: Kind
    packs: bool
    softcap: float
    rotary_pairs: int
    interleaved: bool
    bias_pairs: int


def form_of(cache: CacheSpec, layer: LayerSpec, bias_pairs: int) -> Form:
    """Form of one layer."""
    turn = cache.turn_of(layer)
    return Form(
        heads=layer.heads,
        kv_heads=layer.kv_heads,
        head_dim=layer.head_dim,
        page=layer.rules.page,
        kind=layer.kind,
        packs=layer.rules.packs,
        softcap=layer.softcap,
        rotary_pairs=cache.ropes[turn[1]].pairs if turn is not None else 0,
        interleaved=turn is not None and cache.is_interleaved(layer),
        bias_pairs=bias_pairs,
    )


def layer_forms(cache: CacheSpec, bias_pairs: Mapping[int, int]) -> dict[int, int]:
    """Number of each layer's form by the layer's index: forms are numbered from 0 in order of first use.

    Args:
        bias_pairs: pairs of the key biases that layers have, by index; those without one may be missing.
    """
    forms = {layer.index: form_of(cache, layer, bias_pairs.get(layer.index, 0)) for layer in cache.layers}
    numbers = {form: number for number, form in enumerate(dict.fromkeys(forms.values()))}
    return {index: numbers[form] for index, form in forms.items()}
