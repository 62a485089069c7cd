"""What targets refuse, to the word."""

from __future__ import annotations

import pytest

from kvedge.targets.devices import TARGETS, Target, find_target
from kvedge.targets.errors import KvedgeError
from kvedge.targets.kinds import Kind
from kvedge.targets.model_config import make_cache, read_model_config
from kvedge.targets.settings import CacheSettings, WeightType
from kvedge.targets.supports import (
    engine_note,
    objections,
    other_chip,
    require_export,
    require_kernels_for,
    without_target,
)

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
@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.FP8])
def test_the_cpu_takes_all_but_floats(kind: Kind, weights: WeightType) -> None:
    for page in (8, 24, 64):
        require_export(find_target("cpu"), CacheSettings(kind=kind, page=page, recent=2 * page), weights)
    assert engine_note(find_target("cpu")) is None


FLOATS = "expected kvedge's GPU kernels on SM89 or newer; got"
INT8 = "choose int8: the same bytes, and a quarter of fp8's error on rotated vectors"


def test_floats_of_8_bits_are_for_chips_that_have_them() -> None:
    refusals = {
        "jetson-agx-orin": "TensorRT, SM87",
        "rtx": "TensorRT for RTX, SM86, SM89 or SM120",
        "cpu": "ONNX Runtime (CPU), no GPU",
    }
    for name, got in refusals.items():
        for settings in (CacheSettings(kind=Kind.FP8), CacheSettings(layer_kinds=((1, Kind.FP8),))):
            assert message(name, settings, WeightType.FP16) == f"fp8 pages on {name}; {FLOATS} {got}; {INT8}"
    for name in ("jetson-thor", "tensorrt-desktop", "cuda"):
        require_export(find_target(name), CacheSettings(kind=Kind.FP8), WeightType.FP16)
    require_kernels_for((Kind.INT3, Kind.FP8), (89, 120))
    require_kernels_for((Kind.INT3,), (75, 120))
    without_target((Kind.INT3, Kind.FP))
    with pytest.raises(
        KvedgeError, match="^fp8 pages; expected a --target with .* on SM89 or newer; got no --target; "
    ):
        without_target((Kind.INT3, Kind.FP8))
    with pytest.raises(KvedgeError, match="^--sm of fp8 pages; expected SM89 or newer; got SM87; choose int8"):
        require_kernels_for((Kind.INT3, Kind.FP8), (87, 89))


def test_every_objection_to_a_cache() -> None:
    cache = make_cache(read_model_config(MODEL, "tiny"), CacheSettings(page=24, recent=48))
    nano = find_target("jetson-orin-nano")
    found = objections(nano, cache, WeightType.INT8)
    assert [found[0][: len(PAGES)], found[1]] == [PAGES, f"jetson-orin-nano {WEIGHTS}"] and len(found) == 2
    assert objections(nano, cache, None) == found[:1]
    assert objections(find_target("cpu"), cache, WeightType.FP32) == []
    assert other_chip(cache, 99) == "export again with a --target that has this chip"
    floats = make_cache(read_model_config(MODEL, "tiny"), CacheSettings(layer_kinds=((1, Kind.FP8),)))
    assert objections(nano, floats, None) == [f"fp8 pages on jetson-orin-nano; {FLOATS} TensorRT, SM87; {INT8}"]
    assert other_chip(floats, 89) == "export again with a --target that has this chip"
    assert other_chip(floats, 86) == "export again without fp8, which needs SM89 or newer"
