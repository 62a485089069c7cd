"""A whole model's graph for GPUs against the graph that it was made of, the CPU op in the plugin's place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from gpu_graphs import BatchTrial, gpu_model, keep_half_rounding, load, plugin_nodes, stand_in_cpu_op
from gpu_models import KEY_BIAS, LLAMA, MODELS, write
from tiny_models import VOCAB

from kvedge.export.gpu.graph import bias_pairs
from kvedge.export.gpu.node import given_inputs
from kvedge.plugins import schema
from kvedge.plugins.cuda.forms import layer_forms
from kvedge.targets.kinds import Kind
from kvedge.targets.settings import WeightType
from kvedge.targets.spec import CacheSpec

STEPS = [(40, 23), (1, 1), (1, 1), (7, 30), (20, 1), (1, 3)]
"""New tokens of two sequences: prompts, decoding, and both at once."""

EXACT, PACKED, HALF = 2e-5, 0.1, 0.02
"""Of the standard deviation of the logits. Measured: 4e-6; 0.02, where a value next to a code boundary falls to the
other side; 0.005 with products in float16, whose attention is sharp."""

AT_ONCE = [(LLAMA, Kind.FP), (LLAMA, Kind.INT4), (LLAMA, Kind.FP8), (KEY_BIAS, Kind.INT3), ("gemma2", Kind.K4V2)]
"""Joined and separate projections, key biases, softcap, two groups of layers."""
SLOW = [(name, kind) for name in MODELS for kind in (Kind.FP, Kind.INT4) if (name, kind) not in AT_ONCE]


def worst(want: BatchTrial, got: BatchTrial) -> float:
    """Largest difference of the logits, in their standard deviations, of two graphs that are fed the same."""
    rng, largest = np.random.default_rng(0), 0.0
    for lengths in STEPS:
        ids = [rng.integers(3, VOCAB, length).tolist() for length in lengths]
        pairs = zip(lengths, want.step(ids), got.step(ids), strict=True)
        largest = max(largest, *(float(np.abs(a[:n] - b[:n]).max() / a[:n].std()) for n, a, b in pairs))
    assert want.pages_read == got.pages_read
    return largest


def trial(model: ir.Model, folder: Path, cache: CacheSpec) -> BatchTrial:
    return BatchTrial(model, folder, cache, batch=2, context=100)


@pytest.mark.parametrize(
    ("name", "kind"), [*AT_ONCE, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)], ids=str
)
def test_logits_are_those_of_the_op(name: str, kind: Kind, tmp_path: Path) -> None:
    cache = write(name, kind, WeightType.FP32, tmp_path)
    want, got = (trial(model, tmp_path, cache) for model in (load(tmp_path), stand_in(tmp_path, cache)))
    assert worst(want, got) <= (EXACT if kind is Kind.FP else PACKED)
    assert (want.pages_read > 0) == any(layer.rules.packs for layer in cache.layers)


def stand_in(folder: Path, cache: CacheSpec) -> ir.Model:
    """The graph for GPUs with the CPU op in the plugin's place."""
    return stand_in_cpu_op(gpu_model(folder, cache))


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        (LLAMA, WeightType.FP16),
        (LLAMA, WeightType.INT4),
        (LLAMA, WeightType.INT8),
        ("gemma2", WeightType.INT4),
        *(pytest.param(name, weights, marks=pytest.mark.slow) for name in MODELS for weights in WeightType),
    ],
    ids=str,
)
def test_weights_cost_what_half_products_cost(name: str, weights: WeightType, tmp_path: Path) -> None:
    """Against the same values in float32."""
    cache = write(name, Kind.FP, WeightType.FP32, tmp_path / "floats")
    write(name, Kind.FP, weights, tmp_path / "weights")
    want = trial(load(tmp_path / "floats"), tmp_path / "floats", cache)
    got = trial(keep_half_rounding(stand_in(tmp_path / "weights", cache)), tmp_path / "weights", cache)
    error = worst(want, got)
    assert error <= HALF
    assert weights is WeightType.FP32 or error > EXACT, "nothing was rounded: this tests less than it says"


def test_inputs_and_outputs_stay(tmp_path: Path) -> None:
    cache = write(LLAMA, Kind.INT4, WeightType.INT4, tmp_path)
    before, after = load(tmp_path), gpu_model(tmp_path, cache)
    for side in ("inputs", "outputs"):
        old, new = (getattr(model.graph, side) for model in (before, after))
        assert [(v.name, v.dtype, v.shape) for v in old] == [(v.name, v.dtype, v.shape) for v in new]
    assert dict(after.opset_imports) == {"": 21, schema.DOMAIN: 1} and after.ir_version >= 10
    ir.save(after, tmp_path / "gpu.onnx", external_data="gpu.data")
    onnx.checker.check_model(tmp_path / "gpu.onnx")
    assert not [name for name in after.graph.initializers if name.endswith(".blocks")]


def test_products_are_half_and_all_else_is_float(tmp_path: Path) -> None:
    cache = write(LLAMA, Kind.INT4, WeightType.INT4, tmp_path)
    model = gpu_model(tmp_path, cache)
    half = {ir.DataType.FLOAT16}
    for node in model.graph:
        types = {value.dtype for value in node.outputs if not value.is_graph_output()}
        if node.op_type in ("MatMul", "DequantizeLinear"):
            assert types == half
        elif node.op_type in ("Div", "Sqrt", "ReduceMean", "ReduceSum", "Sigmoid"):
            assert not types & half


@pytest.mark.parametrize("name", [LLAMA, KEY_BIAS, "gemma2"])
def test_layers_name_the_form_of_their_kernels(name: str, tmp_path: Path) -> None:
    cache = write(name, Kind.INT4, WeightType.FP32, tmp_path)
    model = gpu_model(tmp_path, cache)
    pairs = bias_pairs(model, cache)
    assert pairs == bias_pairs(load(tmp_path), cache)
    assert bool(pairs) == (name == KEY_BIAS)
    forms = layer_forms(cache, pairs)
    for node, layer in zip(plugin_nodes(model), cache.layers, strict=True):
        assert node.attributes["form"].as_int() == forms[layer.index]
        assert ("bias_page" in given_inputs(node)) == (layer.index in pairs)
        assert not {"cos", "sin"} & set(given_inputs(node))
    assert len(set(forms.values())) == (2 if name == "gemma2" else 1)
