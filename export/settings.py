"""What the user asks of a cache, and the specification that it makes of a traced model."""

from __future__ import annotations

from collections.abc import Sequence

from kvedge.export.trace import LayerFacts, TracedModel
from kvedge.targets.errors import KvedgeError
from kvedge.targets.kinds import Kind
from kvedge.targets.settings import CacheSettings, WeightType, layer_rules
from kvedge.targets.spec import CacheSpec, LayerSpec

__all__ = ["CacheSettings", "WeightType", "make_spec", "refuse_key_bias"]


def make_spec(traced: TracedModel, settings: CacheSettings, max_positions: int) -> CacheSpec:
    """The cache of a traced model.

    Raises:
        KvedgeError: settings that the model cannot have.
    """
    layers = [_make_layer(facts, rope, settings) for facts, rope in zip(traced.layers, traced.layer_rope, strict=True)]
    return CacheSpec(max_positions=max_positions, layers=tuple(layers), ropes=traced.ropes)


def _make_layer(facts: LayerFacts, rope: int | None, settings: CacheSettings) -> LayerSpec:
    return LayerSpec(
        index=facts.layer,
        heads=facts.heads,
        kv_heads=facts.kv_heads,
        head_dim=facts.head_dim,
        kind=settings.kind,
        rules=layer_rules(facts.window or None, settings),
        rope=rope,
        scale=facts.scale,
        softcap=facts.softcap,
    )


def refuse_key_bias(kind: Kind, biased_layers: Sequence[int]) -> None:
    """A bias in front of the rotary embedding makes packed keys collapse: refuse what is not proven right.

    Raises:
        KvedgeError: packed keys for a model whose key projections have a bias.
    """
    if biased_layers and not kind.is_exact:
        raise KvedgeError(
            f"layers {biased_layers[0]} to {biased_layers[-1]} add a bias to their keys, "
            f"which {kind.value} pages do not keep",
            expected="--kv fp for this model",
            got=f"--kv {kind.value}",
            fix="export it with --kv fp",
        )
