"""Products with weights in blocks take over the norm in front of them, with its residual sum; and give it back.

An RMS norm whose result one product alone reads costs that product next to nothing, as it reads its inputs anyway to
round them; on its own it is a node, and one more pass over memory.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from kvedge.export.block_weights import optional_input
from kvedge.plugins import schema

_NORM, _SKIP_NORM = "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization"
_SUM = 3
"""Output of a skip norm: the sum that it normalizes."""


def take_norms(model: ir.Model) -> None:
    """Let products take over norms, in place."""
    for node in [node for node in model.graph if node.op_type in (_NORM, _SKIP_NORM)]:
        _take(model.graph, node)
    RemoveUnusedNodesPass()(model)


def _take(graph: ir.Graph, norm: ir.Node) -> None:
    uses = list(norm.outputs[0].uses())
    product = uses[0].node if len(uses) == 1 and not norm.outputs[0].is_graph_output() else None
    if product is None or not _is_product(product) or uses[0].idx != 0 or not _is_plain(norm):
        return
    x, *skip, gamma = norm.inputs
    total = next((value for value in norm.outputs[_SUM:] if value.uses() or value.is_graph_output()), None)
    inputs = [x, product.inputs[1], gamma, *(skip or [None]), *product.inputs[schema.BIAS :]]
    attributes = [*(a for a in product.attributes.values() if a.name != "epsilon"), norm.attributes["epsilon"]]
    new = ir.Node(schema.DOMAIN, product.op_type, inputs, attributes, num_outputs=2 if total is not None else 1)
    graph.insert_after(norm, new)  # before whatever reads the sum
    _give_outputs(graph, product, new, total)


def _is_product(node: ir.Node) -> bool:
    products = ((schema.DOMAIN, schema.LINEAR), (schema.DOMAIN, schema.GATED))
    return (node.domain, node.op_type) in products and optional_input(node, schema.GAMMA) is None


def _is_plain(norm: ir.Node) -> bool:
    """Over the last axis, of what is added without broadcasting or a bias."""
    x = norm.inputs[0]
    if x is None or x.shape is None or norm.attributes.get("epsilon") is None:
        return False
    if norm.op_type == _SKIP_NORM:
        skip = norm.inputs[1]
        return len(norm.inputs) == 3 and skip is not None and skip.shape is not None and _alike(skip.shape, x.shape)
    axis = norm.attributes.get("axis")
    return len(norm.inputs) == 2 and (axis is None or axis.as_int() == -1)


def _alike(a: ir.Shape, b: ir.Shape) -> bool:
    """Whether nothing is broadcast; dimensions that only have names may be equal under two of them."""
    known = [(i, j) for i, j in zip(a, b, strict=False) if isinstance(i, int) or isinstance(j, int)]
    return len(a) == len(b) and all(i == j for i, j in known)


def _give_outputs(graph: ir.Graph, product: ir.Node, new: ir.Node, total: ir.Value | None) -> None:
    """Put `new` in the place of a product; its second output, if it has one, in that of the norm's sum."""
    for old, value in zip((product.outputs[0], total), new.outputs, strict=False):
        assert old is not None
        value.name, value.type, value.shape = old.name, old.type, old.shape
        old.replace_all_uses_with(value, replace_graph_outputs=True)
    graph.remove(product, safe=True)


def give_norm_back(graph: ir.Graph, product: ir.Node) -> ir.Value:
    """What meets the weights of a product, by a norm of its own if the product had taken one over."""
    x, gamma = product.inputs[0], optional_input(product, schema.GAMMA)
    assert x is not None
    if gamma is None:
        return x
    skip, epsilon = optional_input(product, schema.SKIP), product.attributes["epsilon"].as_float()
    if skip is None:
        norm = ir.node(_NORM, [x, gamma], {"axis": -1, "epsilon": epsilon})
    else:
        norm = ir.node(_SKIP_NORM, [x, skip, gamma], {"epsilon": epsilon}, domain="com.microsoft", num_outputs=1 + _SUM)
    graph.insert_before(product, norm)
    if len(product.outputs) > 1:
        product.outputs[1].replace_all_uses_with(norm.outputs[_SUM], replace_graph_outputs=True)
    return norm.outputs[0]
