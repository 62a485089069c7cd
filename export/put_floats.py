"""Take weights in blocks out of a graph again: floats and plain products in their place."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from kvedge.export.block_weights import SUFFIX, replace
from kvedge.export.join import BETWEEN_NAMES
from kvedge.export.take_norms import give_norm_back
from kvedge.plugins import schema
from kvedge.plugins.reference.linear import read_blocks

Floats = NDArray[np.float32]
_OPS = frozenset((schema.DOMAIN, name) for name in (schema.LINEAR, schema.EMBEDDING, schema.GATED))


def put_floats(model: ir.Model, known: Mapping[str, Floats]) -> dict[str, Floats]:
    """Replace weights in blocks by the floats that they stand for, in place, with the graph's own products.

    The floats become inputs of the graph.

    Args:
        known: arrays by name of the weights; those that are equal to the floats are used instead of a copy.

    Returns:
        What to feed, by name.
    """
    floats = _FloatInputs(model.graph, known)
    for node in [node for node in model.graph if (node.domain, node.op_type) in _OPS]:
        _replace_by_floats(model.graph, node, floats)
    for name in [name for name in model.graph.initializers if name.endswith(SUFFIX)]:
        model.graph.initializers.pop(name)
    return floats.feeds


class _FloatInputs:
    """Graph inputs for weights, made once each."""

    def __init__(self, graph: ir.Graph, known: Mapping[str, Floats]) -> None:
        self._graph, self._known = graph, known
        self._made: dict[str, list[ir.Value]] = {}
        self.feeds: dict[str, Floats] = {}

    def of(self, node: ir.Node) -> list[ir.Value]:
        """The matrices [outputs, inputs] of a node: gate and up, those that were joined, or one."""
        stored = node.inputs[1]
        assert stored is not None and stored.name is not None and stored.const_value is not None
        name, gated = stored.name.removesuffix(SUFFIX), node.op_type == schema.GATED
        if name not in self._made:
            bits, outputs = (node.attributes[name].as_int() for name in ("bits", "outputs"))
            whole = read_blocks(bytes_of(stored.const_value), bits, (2 if gated else 1) * outputs).weights()
            self._made[name] = [self._feed(*part) for part in self._parts(name, whole, gated=gated)]
        return self._made[name]

    def _parts(self, name: str, whole: Floats, *, gated: bool) -> list[tuple[str, Floats]]:
        """Matrices that were joined, by name, so that nothing needs to be copied; the whole where one is not known."""
        names = name.split(BETWEEN_NAMES)
        if gated:
            return list(zip(names, np.split(whole, 2), strict=True))
        ends = np.cumsum([len(self._known.get(part, ())) for part in names])
        if ends[-1] != len(whole):
            return [(name, whole)]
        return list(zip(names, np.split(whole, ends[:-1]), strict=True))

    def _feed(self, name: str, floats: Floats) -> ir.Value:
        same = name in self._known and np.array_equal(self._known[name], floats)
        self.feeds[name] = self._known[name] if same else floats
        value = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(floats.shape))
        self._graph.inputs.append(value)
        return value


def bytes_of(tensor: ir.TensorProtocol) -> NDArray[np.uint8]:
    """Stored weights; those of a file are mapped, also where artifacts share it (onnx_ir refuses hard links)."""
    if isinstance(tensor, ir.ExternalTensor):
        shape = tensor.shape.numpy()
        return np.memmap(tensor.path, np.uint8, "r", tensor.offset or 0, shape)
    return np.asarray(tensor.numpy(), np.uint8)


def _replace_by_floats(graph: ir.Graph, node: ir.Node, floats: _FloatInputs) -> None:
    matrices = floats.of(node)
    if node.op_type == schema.EMBEDDING:
        return replace(graph, node, ir.node("Gather", [matrices[0], node.inputs[0]], {"axis": 0}))
    x = give_norm_back(graph, node)
    products = [ir.node("FusedMatMul", [x, weights], {"transB": 1}, domain="com.microsoft") for weights in matrices]
    graph.insert_before(node, products)
    if node.op_type == schema.LINEAR:
        whole = ir.node("Concat", [product.outputs[0] for product in products], {"axis": -1})
        bias = node.inputs[schema.BIAS :]
        if not bias:
            return replace(graph, node, whole)
        graph.insert_before(node, whole)
        return replace(graph, node, ir.node("Add", [whole.outputs[0], *bias]))
    gate, up = (product.outputs[0] for product in products)
    activation = _activate(gate, node.attributes["activation"].as_string())
    graph.insert_before(node, activation)
    return replace(graph, node, ir.node("Mul", [activation[-1].outputs[0], up]))


def _activate(gate: ir.Value, activation: str) -> list[ir.Node]:
    if activation == schema.GELU_TANH:
        return [ir.node("Gelu", [gate], {"approximate": "tanh"})]
    sigmoid = ir.node("Sigmoid", [gate])
    return [sigmoid, ir.node("Mul", [gate, sigmoid.outputs[0]])]
