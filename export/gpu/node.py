"""A layer's attention node in the form that the TensorRT plugin takes, and the CUDA provider's op with it.

Inputs, those that there are, in the order of kvedge.plugins.schema, named by the attribute `inputs` (TensorRT cannot
leave one out in the middle): q, k and v by head and turned, float32 [B, heads, N, D], so never cos and sin; all others
as the schema says. `packed_out` is absent where `packed` is. Besides the schema's attributes there is `form`, the
number of the kernels that the layer needs (kvedge.plugins.cuda.forms). The plugin also wants those kernels' bytes, as
an attribute `kernels`: which, only the chip can say, so whoever builds an engine adds it.
"""

from __future__ import annotations

import onnx_ir as ir

from kvedge.export.standard.expr import Expr
from kvedge.plugins import schema

_FED = ("cos", "sin")
"""Inputs of the schema that such a node never has."""


def plugin_node(old: ir.Node, heads: tuple[Expr, Expr, Expr], form: int) -> ir.Node:
    """The node that stands for a stamped one, with outputs of the same types and shapes.

    Args:
        heads: q, k and v by head.
    """
    new = (head.value for head in heads)
    given = given_inputs(old) | dict(zip(schema.INPUTS[:3], new, strict=True))
    present = [name for name in schema.INPUTS if name in given and name not in _FED]
    node = ir.Node(
        schema.DOMAIN,
        schema.NAME,
        [given[name] for name in present],
        [*old.attributes.values(), ir.AttrString(schema.GIVEN, ",".join(present)), ir.AttrInt64(schema.FORM, form)],
        num_outputs=len(_outputs(old)),
        name=old.name,
    )
    for value, like in zip(node.outputs, _outputs(old), strict=True):
        value.name, value.type, value.shape = like.name, like.type, like.shape
    return node


def put_node(graph: ir.Graph, old: ir.Node, new: ir.Node) -> None:
    """Put the node in the place of the stamped one."""
    graph.insert_after(old, new)
    for value, result in zip(_outputs(old), new.outputs, strict=True):
        value.replace_all_uses_with(result, replace_graph_outputs=True)
        value.name = None
    graph.remove(old, safe=True)


def given_inputs(node: ir.Node) -> dict[str, ir.Value]:
    """Inputs that a node has, by name: of a stamped node, or of one in the plugin's form."""
    listed = node.attributes.get(schema.GIVEN)
    order = schema.INPUTS if listed is None else listed.as_string().split(",")
    return {name: value for name, value in zip(order, node.inputs, strict=False) if value is not None}


def _outputs(stamped: ir.Node) -> list[ir.Value]:
    """Outputs that it has: packed_out is one only where there is packed."""
    has_packed = "packed" in given_inputs(stamped)
    named = zip(schema.OUTPUTS, stamped.outputs, strict=True)
    return [value for name, value in named if has_packed or name != "packed_out"]
