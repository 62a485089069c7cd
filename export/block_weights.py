"""Put weights in blocks into a graph."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from kvedge.plugins import schema
from kvedge.plugins.reference.linear import Blocks, store_blocks

SUFFIX = ".blocks"
"""Follows the name of weights that are stored in blocks."""


def put_blocks(model: ir.Model, blocks: Mapping[str, Blocks]) -> None:
    """Replace the products and lookups of weights that have blocks, in place; other uses keep the floats."""
    graph = model.graph
    for name, found in blocks.items():
        if name not in graph.initializers:
            continue
        weights = graph.initializers[name]
        uses = [use.node for use in weights.uses() if is_product(use.node, weights) or _is_lookup(use.node, weights)]
        if not uses:
            continue
        stored = initializer(graph, name + SUFFIX, ir.tensor(store_blocks(found)))
        for node in uses:
            attributes = {"bits": found.bits, "outputs": len(found.codes)}
            if node.op_type == "Gather":
                replace(
                    graph, node, ir.node(schema.EMBEDDING, [node.inputs[1], stored], attributes, domain=schema.DOMAIN)
                )
            else:
                last, bias = with_bias(graph, node, len(found.codes))
                replace(graph, last, linear_node(node.inputs[0], stored, bias, attributes))
    RemoveUnusedNodesPass()(model)


def linear_node(x: ir.Value | None, stored: ir.Value, bias: ir.Value | None, attributes: dict[str, int]) -> ir.Node:
    """A product with weights in blocks, of x as it is."""
    inputs = [x, stored, None, None, *([bias] if bias is not None else [])]
    return ir.node(schema.LINEAR, inputs, {**attributes, "epsilon": 0.0}, domain=schema.DOMAIN)


def optional_input(node: ir.Node, index: int) -> ir.Value | None:
    """An input that may be absent; absent ones at the end are not even listed."""
    return node.inputs[index] if index < len(node.inputs) else None


def initializer(graph: ir.Graph, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """A new constant of the graph."""
    tensor.name = name
    value = ir.Value(
        name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
    )
    graph.register_initializer(value)
    return value


def is_product(node: ir.Node, weights: ir.Value) -> bool:
    """Whether `node` is x . weights^T and nothing more."""
    if node.op_type != "FusedMatMul" or node.inputs[1] is not weights or node.inputs[0] is weights:
        return False
    plain = {"transA": 0, "transB": 1, "alpha": 1.0, "transBatchA": 0, "transBatchB": 0}
    return all(plain.get(name) == attribute.value for name, attribute in node.attributes.items())


def _is_lookup(node: ir.Node, weights: ir.Value) -> bool:
    axis = node.attributes.get("axis")
    return node.op_type == "Gather" and node.inputs[0] is weights and (axis is None or axis.as_int() == 0)


def with_bias(graph: ir.Graph, node: ir.Node, outputs: int) -> tuple[ir.Node, ir.Value | None]:
    """The sum that follows a product alone, and the vector that it adds; the product itself where there is none."""
    uses = list(node.outputs[0].uses())
    if len(uses) == 1 and uses[0].node.op_type == "Add":
        add = uses[0].node
        other = add.inputs[1 - uses[0].idx]
        if other is not None and other.name in graph.initializers and other.shape == ir.Shape([outputs]):
            return add, other
    return node, None


def replace(graph: ir.Graph, old: ir.Node, new: ir.Node) -> None:
    """Put a node in the place of another one with a result of the same type and shape."""
    result, replaced = new.outputs[0], old.outputs[0]
    result.name, result.type, result.shape = replaced.name, replaced.type, replaced.shape
    graph.insert_after(old, new)
    replaced.replace_all_uses_with(result, replace_graph_outputs=True)
    graph.remove(old, safe=True)
