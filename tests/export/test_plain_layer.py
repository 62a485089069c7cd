"""The op out of standard operators, on ONNX Runtime, against the reference: outputs, pages, counts."""

from __future__ import annotations

import kernel_cases
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from plain_layers import plain_kernels, size_of
from streams import Kernels, Stream, against_reference, cuts_of, make_layer

from kvedge.export.plain.model import layer_model
from kvedge.targets.kinds import Kind

RELATIVE = 5e-6
"""Of the largest output; measured: at most 9e-7."""
OTHER_WORDS = 1e-2
"""Share of words that may differ, where a code's value is within rounding of a boundary; measured: 0."""

CASES = kernel_cases.CASES | {"head_dim 64": {"head_dim": 64}}


def check(stream: Stream, kernels: Kernels, chunk: int) -> None:
    """Feed a stream to the reference and to the graph, in the same cuts."""
    against_reference(stream, kernels, chunk, tolerance=RELATIVE, other_words=OTHER_WORDS)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", [Kind.FP, Kind.INT3])
def test_layers_match_the_reference(name: str, kind: Kind) -> None:
    stream = Stream(make_layer(kind, **CASES[name]), 100, chunk=13)
    check(stream, plain_kernels(stream, 13, spare=5), 13)


@pytest.mark.parametrize("kind", [kind for kind in Kind if not kind.has_floats], ids=lambda kind: kind.value)
def test_kinds_match_the_reference(kind: Kind) -> None:
    """One graph for steps of all lengths: one token, less than a page, several pages and an odd rest."""
    stream = Stream(make_layer(kind), 100, chunk=37)
    kernels = plain_kernels(stream, 37)
    for chunk in (1, 7, 37):
        stream.allocate()
        check(stream, kernels, chunk)


@pytest.mark.parametrize("kind", [Kind.FP, Kind.INT3])
@pytest.mark.parametrize("window", [5, 40, None])
def test_one_step_takes_more_than_the_window(kind: Kind, window: int | None) -> None:
    """Sinks and queries that have lost sight of what follows them, in one step; and more than the ring holds."""
    stream = Stream(make_layer(kind, window=window), 200, chunk=110)
    check(stream, plain_kernels(stream, 110), 110)


@pytest.mark.parametrize("kind", [Kind.FP, Kind.INT3])
def test_interleaved_pairs(kind: Kind) -> None:
    stream = Stream(make_layer(kind), 100, interleaved=True, chunk=13)
    check(stream, plain_kernels(stream, 13), 13)


@pytest.mark.parametrize("window", [40, None])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("kind", [Kind.INT3, Kind.K8V4], ids=lambda kind: kind.value)
def test_a_key_bias_is_kept_out_of_the_codes(kind: Kind, interleaved: bool, window: int | None) -> None:
    stream = Stream(
        make_layer(kind, head_dim=32, window=window), 150, interleaved=interleaved, bias_norm=50.0, chunk=37
    )
    assert stream.bias is not None and len(stream.bias.freqs) > 0
    check(stream, plain_kernels(stream, 37), 37)


def test_going_back_changes_nothing() -> None:
    """Tokens that are taken back and fed again: the same pages and outputs as without."""
    stream = Stream(make_layer(Kind.INT3), 120, chunk=8)
    kernels = plain_kernels(stream, 8)
    want = stream.run(kernels, cuts_of(120, 8))
    packed, hot = stream.packed.copy(), stream.hot.copy()
    kernels.attend(stream.layer, stream.step(112, 120), interleaved=False)
    again = kernels.attend(stream.layer, stream.step(115, 120), interleaved=False)
    assert np.abs(again.out[0] - want[115:]).max() <= RELATIVE * np.abs(want).max()
    assert np.array_equal(stream.packed, packed)
    assert np.array_equal(stream.hot, hot)


OPERATORS = {
    *("Abs", "Add", "Div", "Floor", "Mod", "Mul", "Neg", "Round", "Sqrt", "Sub", "Tanh"),
    *("And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Or", "Where"),
    *("Cast", "Concat", "Gather", "Reshape", "ScatterND", "Shape", "Slice", "Squeeze", "Transpose", "Unsqueeze"),
    *("MatMul", "ReduceMax", "ReduceSum", "Softmax"),
}
TYPES = {ir.DataType[name] for name in ("BOOL", "INT32", "INT64", "FLOAT", "FLOAT16")}


@pytest.mark.parametrize("kind", [Kind.FP, Kind.INT3, Kind.INT8])
def test_graphs_are_plain(kind: Kind) -> None:
    """Valid ONNX of a few operators and types, all of which TensorRT for RTX takes, and every size but N known."""
    stream = Stream(make_layer(kind, softcap=1.5), 100, interleaved=True)
    model = layer_model(stream.layer, size_of(stream, 45), stream.rope)
    assert {node.op_type for node in model.graph} <= OPERATORS
    assert {node.domain for node in model.graph} == {""}
    onnx.checker.check_model(ir.to_proto(model))
    inferred = ir.from_proto(onnx.shape_inference.infer_shapes(ir.to_proto(model), check_type=True, strict_mode=True))
    values = [value for node in inferred.graph for value in node.outputs]
    assert {value.dtype for value in values} <= TYPES
    assert all(value.shape is not None for value in values)


def test_large_numbers_stay_finite() -> None:
    """Keys and values beyond float16 are stored as its largest, as the reference stores them."""
    stream = Stream(make_layer(Kind.INT3), 60, chunk=13)
    stream.v[:, 10:20] *= 1e5
    check(stream, plain_kernels(stream, 13), 13)
    assert np.abs(stream.hot).max() < np.inf
