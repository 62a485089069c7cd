"""Products that read the same become one product with all their weights.

Left apart, TensorRT for RTX joins gate and up of an MLP in the one profile and not in the other, and keeps such weights
twice: 106 of 412 MB in an engine of SmolLM2-135M.
"""

from __future__ import annotations

import onnx_ir as ir

from kvedge.export.standard.expr import FLOAT, FLOAT16, Expr, Recorder, concat
from kvedge.export.standard.splice import put_in_place

_PRODUCT = "FusedMatMul"


def join_products(graph: ir.Graph, recorder: Recorder) -> None:
    """Join products with weights that are stored as float16, in place: the engine's builder joins the weights."""
    together: dict[ir.Value, list[ir.Node]] = {}
    for node in graph:
        if node.op_type == _PRODUCT and _half(node) is not None:
            assert node.inputs[0] is not None
            together.setdefault(node.inputs[0], []).append(node)
    for x, nodes in together.items():
        if len(nodes) > 1:
            for node, part in zip(nodes, _joined(x, nodes, recorder), strict=True):
                put_in_place(graph, node, recorder, [part])


def _half(node: ir.Node) -> ir.Value | None:
    """The weights [outputs, inputs] of a product x . weights, where they are float16."""
    asked = {name: attribute.value for name, attribute in node.attributes.items()}
    cast = node.inputs[1].producer() if node.inputs[1] is not None else None
    if asked != {"transB": 1} or cast is None or cast.op_type != "Cast":
        return None
    half = cast.inputs[0]
    return half if half is not None and half.dtype == FLOAT16 else None


def _joined(x: ir.Value, nodes: list[ir.Node], recorder: Recorder) -> list[Expr]:
    """Results of all products."""
    weights = [half for node in nodes if (half := _half(node)) is not None]
    whole = concat([recorder.of(each) for each in weights], 0).transpose(1, 0)
    result, parts, first = (recorder.of(x).cast(FLOAT16) @ whole).cast(FLOAT), [], 0
    for each in weights:
        assert each.shape is not None
        width = each.shape[0]
        assert isinstance(width, int)
        last = first + width
        parts.append(result.part(-1, first, last))
        first = last
    return parts
