"""What targets refuse, to the word."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvedge.targets.devices import TARGETS, Target, find_target
from kvedge.targets.errors import KvedgeError
from kvedge.targets.kinds import RUNNABLE, Kind
from kvedge.targets.model_config import make_cache, read_model_config
from kvedge.targets.settings import CacheSettings, WeightType
from kvedge.targets.supports import engine_note, objections, require_export, require_kinds

MODEL = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "max_position_embeddings": 4096,
}
GPUS = [target for target in TARGETS if target.name != "cpu"]
PAGES = "jetson-orin-nano cannot read pages of 24 tokens; expected one of 16, 32, 64, 128; got 24; change --page, and"
WEIGHTS = "cannot multiply int8 weights; expected one of fp16, int4; got int8 for TensorRT; choose another --weights"


def message(target: str, settings: CacheSettings, weights: WeightType) -> str:
    with pytest.raises(KvedgeError) as caught:
        require_export(find_target(target), settings, weights)
    return str(caught.value)


@pytest.mark.parametrize("name", [name.name for name in TARGETS if 87 in name.sms and name.memory])
def test_no_orin_reads_fp8(name: str) -> None:
    with pytest.raises(KvedgeError) as caught:
        require_kinds(find_target(name), ["int4", "fp8"])
    assert str(caught.value) == (
        f"{name} cannot read KV kind fp8; expected a chip that has fp8 (SM89 or later); got SM87; "
        "choose another --kv, such as int8"
    )
    require_kinds(find_target(name), [kind.value for kind in RUNNABLE])


def test_kinds_by_name() -> None:
    require_kinds(find_target("jetson-thor"), ["fp8"])
    with pytest.raises(KvedgeError, match="got SM86, SM89 or SM120"):
        require_kinds(find_target("rtx"), ["fp8"])
    with pytest.raises(KvedgeError, match="got no GPU"):
        require_kinds(find_target("cpu"), ["fp8"])
    with pytest.raises(KvedgeError, match="unknown KV kind; .*got int5"):
        require_kinds(find_target("cpu"), ["int5"])


def test_pages_are_named_before_weights() -> None:
    odd = CacheSettings(page=24, recent=48)
    assert message("jetson-orin-nano", odd, WeightType.INT8).startswith(PAGES)
    assert message("jetson-orin-nx", CacheSettings(), WeightType.INT8) == f"jetson-orin-nx {WEIGHTS}"


@pytest.mark.parametrize("target", GPUS, ids=lambda target: target.name)
def test_gpus_take_their_weights_and_were_not_run(target: Target) -> None:
    for weights in target.weights:
        require_export(target, CacheSettings(), weights)
    note = str(engine_note(target))
    assert f"not run with {target.engine.label} on a GPU yet, only {target.engine.checked}" in note


@pytest.mark.parametrize("weights", WeightType)
@pytest.mark.parametrize("kind", RUNNABLE)
def test_the_cpu_takes_all(kind: Kind, weights: WeightType) -> None:
    for page in (8, 24, 64):
        require_export(find_target("cpu"), CacheSettings(kind=kind, page=page, recent=2 * page), weights)
    assert engine_note(find_target("cpu")) is None


def test_every_objection_to_a_cache() -> None:
    cache = make_cache(read_model_config(MODEL, "tiny"), CacheSettings(page=24, recent=48))
    nano = find_target("jetson-orin-nano")
    found = objections(nano, cache, WeightType.INT8)
    assert [found[0][: len(PAGES)], found[1]] == [PAGES, f"jetson-orin-nano {WEIGHTS}"] and len(found) == 2
    assert objections(nano, cache, None) == found[:1]
    layers = tuple(replace(layer, kind=Kind.FP8) for layer in cache.layers)
    assert "KV kind fp8" in objections(nano, replace(cache, layers=layers), None)[0]
    assert objections(find_target("cpu"), cache, WeightType.FP32) == []
