"""What is read from a configuration equals what transformers makes of it: windows, head_dim, sizes."""

from __future__ import annotations

import pytest

from kvedge.targets.errors import KvedgeError
from kvedge.targets.kinds import Kind
from kvedge.targets.model_config import make_cache, read_model_config
from kvedge.targets.settings import CacheSettings, layer_rules

BASE: dict[str, object] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
SLIDING_EVEN = ["sliding_attention", "full_attention"] * 4

CONFIGS: dict[str, dict[str, object]] = {
    "llama": {},
    "llama with head_dim": {"model_type": "llama", "head_dim": 32},
    "llama with a stray window": {"model_type": "llama", "sliding_window": 7},
    "mistral": {"sliding_window": 7},
    "mistral without": {"model_type": "mistral", "sliding_window": None},
    "phi3": {"sliding_window": 7},
    "starcoder2": {"sliding_window": 7},
    "qwen2": {"sliding_window": 7, "max_window_layers": 4, "use_sliding_window": True},
    "qwen2 switched off": {"model_type": "qwen2", "sliding_window": 7, "use_sliding_window": False},
    "qwen2 switched off by default": {"model_type": "qwen2", "sliding_window": 7},
    "qwen3": {"sliding_window": None, "use_sliding_window": False},
    "gemma": {},
    "gemma2": {"sliding_window": 7},
    "gemma2 with types": {"model_type": "gemma2", "sliding_window": 7, "layer_types": SLIDING_EVEN},
    "gemma3_text": {"sliding_window": 7},
    "gemma3_text with pattern": {
        "model_type": "gemma3_text",
        "sliding_window": 7,
        "sliding_window_pattern": 3,
    },
    "cohere2": {"sliding_window": 7},
    "olmo3": {"sliding_window": 7},
    "smollm3": {"sliding_window": 7},
}


def raw_config(name: str) -> dict[str, object]:
    return {"model_type": name} | BASE | CONFIGS[name]


@pytest.mark.parametrize("name", CONFIGS)
def test_reads_as_transformers_does(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    raw = raw_config(name)
    settings = {key: value for key, value in raw.items() if key != "model_type"}
    wanted = transformers.AutoConfig.for_model(raw["model_type"], pad_token_id=0, **settings)
    found = read_model_config(raw, "tiny")
    layers = getattr(wanted, "layer_types", None) or ["sliding_attention"] * 8
    window = getattr(wanted, "sliding_window", None) if raw["model_type"] != "llama" else None
    assert [layer.window for layer in found.layers] == [
        window if kind == "sliding_attention" else None for kind in layers
    ]
    heads = wanted.num_attention_heads
    head_dim = getattr(wanted, "head_dim", None) or wanted.hidden_size // heads
    assert {layer.head_dim for layer in found.layers} == {head_dim}
    assert {layer.kv_heads for layer in found.layers} == {wanted.num_key_value_heads}
    assert found.max_positions == wanted.max_position_embeddings


@pytest.mark.parametrize("name", ["llama", "mistral", "llama with head_dim"])
def test_counts_parameters_of_llamas(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    for tied in (True, False):
        raw = raw_config(name) | {"tie_word_embeddings": tied}
        settings = {key: value for key, value in raw.items() if key != "model_type"}
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(
                transformers.AutoConfig.for_model(raw["model_type"], pad_token_id=0, **settings)
            )
        assert read_model_config(raw, "tiny").parameters == sum(w.numel() for w in model.parameters())


def test_mixtures_have_no_formula() -> None:
    assert read_model_config(raw_config("mistral") | {"num_local_experts": 8}, "tiny").parameters is None


def test_reads_the_text_part() -> None:
    raw = {
        "model_type": "gemma3",
        "text_config": raw_config("gemma3_text"),
        "vision_config": {"hidden_size": 1},
    }
    assert read_model_config(raw, "tiny") == read_model_config(raw_config("gemma3_text"), "tiny")


@pytest.mark.parametrize("key", ["num_hidden_layers", "num_attention_heads", "max_position_embeddings"])
def test_missing_keys_are_named(key: str) -> None:
    raw = {name: value for name, value in raw_config("llama").items() if name != key}
    with pytest.raises(KvedgeError, match=f"configuration of tiny; expected a positive number {key}; got none"):
        read_model_config(raw, "tiny")


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"kv_lora_rank": 512}, "latent"),
        ({"num_kv_shared_layers": 4}, "share"),
        ({"layer_types": ["linear_attention"] * 8}, "linear_attention"),
        ({"layer_types": ["full_attention"] * 7}, "8 entries; got 7"),
        ({"num_key_value_heads": [1, 2]}, "num_key_value_heads"),
    ],
)
def test_refuses_other_caches(extra: dict[str, object], said: str) -> None:
    with pytest.raises(KvedgeError, match=said):
        read_model_config(raw_config("llama") | extra, "tiny")


def test_native_windows_have_no_sinks() -> None:
    settings = CacheSettings(kind=Kind.INT3, window=16, sinks=4, recent=16, page=16)
    assert (layer_rules(None, settings).window, layer_rules(None, settings).sinks) == (16, 4)
    assert (layer_rules(7, settings).window, layer_rules(7, settings).sinks) == (7, 0)
    assert (layer_rules(70, settings).window, layer_rules(70, settings).sinks) == (16, 0)
    cache = make_cache(read_model_config(raw_config("gemma2"), "tiny"), settings)
    assert [(rules.window, rules.sinks) for rules in cache.groups] == [(7, 0), (16, 4)]
