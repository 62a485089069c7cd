"""Shapes that engines are built for, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import small_config

from kvedge.targets.errors import KvedgeError
from kvedge.targets.kinds import Kind
from kvedge.targets.model_config import make_cache, read_model_config
from kvedge.targets.profiles import Range, StepLimits, profiles
from kvedge.targets.settings import CacheSettings
from kvedge.targets.spec import CacheSpec, RopeSpec

LIMITS = StepLimits(context=1000, chunk=96, sessions=3)
HOT_SLOTS = 1 + 4  # sinks; 128 recent tokens, the page that becomes packed, and one to roll back
PACKED_SLOTS = 10 + 1  # 640 keys less the 128 recent ones, 96 new ones: 9.5 pages; they may begin within one
PACKED_WORDS = 2 * (64 * 24 + 64 * 24 + 4 * 64 + 2 * 64) // 4  # 3-bit codes of keys and of values, scales, mean


def cache(window: int | None = 640) -> CacheSpec:
    """With a rotary embedding, which plans leave out."""
    made = make_cache(read_model_config(small_config.MODEL, "small"), CacheSettings(kind=Kind.INT3, window=window))
    rope = RopeSpec(inv_freq=(1.0,) * 32, attention_scaling=1.0, interleaved=False)
    return replace(made, ropes=(rope,), layers=tuple(replace(layer, rope=0) for layer in made.layers))


def only(*shape: int) -> Range:
    return Range(least=shape, usual=shape, most=shape)


def test_a_decode_step_brings_one_token_of_each_session() -> None:
    found = profiles(cache(), LIMITS)["decode"]
    assert found["input_ids"] == Range(least=(1, 1), usual=(3, 1), most=(3, 1))
    assert found["cos.0"] == found["sink_sin.0.0"] == Range(least=(1, 1, 32), usual=(3, 1, 32), most=(3, 1, 32))
    assert found["logits_index"] == only(1)
    assert found["context"] == found["num_new"] == Range(least=(1,), usual=(3,), most=(3,))
    assert found["hot_table.0"] == Range(least=(1, HOT_SLOTS), usual=(3, HOT_SLOTS), most=(3, HOT_SLOTS))


def test_a_prefill_step_brings_up_to_a_chunk() -> None:
    found = profiles(cache(), LIMITS)["prefill"]
    assert found["input_ids"] == Range(least=(1, 1), usual=(1, 96), most=(3, 96))
    assert found["sin.0"] == found["sink_cos.0.0"] == Range(least=(1, 1, 32), usual=(1, 96, 32), most=(3, 96, 32))
    assert found["logits_index"] == Range(least=(1,), usual=(1,), most=(16,))
    assert found["num_new"] == Range(least=(1,), usual=(1,), most=(3,))
    assert found["packed_table.0"] == Range(least=(1, PACKED_SLOTS), usual=(1, PACKED_SLOTS), most=(3, PACKED_SLOTS))


@pytest.mark.parametrize("name", ["decode", "prefill"])
def test_pools_hold_all_sessions(name: str) -> None:
    found = profiles(cache(), LIMITS)[name]
    for layer in range(4):
        assert found[f"hot.{layer}"] == only(3 * HOT_SLOTS, 2, 2, 64, 64)
        assert found[f"packed.{layer}"] == only(3 * PACKED_SLOTS, PACKED_WORDS)


def test_the_context_counts_without_a_window() -> None:
    found = profiles(cache(None), LIMITS)["decode"]
    assert found["packed_table.0"].most == (3, (1000 - 1 - 64) // 64 - 2)
    assert not any(name.startswith("sink_") for name in found)


@pytest.mark.parametrize("name", ["context", "chunk", "sessions"])
def test_limits_below_one_are_refused(name: str) -> None:
    with pytest.raises(KvedgeError, match=f"{name}; expected at least 1; got 0"):
        StepLimits(**({"context": 8, "chunk": 8, "sessions": 1} | {name: 0}))
