"""Graphs of one product or lookup with weights in blocks, rewritten in standard operators, on ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from kvedge.export.plain.model import IR_VERSION
from kvedge.export.standard.expr import Recorder
from kvedge.export.standard.operators import use_standard_operators
from kvedge.export.standard.splice import add_constants
from kvedge.plugins import schema
from kvedge.plugins.reference.linear import Blocks, store_blocks
from kvedge.targets.block_weights import BLOCK

INPUTS, OUTPUTS = 96, 48
EXACT_PRODUCTS = {"session.qdq_matmulnbits_accuracy_level": "1"}


def make_blocks(bits: int, outputs: int = OUTPUTS, seed: int = 0) -> Blocks:
    """Scales of either sign, some of them zero; codes that fill their range, or only a part of it."""
    rng = np.random.default_rng(seed)
    shape = (outputs, INPUTS // BLOCK)
    scale = rng.normal(size=shape) / (1 << bits)
    scale[rng.random(shape) < 0.1] = 0
    codes = rng.integers(0, 1 << bits, (outputs, INPUTS))
    codes[::4] = codes[::4] // 3 + (1 << bits) // 2
    return Blocks(
        bits=bits,
        codes=codes.astype(np.uint8),
        scale=scale.astype(np.float16),
        minimum=rng.normal(size=shape).astype(np.float16),
    )


def q4_0_like(positive: bool) -> Blocks:
    """minimum = -8 scale, as in Q4_0 files."""
    blocks = make_blocks(4)
    scale = np.abs(blocks.scale) if positive else blocks.scale
    return Blocks(bits=4, codes=blocks.codes, scale=scale, minimum=(-8 * scale).astype(np.float16))


def value_of(name: str, array: np.ndarray) -> ir.Value:
    tensor = ir.tensor(array, name=name)
    return ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)


def fed(name: str, array: np.ndarray) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(ir.DataType.from_numpy(array.dtype)), shape=ir.Shape(array.shape))


def graph_of(node: ir.Node, feeds: Iterable[str], constants: list[ir.Value]) -> ir.Model:
    """A model of one node, rewritten."""
    values = {value.name: value for value in node.inputs if value is not None}
    for output, name in zip(node.outputs, ("y", "sum"), strict=False):
        output.name, output.type = name, ir.TensorType(ir.DataType.FLOAT)
    inputs, outputs = [values[name] for name in feeds], list(node.outputs)
    graph = ir.Graph(inputs, outputs, nodes=[node], initializers=constants, opset_imports={"": 20}, name="blocks")
    recorder = Recorder()
    use_standard_operators(graph, recorder)
    add_constants(graph, recorder)
    assert {each.domain for each in graph} == {""}
    return ir.Model(graph, ir_version=IR_VERSION)


def run(model: ir.Model, feeds: dict[str, np.ndarray], path: Path | None = None) -> list[np.ndarray]:
    """What ONNX Runtime makes of it; what it optimized it to goes to `path`."""
    options = ort.SessionOptions()
    for name, value in EXACT_PRODUCTS.items():
        options.add_session_config_entry(name, value)
    if path is not None:
        options.optimized_model_filepath = str(path)
        options.log_severity_level = 3
    content = ir.to_proto(model).SerializeToString()
    return list(ort.InferenceSession(content, options, providers=["CPUExecutionProvider"]).run(None, feeds))


def wide_product(inputs: int, outputs: int) -> ir.Model:
    """A product with weights of 4 bits whose offsets are zero, for any number of rows."""
    rng = np.random.default_rng(0)
    scale = rng.uniform(0.01, 0.02, (outputs, inputs // BLOCK)).astype(np.float16)
    codes = rng.integers(0, 16, (outputs, inputs)).astype(np.uint8)
    stored = value_of("w", store_blocks(Blocks(bits=4, codes=codes, scale=scale, minimum=-8 * scale)))
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape((1, "new", inputs)))
    attributes = {"bits": 4, "outputs": outputs, "epsilon": 0.0}
    node = ir.node(schema.LINEAR, [x, stored], attributes, domain=schema.DOMAIN)
    return graph_of(node, ["x"], [stored])
