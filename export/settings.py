"""What the user asks of a cache, and the specification that it makes of a traced model."""

from __future__ import annotations

from kvedge.export.trace import LayerFacts, TracedModel
from kvedge.targets.settings import CacheSettings, WeightType, layer_rules
from kvedge.targets.spec import CacheSpec, LayerSpec

__all__ = ["CacheSettings", "WeightType", "make_spec"]


def make_spec(traced: TracedModel, settings: CacheSettings, max_positions: int) -> CacheSpec:
    """The cache of a traced model.

    Raises:
        KvedgeError: settings that the model cannot have.
    """
    settings.check_layers(len(traced.layers))
    layers = [
        _make_layer(facts, rope, settings.of_layer(facts.layer))
        for facts, rope in zip(traced.layers, traced.layer_rope, strict=True)
    ]
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
