"""Fused operators of ONNX Runtime as standard ones, for parsers that know no others.

A product with a weight that is stored as float16 is made in float16, and its result is float32 again: what a GPU is
fast at. A lookup casts what it found and not the table, which would be kept in float32. The rest stays float32.
"""

from __future__ import annotations

import onnx_ir as ir

from kvedge.export.plain.expr import FLOAT, FLOAT16, Expr, Recorder
from kvedge.export.plain.splice import put_in_place
from kvedge.targets.errors import require


def use_standard_operators(graph: ir.Graph, recorder: Recorder) -> None:
    """Replace them all, in place; their constants are the recorder's.

    Raises:
        KvedgeError: operators that have no such form yet.
    """
    for node in list(graph):
        if node.op_type == "Gather" and node.inputs[0] is not None and _half(node.inputs[0]):
            put_in_place(graph, node, recorder, [_lookup(node, recorder)])
        elif node.op_type in _FORMS:
            put_in_place(graph, node, recorder, _FORMS[node.op_type](node, recorder))
    others = sorted({f"{node.domain}.{node.op_type}" for node in graph if node.domain})
    require(
        not others,
        f"{', '.join(others)} in the graph",
        expected="operators that have a standard form",
        fix="export with --weights fp16 or fp32",
    )


def _product(node: ir.Node, recorder: Recorder) -> list[Expr | None]:
    """FusedMatMul with a transposed weight."""
    x, weight = node.inputs
    known = {"transB": 1, "transA": 0, "transBatchA": 0, "transBatchB": 0, "alpha": 1.0}
    asked = {name: attribute.value for name, attribute in node.attributes.items()}
    fine = all(known.get(name) == value for name, value in asked.items()) and "transB" in asked
    require(fine, f"product {node.name}", expected="x times a transposed weight", got=asked)
    assert x is not None and weight is not None
    half = _half(weight)
    matrix = recorder.of(half or weight).transpose(1, 0)
    return [(recorder.of(x).cast(matrix.dtype) @ matrix).cast(FLOAT)]


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


def _norm(node: ir.Node, recorder: Recorder) -> list[Expr | None]:
    """SimplifiedLayerNormalization: the RMS norm of its first input."""
    x, gamma = node.inputs
    assert x is not None and gamma is not None
    return [_normed(recorder.of(x), recorder.of(gamma), node)]


def _skip_norm(node: ir.Node, recorder: Recorder) -> list[Expr | None]:
    """SkipSimplifiedLayerNormalization: the RMS norm of a sum, and the sum as its fourth output."""
    x, skip, gamma = node.inputs[:3]
    assert x is not None and skip is not None and gamma is not None
    total = recorder.of(x) + recorder.of(skip)
    return [_normed(total, recorder.of(gamma), node), None, None, total]


def _normed(x: Expr, gamma: Expr, node: ir.Node) -> Expr:
    return x / ((x * x).mean(-1) + node.attributes["epsilon"].as_float()).sqrt() * gamma


_FORMS = {
    "FusedMatMul": _product,
    "SimplifiedLayerNormalization": _norm,
    "SkipSimplifiedLayerNormalization": _skip_norm,
}
