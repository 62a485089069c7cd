"""Put weights in blocks into a graph, and take them out again."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass

from kvedge.plugins import schema
from kvedge.plugins.reference.linear import Blocks, read_blocks, store_blocks

_SUFFIX = ".blocks"


def put_blocks(model: ir.Model, blocks: Mapping[str, Blocks]) -> None:
    """Replace the products and lookups of weights that have blocks, in place; other uses keep the floats."""
    graph = model.graph
    for name, found in blocks.items():
        if name not in graph.initializers:
            continue
        weights = graph.initializers[name]
        uses = [use.node for use in weights.uses() if _is_product(use.node, weights) or _is_lookup(use.node, weights)]
        if not uses:
            continue
        stored = _initializer(graph, name + _SUFFIX, ir.tensor(store_blocks(found)))
        for node in uses:
            attributes = {"bits": found.bits, "outputs": len(found.codes)}
            if node.op_type == "Gather":
                _replace(
                    graph, node, ir.node(schema.EMBEDDING, [node.inputs[1], stored], attributes, domain=schema.DOMAIN)
                )
            else:
                last, bias = _with_bias(graph, node, len(found.codes))
                inputs = [node.inputs[0], stored, *([bias] if bias else [])]
                _replace(graph, last, ir.node(schema.LINEAR, inputs, attributes, domain=schema.DOMAIN))
    RemoveUnusedNodesPass()(model)
    model.opset_imports[schema.DOMAIN] = schema.VERSION


def put_floats(model: ir.Model, known: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """Replace weights in blocks by the floats that they stand for, in place, with the graph's own products.

    The floats become inputs of the graph.

    Args:
        known: arrays by name of the weights; those that are equal to the floats are used instead of a copy.

    Returns:
        What to feed, by name.
    """
    graph = model.graph
    feeds: dict[str, NDArray[np.float32]] = {}
    inputs: dict[str, ir.Value] = {}
    for node in [node for node in graph if (node.domain, node.op_type) in _OPS]:
        stored = node.inputs[1]
        assert stored is not None and stored.name is not None and stored.const_value is not None
        name = stored.name.removesuffix(_SUFFIX)
        if name not in feeds:
            bits, outputs = (node.attributes[name].as_int() for name in ("bits", "outputs"))
            floats = read_blocks(_bytes_of(stored.const_value), bits, outputs).weights()
            feeds[name] = known[name] if name in known and np.array_equal(known[name], floats) else floats
            shape = ir.Shape(floats.shape)
            inputs[name] = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=shape)
            graph.inputs.append(inputs[name])
        _replace_by_floats(graph, node, inputs[name])
    for name in feeds:
        graph.initializers.pop(name + _SUFFIX)
    return feeds


def _bytes_of(tensor: ir.TensorProtocol) -> NDArray[np.uint8]:
    """Stored weights; those of a file are mapped, also where artifacts share it (onnx_ir refuses hard links)."""
    if isinstance(tensor, ir.ExternalTensor):
        shape = tensor.shape.numpy()
        return np.memmap(tensor.path, np.uint8, "r", tensor.offset or 0, shape)
    return np.asarray(tensor.numpy(), np.uint8)


def _replace_by_floats(graph: ir.Graph, node: ir.Node, floats: ir.Value) -> None:
    if node.op_type == schema.EMBEDDING:
        return _replace(graph, node, ir.node("Gather", [floats, node.inputs[0]], {"axis": 0}))
    product = ir.node("FusedMatMul", [node.inputs[0], floats], {"transB": 1}, domain="com.microsoft")
    if len(node.inputs) < 3:
        return _replace(graph, node, product)
    graph.insert_before(node, product)
    return _replace(graph, node, ir.node("Add", [product.outputs[0], node.inputs[2]]))


_OPS = frozenset((schema.DOMAIN, name) for name in (schema.LINEAR, schema.EMBEDDING))


def _initializer(graph: ir.Graph, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    tensor.name = name
    value = ir.Value(
        name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
    )
    graph.register_initializer(value)
    return value


def _is_product(node: ir.Node, weights: ir.Value) -> bool:
    """Whether `node` is x . weights^T and nothing more."""
    if node.op_type != "FusedMatMul" or node.inputs[1] is not weights or node.inputs[0] is weights:
        return False
    plain = {"transA": 0, "transB": 1, "alpha": 1.0, "transBatchA": 0, "transBatchB": 0}
    return all(plain.get(name) == attribute.value for name, attribute in node.attributes.items())


def _is_lookup(node: ir.Node, weights: ir.Value) -> bool:
    axis = node.attributes.get("axis")
    return node.op_type == "Gather" and node.inputs[0] is weights and (axis is None or axis.as_int() == 0)


def _with_bias(graph: ir.Graph, node: ir.Node, outputs: int) -> tuple[ir.Node, ir.Value | None]:
    """The sum that follows a product alone, and the vector that it adds; the product itself where there is none."""
    uses = list(node.outputs[0].uses())
    if len(uses) == 1 and uses[0].node.op_type == "Add":
        add = uses[0].node
        other = add.inputs[1 - uses[0].idx]
        if other is not None and other.name in graph.initializers and other.shape == ir.Shape([outputs]):
            return add, other
    return node, None


def _replace(graph: ir.Graph, old: ir.Node, new: ir.Node) -> None:
    result, replaced = new.outputs[0], old.outputs[0]
    result.name, result.type, result.shape = replaced.name, replaced.type, replaced.shape
    graph.insert_after(old, new)
    replaced.replace_all_uses_with(result, replace_graph_outputs=True)
    graph.remove(old, safe=True)
