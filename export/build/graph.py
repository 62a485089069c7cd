"""The artifact's graph as the builder gets it: cut into blocks, with the kernels of the chip in the plugin's nodes."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np
import onnx

from kvedge.export.build.blocks import Blocks, cut
from kvedge.export.build.cuts import Cutter
from kvedge.export.build.flow import find_flow
from kvedge.plugins import schema
from kvedge.targets import manifest as artifact
from kvedge.targets import names
from kvedge.targets.devices import EngineKind
from kvedge.targets.engine_file import Build
from kvedge.targets.errors import require
from kvedge.targets.manifest import Manifest
from kvedge.targets.supports import kernel_chips, other_chip


class Source:
    """An artifact's graph, whose weights stay in their file.

    Args:
        folder: the artifact; manifest: what it says.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self._model = onnx.load(str(folder / artifact.GRAPH), load_external_data=False)
        self._layers = [layer.index for layer in manifest.cache.layers]

    @cached_property
    def cutter(self) -> Cutter:
        """Where the graph can be cut.

        Raises:
            KvedgeError: nowhere between two layers.
        """
        return Cutter(find_flow(self._model.graph, self._layers))

    def share(self, count: int) -> float:
        """Share of the weights in the largest of this many blocks."""
        return 1.0 if count == 1 else self.cutter.cuts(count).share

    def blocks(self, count: int) -> Blocks:
        """The graphs of this many blocks of layers.

        Raises:
            KvedgeError: there are fewer layers, or a value that would cross is not of the form of hidden states.
        """
        if count == 1:
            return Blocks(graphs=(self._model,), hidden=())
        return cut(self._model, self.cutter.flow, self.cutter.cuts(count), self._layers)

    def as_bytes(self, graph: onnx.ModelProto, made: Build) -> bytes:
        """A graph as the builder takes it: TensorRT's plugin gets its kernels.

        Raises:
            KvedgeError: the artifact has no kernels for the chip.
        """
        if made.engine is EngineKind.TENSORRT:
            return graph_with_kernels(graph, self.folder, self.manifest, made.sm)
        return bytes(graph.SerializeToString())


def graph_with_kernels(graph: onnx.ModelProto, folder: Path, manifest: Manifest, sm: int) -> bytes:
    """Bytes of a graph with the kernels of a chip in its attention nodes.

    Raises:
        KvedgeError: the artifact has no kernels for the chip.
    """
    model = onnx.ModelProto()
    model.CopyFrom(graph)
    bundles: dict[int, onnx.TensorProto] = {}
    for node in model.graph.node:
        if node.op_type != schema.NAME:
            continue
        form = next(attribute.i for attribute in node.attribute if attribute.name == schema.FORM)
        if form not in bundles:
            bundles[form] = _bundle(folder, manifest, form, sm)
        node.attribute.append(onnx.helper.make_attribute(schema.KERNELS, bundles[form]))
    return bytes(model.SerializeToString())


def _bundle(folder: Path, manifest: Manifest, form: int, sm: int) -> onnx.TensorProto:
    """A file as a tensor of bytes: the parser adds a byte to texts."""
    name = names.kernels(form, sm)
    got = ", ".join(f"SM{each}" for each in kernel_chips(manifest, form)) or "none"
    fix = other_chip(manifest.cache, sm)
    require(name in manifest.files, f"kernels in {folder}", expected=f"for SM{sm}", got=got, fix=fix)
    data = np.frombuffer((folder / name).read_bytes(), np.int8)
    return onnx.numpy_helper.from_array(data, name)
