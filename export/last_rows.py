"""What follows the last attention layer is computed only for the tokens whose logits are asked for.

The traced graph picks those tokens in front of the head. Everything between the last attention and there treats each
token by itself, so picking them earlier gives the same: of a prompt, the last layer's MLP sees one token.
"""

from __future__ import annotations

import onnx_ir as ir

from kvedge.export import graph_check
from kvedge.plugins import schema
from kvedge.targets import names

_BY_TOKEN = frozenset(
    (
        *("Add", "Cast", "Div", "Erf", "FusedMatMul", "Gelu", "Mul", "Neg", "QuickGelu", "Sigmoid", "Sub", "Tanh"),
        *("SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization", "SkipLayerNormalization"),
        *("LayerNormalization", "Sqrt", "RMSNormalization", "Split"),
        *(schema.LINEAR, schema.GATED),
    )
)


def pick_rows_early(model: ir.Model) -> None:
    """Move the choice of tokens behind the last attention, in place; where that cannot be done, nothing changes."""
    graph = model.graph
    index = next(value for value in graph.inputs if value.name == names.LOGITS_INDEX)
    uses = list(index.uses())
    attention = graph_check.attention_nodes(model)
    if len(uses) != 1 or uses[0].node.op_type != "Gather" or not attention:
        return
    choice = uses[0].node
    before = _ancestors([attention[-1]])
    end = choice.inputs[0]
    region = [node for node in _ancestors([end.producer() if end is not None else None]) if node not in before]
    if not region or not all(_treats_tokens_apart(node, before, set(region), choice) for node in region):
        return
    chosen = _choose(graph, region, before, index)
    for node in region:
        for number, value in enumerate(node.inputs):
            if value in chosen:
                node.replace_input_with(number, chosen[value])
        for output in node.outputs:
            _now_rows(output, index)
    assert end is not None
    choice.outputs[0].replace_all_uses_with(end, replace_graph_outputs=True)
    graph.remove(choice, safe=True)


def _ancestors(nodes: list[ir.Node | None]) -> dict[ir.Node, None]:
    """The nodes and all that they need."""
    found: dict[ir.Node, None] = {}
    waiting = [node for node in nodes if node is not None]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found[node] = None
            producers = [value.producer() for value in node.inputs if value is not None]
            waiting += [producer for producer in producers if producer is not None]
    return found


def _treats_tokens_apart(node: ir.Node, before: dict[ir.Node, None], region: set[ir.Node], choice: ir.Node) -> bool:
    """Whether a node gives each token [batch, new, ...] what it gives it alone, to nobody outside."""
    inside = all(use.node in region or use.node is choice for output in node.outputs for use in output.uses())
    by_token = all(_is_constant(value) or _has_tokens(value, before) for value in node.inputs if value is not None)
    axis = node.attributes.get("axis")
    over_tokens = node.op_type == "Split" and axis is not None and axis.as_int() not in (-1, 2)
    return node.op_type in _BY_TOKEN and inside and by_token and not over_tokens


def _is_constant(value: ir.Value) -> bool:
    return value.is_initializer() and value.shape is not None


def _has_tokens(value: ir.Value, before: dict[ir.Node, None]) -> bool:
    """Whether a value is [batch, new, channels]; what elementwise operators of the region make has no shape noted."""
    if value.shape is None:
        producer = value.producer()
        return producer is not None and producer not in before
    return len(value.shape) == 3


def _choose(
    graph: ir.Graph, region: list[ir.Node], before: dict[ir.Node, None], index: ir.Value
) -> dict[ir.Value, ir.Value]:
    """Chosen tokens of every value that the region gets from before."""
    chosen: dict[ir.Value, ir.Value] = {}
    for value in [value for node in region for value in node.inputs if value is not None]:
        producer = value.producer()
        if value in chosen or producer is None or producer not in before:
            continue
        gather = ir.node("Gather", [value, index], {"axis": 1})
        gather.outputs[0].type, gather.outputs[0].shape = value.type, value.shape
        _now_rows(gather.outputs[0], index)
        graph.insert_after(producer, gather)
        chosen[value] = gather.outputs[0]
    return chosen


def _now_rows(value: ir.Value, index: ir.Value) -> None:
    if value.shape is not None and index.shape is not None:
        value.shape = ir.Shape([value.shape[0], index.shape[0], *value.shape[2:]])
