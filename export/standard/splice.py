"""Put formulas into a graph."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from kvedge.export.standard.expr import Expr, Recorder


def put_in_place(graph: ir.Graph, node: ir.Node, recorder: Recorder, results: Sequence[Expr | None]) -> None:
    """Replace a node by what was recorded since; results stand for its outputs, None for those that nobody reads."""
    graph.insert_before(node, recorder.take_nodes())
    for old, result in zip(node.outputs, results, strict=False):
        if result is None:
            continue
        new, name = result.value, old.name
        new.shape = old.shape
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        old.name, new.name = None, name
    graph.remove(node, safe=True)


def add_constants(graph: ir.Graph, recorder: Recorder) -> None:
    """Give the graph the constants of all that was recorded."""
    for constant in recorder.constants:
        graph.register_initializer(constant)
