"""A small graph of layers that all read a second embedding, cut into up to as many blocks as it has layers."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from chains import Chain
from onnx import TensorProto, helper, numpy_helper

from kvedge.export.build.blocks import Blocks, cut
from kvedge.export.build.cuts import Cutter
from kvedge.export.build.flow import find_flow
from kvedge.targets import names
from kvedge.targets.hidden import Hidden

LAYERS, WIDTH, VOCAB = 4, 32, 100
rng = np.random.default_rng(0)


def weight(name: str, *shape: int) -> TensorProto:
    return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / WIDTH, name)


def layer(number: int) -> list[onnx.NodeProto]:
    """x + (x W + table) * second embedding; its pages and counts are outputs."""
    x, product = f"x.{number}", f"product.{number}"
    return [
        helper.make_node("MatMul", [x, f"weight.{number}"], [product]),
        helper.make_node("Add", [product, names.hot(number)], [names.hot_out(number)]),
        helper.make_node("Identity", [names.CONTEXT], [names.pages_read(number)]),
        helper.make_node("Add", [product, "table"], [f"moved.{number}"]),
        helper.make_node("Mul", [f"moved.{number}", "second"], [f"gated.{number}"]),
        helper.make_node("Add", [x, f"gated.{number}"], [f"x.{number + 1}"]),
    ]


def value(name: str, *shape: int | str, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    ids = value(names.INPUT_IDS, "batch", "new", dtype=TensorProto.INT64)
    tokens = ("batch", "new", WIDTH)
    nodes = [
        helper.make_node("Gather", ["embedding", names.INPUT_IDS], ["x.0"]),
        helper.make_node("Gather", ["second_embedding", names.INPUT_IDS], ["second"]),
        helper.make_node("Shape", [names.INPUT_IDS], ["sizes"]),
        helper.make_node("Concat", ["sizes", "width"], ["all_sizes"], axis=0),
        helper.make_node("Cast", [names.CONTEXT], ["float_context"], to=TensorProto.FLOAT),
        helper.make_node("Expand", ["float_context", "all_sizes"], ["table"]),
        *(node for number in range(LAYERS) for node in layer(number)),
        helper.make_node("Gather", [f"x.{LAYERS}", names.LOGITS_INDEX], ["some"], axis=1),
        helper.make_node("MatMul", ["some", "head"], [names.LOGITS]),
    ]
    counts = [value(names.pages_read(number), 1, dtype=TensorProto.INT32) for number in range(LAYERS)]
    graph = helper.make_graph(
        nodes,
        "layers",
        [
            ids,
            value(names.LOGITS_INDEX, "rows", dtype=TensorProto.INT64),
            value(names.CONTEXT, 1, dtype=TensorProto.INT32),
            *(value(names.hot(number), WIDTH) for number in range(LAYERS)),
        ],
        [
            value(names.LOGITS, "batch", "rows", VOCAB),
            *(value(names.hot_out(number), *tokens) for number in range(LAYERS)),
            *counts,
        ],
        [
            weight("embedding", VOCAB, WIDTH),
            weight("second_embedding", VOCAB, WIDTH),
            *(weight(f"weight.{number}", WIDTH, WIDTH) for number in range(LAYERS)),
            weight("head", WIDTH, VOCAB),
            numpy_helper.from_array(np.array([WIDTH]), "width"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def in_blocks(model: onnx.ModelProto, count: int) -> Blocks:
    cutter = Cutter(find_flow(model.graph, range(LAYERS)))
    return cut(model, cutter.flow, cutter.cuts(count), range(LAYERS))


def run(graphs: tuple[onnx.ModelProto, ...]) -> dict[str, np.ndarray]:
    feeds = {
        names.INPUT_IDS: np.array([[5, 7, 99], [1, 2, 3]]),
        names.LOGITS_INDEX: np.array([2]),
        names.CONTEXT: np.array([3], np.int32),
        **{names.hot(number): np.full(WIDTH, number, np.float32) for number in range(LAYERS)},
    }
    chain = Chain([ort.InferenceSession(graph.SerializeToString()) for graph in graphs])
    return dict(zip((output.name for output in chain.get_outputs()), chain.run(None, feeds), strict=True))


@pytest.mark.parametrize("count", range(1, LAYERS + 1))
def test_any_number_of_blocks_gives_the_same(model: onnx.ModelProto, count: int) -> None:
    want, got = run((model,)), run(in_blocks(model, count).graphs)
    assert set(want) <= set(got)
    assert all(np.array_equal(want[name], got[name]) for name in want)


def test_a_value_passes_over_blocks(model: onnx.ModelProto) -> None:
    """The second embedding, made once and read in all."""
    blocks = in_blocks(model, LAYERS)
    made = [{each.name for each in part.graph.output} for part in blocks.graphs]
    read = [{each.name for each in part.graph.input} for part in blocks.graphs]
    second, first = names.hidden(0, 0), names.hidden(0, 1)
    assert {value.name for value in blocks.hidden} == {first, second, names.hidden(1, 0), names.hidden(2, 0)}
    assert set(map(type, blocks.hidden)) == {Hidden} and {value.widths for value in blocks.hidden} == {(WIDTH,)}
    assert {first, second} <= made[0] and all(second in inputs for inputs in read[1:])
    assert [first in inputs for inputs in read] == [False, True, False, False]


def test_tables_are_made_again(model: onnx.ModelProto) -> None:
    """From the number of tokens, which is no reason to hand anything on; counts belong to their layers."""
    for number, part in enumerate(in_blocks(model, LAYERS).graphs):
        operators = [node.op_type for node in part.graph.node]
        assert operators.count("Expand") == operators.count("Shape") == 1
        assert names.pages_read(number) in {each.name for each in part.graph.output}
