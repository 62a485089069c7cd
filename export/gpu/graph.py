"""A whole artifact's graph for GPUs: any number of sequences and of new tokens."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from kvedge.export.gpu.heads import by_head
from kvedge.export.gpu.level_biases import level_biases
from kvedge.export.gpu.node import given_inputs, plugin_node, put_node
from kvedge.export.standard.expr import Recorder
from kvedge.export.standard.operators import use_standard_operators
from kvedge.export.standard.products import join_products
from kvedge.export.standard.splice import add_constants
from kvedge.export.standard.turn import Turn
from kvedge.plugins import schema
from kvedge.plugins.cuda.forms import layer_forms
from kvedge.targets import names
from kvedge.targets.spec import CacheSpec, LayerSpec


def make_gpu(model: ir.Model, cache: CacheSpec) -> None:
    """Rewrite a graph that was stamped with `cache`, in place: names, types and shapes of inputs and outputs stay.

    Raises:
        KvedgeError: operators that have no standard form.
    """
    graph = model.graph
    recorder = Recorder()
    _level_biases(model, cache)
    layers = _Layers(graph, cache, recorder, layer_forms(cache, bias_pairs(model, cache)))
    for node in _attention(model):
        layers.replace(node)
    recorder.part = "gpu"
    join_products(graph, recorder)
    use_standard_operators(graph, recorder, kept=(schema.NAME,))
    add_constants(graph, recorder)
    RemoveUnusedNodesPass()(model)
    for domain in [domain for domain in model.opset_imports if domain not in ("", schema.DOMAIN)]:
        model.opset_imports.pop(domain)


def bias_pairs(model: ir.Model, cache: CacheSpec) -> dict[int, int]:
    """Pairs of the key biases in a graph for GPUs, by layer: the same for all that have one.

    Args:
        model: such a graph, or the stamped one that it is made of.
    """
    layers, found = _by_pool(cache), {}
    for given in map(given_inputs, _attention(model)):
        if "bias_freqs" in given:
            shape = given["bias_freqs"].shape
            assert shape is not None and isinstance(shape[0], int)
            found[layers[str(given["hot"].name)].index] = shape[0]
    return dict.fromkeys(found, max(found.values(), default=0))


def _level_biases(model: ir.Model, cache: CacheSpec) -> None:
    layers, biased = _by_pool(cache), []
    for node in _attention(model):
        given = given_inputs(node)
        layer = layers[str(given["hot"].name)]
        if "bias_freqs" in given and layer.rope is not None:
            biased.append((node, cache.ropes[layer.rope]))
    level_biases(biased)


def _by_pool(cache: CacheSpec) -> dict[str, LayerSpec]:
    return {names.hot(layer.index): layer for layer in cache.layers}


def _attention(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if (node.domain, node.op_type) == (schema.DOMAIN, schema.NAME)]


class _Layers:
    """Attention nodes of a graph, replaced one by one; layers of a rotary embedding share its angles."""

    def __init__(self, graph: ir.Graph, cache: CacheSpec, recorder: Recorder, forms: dict[int, int]) -> None:
        self._graph, self._cache, self._recorder, self._forms = graph, cache, recorder, forms
        self._layers = _by_pool(cache)
        self._angles: dict[int, Turn] = {}

    def replace(self, node: ir.Node) -> None:
        """Put the plugin's form in the place of a node."""
        given = given_inputs(node)
        layer = self._layers[str(given["hot"].name)]
        projected = [self._recorder.of(given[name]) for name in ("q", "k", "v") if name in given]
        angles = self._angles_of(layer, given["cos"], given["sin"]) if "cos" in given else None
        self._recorder.part = f"attention.{layer.index}"
        heads = by_head(layer, projected, angles)
        self._graph.insert_before(node, self._recorder.take_nodes())
        put_node(self._graph, node, plugin_node(node, heads, self._forms[layer.index]))

    def _angles_of(self, layer: LayerSpec, cos: ir.Value, sin: ir.Value) -> Turn:
        assert layer.rope is not None
        if layer.rope not in self._angles:
            rope = self._cache.ropes[layer.rope]
            self._angles[layer.rope] = Turn(
                cos=self._recorder.of(cos).unsqueeze(1),
                sin=self._recorder.of(sin).unsqueeze(1),
                pairs=rope.pairs,
                interleaved=rope.interleaved,
            )
        return self._angles[layer.rope]
