"""Attention nodes take over what stands around them: rotary embedding, transposes and reshapes.

A traced attention node gets q, k and v by head, [B, heads, N, D], with the rotary embedding in them. Where from is
found by walking back from q to the one value that all of what depends on cos and sin is made of; the probe has shown
(kvedge.export.rotary) that q is that value, turned. Models write the turn in many ways, and none of them matters here.
The node then has the inputs q, k, v, cos and sin of the operator (kvedge.plugins.schema), and gives [B, N, heads * D].
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from kvedge.export import graph_check
from kvedge.export.trace import LayerFacts, TracedModel
from kvedge.plugins import schema
from kvedge.targets import names

_MOVES = frozenset(
    ("Concat", "Expand", "Flatten", "Gather", "Neg", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze")
)
_BY_TOKEN = (0, 2, 1, 3)


def absorb(traced: TracedModel) -> None:
    """Let the attention nodes of a traced graph take over, in place; those that have done so before stay."""
    graph = traced.model.graph
    turned = _depending(graph, len(traced.ropes))
    order = {id(node): number for number, node in enumerate(graph)}
    nodes = graph_check.attention_nodes(traced.model)
    for node, facts, rope in zip(nodes, traced.layers, traced.layer_rope, strict=True):
        if node.outputs[0].shape is not None and len(node.outputs[0].shape) == 3:
            continue
        q, k, v = (value for value in node.inputs if value is not None)
        plain_q, plain_k = (None if rope is None else _unturned(value, turned, order) for value in (q, k))
        found = plain_q is not None and plain_k is not None
        angles: list[ir.Value | None] = [None, None]
        if found:
            inputs = {value.name: value for value in graph.inputs}
            angles = [inputs[names.cos(rope or 0)], inputs[names.sin(rope or 0)]]
        q, k = (plain_q, plain_k) if plain_q is not None and plain_k is not None else (q, k)
        heads = [facts.heads, facts.kv_heads, facts.kv_heads]
        by_token = [_by_token(graph, node, x, n, facts.head_dim) for x, n in zip((q, k, v), heads, strict=True)]
        _replace(graph, node, [*by_token, *angles], facts)
    RemoveUnusedNodesPass()(traced.model)


def _depending(graph: ir.Graph, num_ropes: int) -> set[ir.Value]:
    """Values that depend on cos and sin, as far as the next attention node."""
    angles = {name(rope) for rope in range(num_ropes) for name in (names.cos, names.sin)}
    found = {value for value in graph.inputs if value.name in angles}
    for node in graph:
        if node.domain != schema.DOMAIN and any(value in found for value in node.inputs):
            found.update(node.outputs)
    return found


def _unturned(value: ir.Value, turned: set[ir.Value], order: dict[int, int]) -> ir.Value | None:
    """The value of the same shape that `value` is made of, but for cos and sin; None where there is no such one."""
    sources, waiting, seen = set(), [value], set()
    while waiting:
        node = waiting.pop().producer()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        for source in _variable(node.inputs):
            if source not in turned:
                sources.add(source)
            elif not source.is_graph_input():
                waiting.append(source)
    # What only moves values is opened, from the end, until one value is left.
    while len(sources) > 1 or (sources and next(iter(sources)).shape != value.shape):
        last = max(sources, key=lambda source: order.get(id(source.producer()), -1))
        node = last.producer()
        if node is None or node.op_type not in _MOVES:
            return None
        sources.remove(last)
        sources.update(_variable(node.inputs))
    return next(iter(sources), None)


def _variable(values: Iterable[ir.Value | None]) -> list[ir.Value]:
    return [value for value in values if value is not None and not value.is_initializer()]


def _by_token(graph: ir.Graph, before: ir.Node, value: ir.Value, heads: int, head_dim: int) -> ir.Value:
    """[B, heads, N, D] as [B, N, heads, D] or [B, N, heads * D], whichever there is."""
    node = value.producer()
    if node is None or not _swaps_heads(node):
        transpose = ir.node("Transpose", [value], {"perm": _BY_TOKEN})
        transpose.outputs[0].type = value.type
        graph.insert_before(before, transpose)
        return transpose.outputs[0]
    source = node.inputs[0]
    assert source is not None
    reshape = source.producer()
    flat = reshape.inputs[0] if reshape is not None and reshape.op_type == "Reshape" else None
    if flat is not None and flat.shape is not None and len(flat.shape) == 3 and flat.shape[2] == heads * head_dim:
        return flat
    return source


def _replace(graph: ir.Graph, node: ir.Node, inputs: list[ir.Value | None], facts: LayerFacts) -> None:
    new = ir.node(node.op_type, inputs, node.attributes, domain=node.domain)
    result, old = new.outputs[0], node.outputs[0]
    assert old.shape is not None
    width = facts.heads * facts.head_dim
    result.type, result.shape = old.type, ir.Shape([*old.shape[:2], width])
    graph.insert_after(node, new)
    for use in list(old.uses()):
        _use_flat(graph, use.node, use.idx, result, old)
    graph.remove(node, safe=True)


def _use_flat(graph: ir.Graph, user: ir.Node, index: int, flat: ir.Value, old: ir.Value) -> None:
    """Let `user` read [B, N, heads * D] where it read [B, N, heads, D]."""
    shape = user.outputs[0].shape
    if user.op_type == "Reshape" and shape is not None and len(shape) == 3 and shape[2] == flat.shape[2]:  # type: ignore[index]
        user.outputs[0].replace_all_uses_with(flat)
        graph.remove(user, safe=True)
        return
    assert old.shape is not None
    target = ir.tensor([0, 0, *old.shape.numpy()[2:]], dtype=ir.DataType.INT64, name=f"{old.name}.by_head")
    value = ir.Value(name=target.name, type=ir.TensorType(target.dtype), shape=ir.Shape([4]), const_value=target)
    graph.register_initializer(value)
    reshape = ir.node("Reshape", [flat, value])
    reshape.outputs[0].type, reshape.outputs[0].shape = old.type, old.shape
    graph.insert_before(user, reshape)
    user.replace_input_with(index, reshape.outputs[0])


def norm_by_token(model: ir.Model) -> None:
    """Norms of single heads between two transposes do without them, in place: they treat each head of a token alone."""
    graph = model.graph
    for back in [node for node in graph if _swaps_heads(node)]:
        norm = back.inputs[0].producer() if back.inputs[0] is not None else None
        if norm is None or norm.op_type != "SimplifiedLayerNormalization" or len(norm.outputs[0].uses()) > 1:
            continue
        there = norm.inputs[0].producer() if norm.inputs[0] is not None else None
        source = there.inputs[0] if there is not None and _swaps_heads(there) else None
        axis = norm.attributes.get("axis")
        if source is None or axis is None or axis.as_int() != -1:
            continue
        new = ir.node(norm.op_type, [source, *norm.inputs[1:]], norm.attributes, domain=norm.domain)
        new.outputs[0].type, new.outputs[0].shape = norm.outputs[0].type, source.shape
        graph.insert_after(norm, new)
        back.outputs[0].replace_all_uses_with(new.outputs[0])
    RemoveUnusedNodesPass()(model)


def _swaps_heads(node: ir.Node) -> bool:
    return node.op_type == "Transpose" and tuple(node.attributes["perm"].as_ints()) == _BY_TOKEN
