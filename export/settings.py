"""What the user asks of a cache, and the specification that it makes of a traced model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from kvedge.export.trace import LayerFacts, TracedModel
from kvedge.targets.errors import KvedgeError, require
from kvedge.targets.kinds import RUNNABLE, Kind
from kvedge.targets.spec import (
    DEFAULT_KIND,
    DEFAULT_PAGE,
    DEFAULT_RECENT,
    DEFAULT_SINKS,
    CacheSpec,
    LayerSpec,
    PageRules,
)


class WeightType(Enum):
    """How weights are stored in the artifact."""

    FP32 = "fp32"
    FP16 = "fp16"


@dataclass(frozen=True, kw_only=True)
class CacheSettings:
    """The cache as asked for on the command line.

    Args:
        kind: bits of keys and values.
        window: keys that a query sees besides the sinks; None for all.
        sinks: first tokens that are never forgotten; recent: newest tokens that stay exact; page: tokens a page.
    """

    kind: Kind = DEFAULT_KIND
    window: int | None = None
    sinks: int = DEFAULT_SINKS
    recent: int = DEFAULT_RECENT
    page: int = DEFAULT_PAGE


def make_spec(traced: TracedModel, settings: CacheSettings, max_positions: int) -> CacheSpec:
    """The cache of a traced model.

    A layer with a sliding window of its own keeps the smaller of both windows, and gets no sinks: what it
    forgets is part of the model.

    Raises:
        KvedgeError: settings that the model or this version cannot have.
    """
    kind = settings.kind
    known = ", ".join(k.value for k in RUNNABLE)
    require(kind in RUNNABLE, f"--kv {kind.value} has no kernel yet", expected=f"one of {known}", got=kind.value)
    layers = [_make_layer(facts, rope, settings) for facts, rope in zip(traced.layers, traced.layer_rope, strict=True)]
    return CacheSpec(max_positions=max_positions, layers=tuple(layers), ropes=traced.ropes)


def _make_layer(facts: LayerFacts, rope: int | None, settings: CacheSettings) -> LayerSpec:
    windows = [window for window in (facts.window or None, settings.window) if window is not None]
    rules = PageRules(
        page=settings.page,
        sinks=0 if facts.window else settings.sinks,
        recent=settings.recent,
        window=min(windows, default=None),
        exact=settings.kind.is_exact,
    )
    return LayerSpec(
        index=facts.layer,
        heads=facts.heads,
        kv_heads=facts.kv_heads,
        head_dim=facts.head_dim,
        kind=settings.kind,
        rules=rules,
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
            f"layers {biased_layers[0]} to {biased_layers[-1]} add a bias to their keys, which {kind.value} pages do not "
            "keep",
            expected="--kv fp for this model",
            got=f"--kv {kind.value}",
            fix="export it with --kv fp",
        )
