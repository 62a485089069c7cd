"""Real engines of all that a graph for GPUs has besides attention, by the parser and builder of TensorRT for RTX."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest
from block_graphs import wide_product
from gpu_graphs import cut_attention_out, gpu_model
from gpu_models import KEY_BIAS, LLAMA, MODELS, write
from rtx_engines import build_engine

from kvedge.targets.kinds import Kind
from kvedge.targets.profiles import Range
from kvedge.targets.settings import WeightType

SIZES = 1, 2, 64
"""Sequences, new tokens and rows of the profile, least, usual and most: all open sizes are bound so."""


def engine_of(model: ir.Model, folder: Path, sm: int) -> bytes:
    """An engine whose open sizes are left open."""
    ir.save(model, folder / "model.onnx", external_data="model.onnx.data")
    return build_engine(folder / "model.onnx", sm, {"any": dict(map(_range, model.graph.inputs))})


def _range(value: ir.Value) -> tuple[str, Range]:
    assert value.name is not None and value.shape is not None
    shape = value.shape
    least, usual, most = (tuple(dim if isinstance(dim, int) else size for dim in shape) for size in SIZES)
    return value.name, Range(least=least, usual=usual, most=most)


@pytest.mark.parametrize(
    ("name", "weights", "sm"),
    [
        (LLAMA, WeightType.INT4, 89),
        *(
            pytest.param(name, weights, sm, marks=pytest.mark.slow)
            for name in (LLAMA, KEY_BIAS, *MODELS)
            for weights in (WeightType.INT4, WeightType.INT8, WeightType.FP16)
            for sm in (86, 120)
        ),
    ],
    ids=str,
)
def test_an_engine_is_built(name: str, weights: WeightType, sm: int, tmp_path: Path) -> None:
    cache = write(name, Kind.INT4, weights, tmp_path)
    model = cut_attention_out(gpu_model(tmp_path, cache))
    assert {node.domain for node in model.graph} == {""}
    assert engine_of(model, tmp_path, sm)


def test_weights_stay_4_bits_in_an_engine(tmp_path: Path) -> None:
    """A product of 2,048 inputs and outputs: its codes and scales, and half a megabyte of kernels at most."""
    codes, scales = 2048 * 2048 // 2, 2048 // 32 * 2048 * 2
    assert 0 <= len(engine_of(wide_product(2048, 2048), tmp_path, 89)) - codes - scales <= 1 << 19
