"""Real engines of all that a graph for GPUs has besides attention, by the parser and builder of TensorRT for RTX."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest
from block_graphs import wide_product
from gpu_graphs import cut_attention_out, gpu_model
from gpu_models import KEY_BIAS, LLAMA, MODELS, write

from kvedge.targets.kinds import Kind
from kvedge.targets.settings import WeightType

trt = pytest.importorskip("tensorrt_rtx", reason="engines are not built here: the package tensorrt-rtx is absent")

LEAST, USUAL, MOST = 1, 2, 64
"""Sequences, new tokens and rows of the profile: all open sizes are bound so."""


def engine_of(path: Path, capability: str) -> bytes:
    """A strongly typed engine with its open sizes left open."""
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    assert parser.parse_from_file(str(path)), [parser.get_error(n).desc() for n in range(parser.num_errors)]
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    for tensor in map(network.get_input, range(network.num_inputs)):
        shapes = ([size if dim < 0 else dim for dim in tensor.shape] for size in (LEAST, USUAL, MOST))
        profile.set_shape(tensor.name, *shapes)
    config.add_optimization_profile(profile)
    config.num_compute_capabilities = 1
    assert config.set_compute_capability(getattr(trt.ComputeCapability, capability), 0)
    engine = builder.build_serialized_network(network, config)
    assert engine is not None
    return bytes(memoryview(engine))


@pytest.mark.parametrize(
    ("name", "weights", "capability"),
    [
        (LLAMA, WeightType.INT4, "SM89"),
        *(
            pytest.param(name, weights, capability, marks=pytest.mark.slow)
            for name in (LLAMA, KEY_BIAS, *MODELS)
            for weights in (WeightType.INT4, WeightType.INT8, WeightType.FP16)
            for capability in ("SM86", "SM120")
        ),
    ],
    ids=str,
)
def test_an_engine_is_built(name: str, weights: WeightType, capability: str, tmp_path: Path) -> None:
    cache = write(name, Kind.INT4, weights, tmp_path)
    model = cut_attention_out(gpu_model(tmp_path, cache))
    assert {node.domain for node in model.graph} == {""}
    ir.save(model, tmp_path / "cut.onnx", external_data="cut.onnx.data")
    assert engine_of(tmp_path / "cut.onnx", capability)


def test_weights_stay_4_bits_in_an_engine(tmp_path: Path) -> None:
    """A product of 2,048 inputs and outputs: its codes and scales, and half a megabyte of kernels at most."""
    ir.save(wide_product(2048, 2048), tmp_path / "product.onnx")
    codes, scales = 2048 * 2048 // 2, 2048 // 32 * 2048 * 2
    assert 0 <= len(engine_of(tmp_path / "product.onnx", "SM89")) - codes - scales <= 1 << 19
