"""Products that read the same become one: queries, keys and values of a layer; gate and up of a gated MLP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from kvedge.export import graph_check
from kvedge.export.block_weights import (
    SUFFIX,
    initializer,
    is_product,
    linear_node,
    optional_input,
    replace,
    with_bias,
)
from kvedge.plugins import schema
from kvedge.targets.block_weights import TILE

BETWEEN_NAMES = "+"
"""Between the names of weights that became one."""


@dataclass(frozen=True)
class _Product:
    """x . weights + bias.

    Args:
        x: what it reads; weights: [outputs, inputs], or blocks; bias: [outputs], or None.
        outputs: width of the result; result: the value.
        bits: of the blocks, None for floats.
    """

    x: ir.Value
    weights: ir.Value
    bias: ir.Value | None
    outputs: int
    result: ir.Value
    bits: int | None


def join_products(model: ir.Model) -> None:
    """Join what can be joined, in place."""
    for node in graph_check.attention_nodes(model):
        _join_projections(model.graph, node)
    for node in [node for node in model.graph if node.op_type == "Mul"]:
        _join_gate(model.graph, node)
    RemoveUnusedNodesPass()(model)


def _join_projections(graph: ir.Graph, attention: ir.Node) -> None:
    """One product for queries, keys and values, where nothing but attention reads them."""
    whole_value = _cut_apart(attention.inputs[:3])
    if whole_value is not None:
        _take(attention, whole_value)
        return
    products = [_product_of(graph, value) for value in attention.inputs[:3]]
    whole = [product for product in products if product is not None and len(product.result.uses()) == 1]
    if len(whole) < 3 or not _may_join(whole):
        return
    first = whole[0]
    node = _joined(graph, whole)
    assert first.result.shape is not None
    result = node.outputs[0]
    result.type = first.result.type
    result.shape = ir.Shape([*first.result.shape[:2], sum(product.outputs for product in whole)])
    graph.insert_before(attention, node)
    if first.bits is None and any(product.bias is not None for product in whole):
        add = ir.node("Add", [result, _joined_bias(graph, whole)])
        add.outputs[0].type, add.outputs[0].shape = result.type, result.shape
        graph.insert_before(attention, add)
        result = add.outputs[0]
    _take(attention, result)


def _take(attention: ir.Node, projected: ir.Value) -> None:
    """Queries, keys and values side by side."""
    for index, value in enumerate((projected, None, None)):
        attention.replace_input_with(index, value)


def _cut_apart(values: Sequence[ir.Value | None]) -> ir.Value | None:
    """What the values are slices of, if they are all of its last axis, one behind the other."""
    source, end = None, 0
    for value in values:
        node = value.producer() if value is not None else None
        if node is None or node.op_type != "Slice" or source not in (None, node.inputs[0]):
            return None
        source = node.inputs[0]
        tensors = [ir.convenience.get_const_tensor(bound) if bound is not None else None for bound in node.inputs[1:]]
        bounds = [None if tensor is None else tensor.numpy().tolist() for tensor in tensors]
        if len(bounds) < 4 or bounds[0] != [end] or bounds[2] not in ([-1], [2]) or bounds[3] != [1]:
            return None
        end = bounds[1][0] if bounds[1] else -1
    width = source.shape[-1] if source is not None and source.shape is not None else None
    return source if isinstance(width, int) and end >= width else None


def _product_of(graph: ir.Graph, value: ir.Value | None) -> _Product | None:
    node = value.producer() if value is not None else None
    if value is None or node is None:
        return None
    if (node.domain, node.op_type) == (schema.DOMAIN, schema.LINEAR) and optional_input(node, schema.GAMMA) is None:
        x, weights = node.inputs[:2]
        bias = node.inputs[schema.BIAS :]
        bits, outputs = (node.attributes[name].as_int() for name in ("bits", "outputs"))
        assert x is not None and weights is not None
        return _Product(x, weights, bias[0] if bias else None, outputs, value, bits)
    source = node.inputs[0].producer() if node.op_type == "Add" and node.inputs[0] is not None else node
    if source is None or source.op_type != "FusedMatMul":
        return None
    x, weights = source.inputs
    if x is None or weights is None or weights.const_value is None or not is_product(source, weights):
        return None
    outputs = int(weights.const_value.shape.numpy()[0])
    last, found = with_bias(graph, source, outputs)
    return _Product(x, weights, found, outputs, value, None) if last is node else None


def _may_join(products: Sequence[_Product]) -> bool:
    first = products[0]
    alike = all(product.x is first.x and product.bits == first.bits for product in products)
    alone = all(len(product.weights.uses()) == 1 for product in products)
    whole_tiles = first.bits is None or all(product.outputs % TILE == 0 for product in products)
    return alike and alone and whole_tiles


def _joined(graph: ir.Graph, products: Sequence[_Product]) -> ir.Node:
    """The product of all outputs side by side; with floats the bias is left out."""
    weights, first = _joined_weights(graph, products), products[0]
    if first.bits is None:
        return ir.node("FusedMatMul", [first.x, weights], {"transB": 1}, domain="com.microsoft")
    attributes = {"bits": first.bits, "outputs": sum(product.outputs for product in products)}
    biased = any(product.bias is not None for product in products)
    return linear_node(first.x, weights, _joined_bias(graph, products) if biased else None, attributes)


def _joined_weights(graph: ir.Graph, products: Sequence[_Product]) -> ir.Value:
    names = [str(product.weights.name).removesuffix(SUFFIX) for product in products]
    name = BETWEEN_NAMES.join(names) + (SUFFIX if products[0].bits is not None else "")
    tensors = [product.weights.const_value for product in products]
    arrays = [tensor.numpy() for tensor in tensors if tensor is not None]
    return initializer(graph, name, ir.tensor(np.concatenate(arrays)))


def _joined_bias(graph: ir.Graph, products: Sequence[_Product]) -> ir.Value:
    parts = [
        np.zeros(product.outputs, np.float32)
        if product.bias is None or product.bias.const_value is None
        else product.bias.const_value.numpy()
        for product in products
    ]
    name = BETWEEN_NAMES.join(str(product.weights.name).removesuffix(SUFFIX) for product in products)
    return initializer(graph, f"{name}.bias", ir.tensor(np.concatenate(parts)))


def _join_gate(graph: ir.Graph, node: ir.Node) -> None:
    """activation(x . gate) * (x . up), both in blocks, where nothing else reads them."""
    for gated, up in (node.inputs, reversed(node.inputs)):
        found = _activated(gated)
        if found is None or up is None:
            continue
        activation, gate = found
        products = [_product_of(graph, value) for value in (gate, up)]
        whole = [product for product in products if product is not None and product.bits is not None]
        if len(whole) < 2 or not _may_join(whole) or len({product.outputs for product in whole}) > 1:
            continue
        if any(product.bias is not None for product in whole) or len(up.uses()) > 1:
            continue
        attributes = {"bits": whole[0].bits, "outputs": whole[0].outputs, "activation": activation, "epsilon": 0.0}
        inputs = [whole[0].x, _joined_weights(graph, whole)]
        replace(graph, node, ir.node(schema.GATED, inputs, attributes, domain=schema.DOMAIN))
        return


def _activated(value: ir.Value | None) -> tuple[str, ir.Value] | None:
    """The activation that made `value`, and what of."""
    node = value.producer() if value is not None else None
    if node is None:
        return None
    if node.op_type == "Gelu":
        approximate = node.attributes.get("approximate")
        tanh = approximate is not None and approximate.as_string() == "tanh"
        return (schema.GELU_TANH, node.inputs[0]) if tanh and node.inputs[0] is not None else None
    if node.op_type != "Mul":
        return None
    for x, sigmoid in (node.inputs, reversed(node.inputs)):
        made = sigmoid.producer() if sigmoid is not None else None
        if x is not None and made is not None and made.op_type == "Sigmoid" and made.inputs[0] is x:
            return schema.SILU, x
    return None
