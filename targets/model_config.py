"""What a model's configuration says about its attention, and the cache that it makes. No model is loaded.

Configurations leave things unsaid that the modelling code knows: a head_dim that is not hidden / heads, which
layers slide. `_FAMILIES` holds those that matter; a key that is missing and unknown there is an error, not a
guess. Windows are resolved per layer:

    use_sliding_window false              no layer slides, whatever sliding_window says
    layer_types                           sliding_attention slides, full_attention does not
    sliding_window_pattern n              every n-th layer is full
    max_window_layers m                   layers from m on slide
    none of them                          all slide
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvedge.targets.errors import KvedgeError, require
from kvedge.targets.settings import CacheSettings, layer_rules
from kvedge.targets.spec import CacheSpec, LayerSpec

Config = Mapping[str, object]
"""A configuration as config.json holds it."""

_SLIDING, _FULL = "sliding_attention", "full_attention"

_OTHER_STATES = {
    "kv_lora_rank": "multi-head latent attention",
    "num_kv_shared_layers": "layers that share the keys and values of others",
    "global_head_dim": "head sizes that differ between layers",
    "attention_chunk_size": "chunked attention",
    "full_attention_interval": "recurrent layers",
    "conv_L_cache": "convolutions",
    "state_size": "recurrent layers",
    "ssm_state_size": "recurrent layers",
}
"""Keys of architectures that keep more, or other things, than one key and value per token and layer."""


@dataclass(frozen=True, kw_only=True)
class LayerShape:
    """One attention layer.

    Args:
        heads: query heads (Q); kv_heads: key/value heads (H); head_dim: channels (D).
        window: the model's own window, the current token included; None for all.
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What memory planning needs to know of a model.

    Args:
        name: for people.
        model_type: the architecture.
        max_positions: positions that it was made for.
        layers: its attention layers in order.
        parameters: estimated number of weights; None where the formula would not fit.
        looked_up: those of an embedding of which a token reads one row only, 0 where it is the head too; None where
            nobody knows which weights a token reads (experts).
    """

    name: str
    model_type: str
    max_positions: int
    layers: tuple[LayerShape, ...]
    parameters: int | None
    looked_up: int | None


@dataclass(frozen=True, kw_only=True)
class _Family:
    """What configurations of a family leave to the modelling code.

    Args:
        head_dim, heads, kv_heads, positions: values where the configuration has none.
        full_every: every n-th layer is full, the others slide.
        slides: whether sliding_window counts where use_sliding_window is missing.
        tied: whether the head is the embedding where tie_word_embeddings is missing.
    """

    head_dim: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    positions: int | None = None
    full_every: int | None = None
    slides: bool = True
    tied: bool = False


_FAMILIES = {
    "cohere": _Family(tied=True),
    "cohere2": _Family(full_every=4, tied=True),
    "gemma": _Family(head_dim=256, tied=True),
    "gemma2": _Family(head_dim=256, full_every=2, tied=True),
    "gemma3_text": _Family(head_dim=256, heads=8, kv_heads=4, positions=131072, full_every=6, tied=True),
    "glm4": _Family(head_dim=128),
    "helium": _Family(head_dim=128),
    "llama": _Family(slides=False),
    "olmo3": _Family(full_every=4),
    "qwen2": _Family(slides=False),
    "qwen3": _Family(head_dim=128, slides=False),
    "smollm3": _Family(slides=False, tied=True),
}


def read_model_config(config: Config, name: str) -> ModelConfig:
    """Facts of a configuration; of its text part where it has several.

    Raises:
        KvedgeError: a key that is needed is missing, or the architecture has no cache of the usual form.
    """
    text = config.get("text_config")
    config = text if isinstance(text, Mapping) else config
    model_type = str(config.get("model_type", "unknown"))
    _refuse_other_states(config, name)
    family = _FAMILIES.get(model_type, _Family())
    heads = _number(config, name, "num_attention_heads", family.heads)
    kv_heads = _number(config, name, "num_key_value_heads", family.kv_heads or heads)
    head_dim = _number(config, name, "head_dim", family.head_dim or _split(config, name, heads))
    windows = _windows(config, name, family)
    return ModelConfig(
        name=name,
        model_type=model_type,
        max_positions=_number(config, name, "max_position_embeddings", family.positions),
        layers=tuple(LayerShape(heads=heads, kv_heads=kv_heads, head_dim=head_dim, window=w) for w in windows),
        parameters=_count_parameters(config, family, layers=len(windows), q=heads * head_dim, kv=kv_heads * head_dim),
        looked_up=_count_looked_up(config, family),
    )


def make_cache(model: ModelConfig, settings: CacheSettings) -> CacheSpec:
    """The cache that `kvedge export` would give this model, rotary embeddings left out: they take no memory.

    Raises:
        KvedgeError: settings that the model cannot have.
    """
    settings.check_layers(len(model.layers))
    layers = [_make_layer(index, shape, settings.of_layer(index)) for index, shape in enumerate(model.layers)]
    return CacheSpec(max_positions=model.max_positions, layers=tuple(layers), ropes=())


def _make_layer(index: int, shape: LayerShape, settings: CacheSettings) -> LayerSpec:
    return LayerSpec(
        index=index,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        kind=settings.kind,
        rules=layer_rules(shape.window, settings),
        rope=None,
        scale=shape.head_dim**-0.5,
        softcap=0.0,
    )


def _refuse_other_states(config: Config, name: str) -> None:
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    kind = str(rope.get("rope_type", rope.get("type"))) if isinstance(rope, Mapping) else ""
    fix = "set another rope_type in the model's config (yarn or linear)"
    require("dynamic" not in kind, f"{name} is dynamic NTK", expected="fixed rotary frequencies", got=kind, fix=fix)
    found = [what for key, what in _OTHER_STATES.items() if config.get(key)]
    if found:
        raise KvedgeError(
            f"{name} has {found[0]}",
            expected="attention with keys and values of its own in every layer",
            fix="no export for it yet",
        )


def _number(config: Config, name: str, key: str, default: int | None = None) -> int:
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise KvedgeError(
            f"configuration of {name}",
            expected=f"a positive number {key}",
            got="none" if value is None else value,
            fix="kvedge plans models with rotary positions and equal attention layers",
        )
    return value


def _split(config: Config, name: str, heads: int) -> int | None:
    """Channels of a head where the configuration does not say; None where it does."""
    return _number(config, name, "hidden_size") // heads if config.get("head_dim") is None else None


def _windows(config: Config, name: str, family: _Family) -> list[int | None]:
    """Each layer's own window."""
    num_layers = _number(config, name, "num_hidden_layers")
    types = config.get("layer_types")
    sliding = [_slides_by_pattern(config, family, layer) for layer in range(num_layers)]
    if isinstance(types, list):
        sliding = [_is_sliding(name, kind) for kind in types]
        require(
            len(types) == num_layers,
            f"layer_types of {name}",
            expected=f"{num_layers} entries",
            got=len(types),
        )
    switch = config.get("use_sliding_window")
    switched_on = bool(switch) if switch is not None else family.slides or isinstance(types, list)
    if not switched_on or config.get("sliding_window") is None:
        return [None] * num_layers
    window = _number(config, name, "sliding_window")
    return [window if slides else None for slides in sliding]


def _is_sliding(name: str, layer_type: object) -> bool:
    if layer_type not in (_SLIDING, _FULL):
        raise KvedgeError(
            f"{name} has layers of type {layer_type}",
            expected=f"{_FULL} or {_SLIDING}",
            fix="no export for it yet",
        )
    return layer_type == _SLIDING


def _slides_by_pattern(config: Config, family: _Family, layer: int) -> bool:
    """Whether a layer slides where layer_types does not say."""
    pattern = config.get("sliding_window_pattern", family.full_every)
    if isinstance(pattern, int) and pattern > 0:
        return (layer + 1) % pattern != 0
    first = config.get("max_window_layers", 0)
    return layer >= first if isinstance(first, int) else True


def _count_parameters(config: Config, family: _Family, *, layers: int, q: int, kv: int) -> int | None:
    """Weights of a model whose blocks are q, k, v, o and a gated MLP (gate, up, down), with two norms each.

    vocab x hidden (twice if the head is not the embedding)
    + layers x (2 x hidden x q + 2 x hidden x kv + 3 x hidden x intermediate + 2 x hidden) + hidden
    """
    hidden, inner, vocab = (config.get(key) for key in ("hidden_size", "intermediate_size", "vocab_size"))
    if not (isinstance(hidden, int) and isinstance(inner, int) and isinstance(vocab, int)) or _has_experts(config):
        return None
    embeddings = 1 if _is_tied(config, family) else 2
    block = 2 * hidden * q + 2 * hidden * kv + 3 * hidden * inner + 2 * hidden
    return embeddings * vocab * hidden + layers * block + hidden


def _count_looked_up(config: Config, family: _Family) -> int | None:
    hidden, vocab = config.get("hidden_size"), config.get("vocab_size")
    if _has_experts(config):
        return None
    if _is_tied(config, family):
        return 0
    return hidden * vocab if isinstance(hidden, int) and isinstance(vocab, int) else None


def _has_experts(config: Config) -> bool:
    return any(config.get(key) for key in ("num_local_experts", "num_experts", "n_routed_experts"))


def _is_tied(config: Config, family: _Family) -> bool:
    return bool(config.get("tie_word_embeddings", family.tied))
