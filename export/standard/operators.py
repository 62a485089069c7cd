"""Fused operators of ONNX Runtime as standard ones, for parsers that know no others.

A product with a weight that is stored as float16 is made in float16, and its result is float32 again: what a GPU is
fast at. A lookup casts what it found and not the table, which would be kept in float32. The rest stays float32.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from kvedge.export.standard.blocks import OPSET, embedding, gated, linear
from kvedge.export.standard.expr import FLOAT, FLOAT16, Expr, Recorder
from kvedge.export.standard.norms import norm, skip_norm
from kvedge.export.standard.splice import put_in_place
from kvedge.plugins import schema
from kvedge.targets.errors import require


def use_standard_operators(graph: ir.Graph, recorder: Recorder, kept: Collection[str] = ()) -> None:
    """Replace them all, in place; their constants are the recorder's.

    Args:
        kept: operators that stay, by name.

    Raises:
        KvedgeError: operators that have no such form yet.
    """
    for node in list(graph):
        if node.op_type == "Gather" and node.inputs[0] is not None and _half(node.inputs[0]):
            put_in_place(graph, node, recorder, [_lookup(node, recorder)])
        elif node.op_type in _FORMS:
            put_in_place(graph, node, recorder, _FORMS[node.op_type](node, recorder))
    if any(node.op_type == "DequantizeLinear" for node in graph):
        graph.opset_imports[""] = max(OPSET, graph.opset_imports[""])
    others = sorted({f"{node.domain}.{node.op_type}" for node in graph if node.domain and node.op_type not in kept})
    require(
        not others,
        f"{', '.join(others)} in the graph",
        expected="operators that have a standard form",
        fix="report this model",
    )


def _product(node: ir.Node, recorder: Recorder) -> list[Expr | None]:
    """FusedMatMul with a transposed weight, times alpha."""
    x, weight = node.inputs
    known = {"transB": 1, "transA": 0, "transBatchA": 0, "transBatchB": 0}
    asked = {name: attribute.value for name, attribute in node.attributes.items()}
    alpha = float(asked.pop("alpha", 1.0))
    fine = all(known.get(name) == value for name, value in asked.items()) and "transB" in asked
    require(fine, f"product {node.name}", expected="x times a transposed weight", got=asked)
    assert x is not None and weight is not None
    half = _half(weight)
    matrix = recorder.of(half or weight).transpose(1, 0)
    product = (recorder.of(x).cast(matrix.dtype) @ matrix).cast(FLOAT)
    return [product if alpha == 1.0 else product * alpha]


def _half(weight: ir.Value) -> ir.Value | None:
    """The float16 weight that is cast to this one."""
    cast = weight.producer()
    if cast is None or cast.op_type != "Cast" or cast.inputs[0] is None or cast.inputs[0].dtype != FLOAT16:
        return None
    return cast.inputs[0]


def _lookup(node: ir.Node, recorder: Recorder) -> Expr:
    """Gather from a table that is stored as float16."""
    table, ids = node.inputs
    assert table is not None and ids is not None
    half = _half(table)
    assert half is not None
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
    return recorder.of(half).take(recorder.of(ids), axis).cast(FLOAT)


_FORMS = {
    "FusedMatMul": _product,
    "SimplifiedLayerNormalization": norm,
    "SkipSimplifiedLayerNormalization": skip_norm,
    schema.LINEAR: linear,
    schema.GATED: gated,
    schema.EMBEDDING: embedding,
}
