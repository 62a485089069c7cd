"""Graphs cut into blocks of layers, and run one after the other on ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from kvedge.export.build.blocks import Blocks, cut
from kvedge.export.build.cuts import Cutter
from kvedge.export.build.flow import find_flow
from kvedge.targets.spec import CacheSpec


def cut_graph(model: onnx.ModelProto, cache: CacheSpec, count: int) -> Blocks:
    """A graph in `count` blocks; one is the graph itself."""
    if count == 1:
        return Blocks(graphs=(model,), hidden=())
    layers = [layer.index for layer in cache.layers]
    cutter = Cutter(find_flow(model.graph, layers))
    return cut(model, cutter.flow, cutter.cuts(count), layers)


def cut_model(model: ir.Model, cache: CacheSpec, count: int) -> list[ir.Model]:
    """The same of a model in memory."""
    return [ir.from_proto(graph) for graph in cut_graph(ir.to_proto(model), cache, count).graphs]


class Chain:
    """Sessions in the place of one: each reads what is fed and what those before it gave."""

    def __init__(self, sessions: Sequence[ort.InferenceSession]) -> None:
        self._sessions = sessions

    def get_outputs(self) -> list[Any]:
        """Outputs of all, what they hand on included."""
        return [output for session in self._sessions for output in session.get_outputs()]

    def run(self, names: None, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Run all."""
        known, found = dict(feeds), []
        for session in self._sessions:
            results = session.run(names, {value.name: known[value.name] for value in session.get_inputs()})
            known |= zip((output.name for output in session.get_outputs()), results, strict=True)
            found += results
        return found
