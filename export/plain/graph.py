"""A whole artifact's graph in standard operators: one sequence, pools and tables of fixed sizes."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from kvedge.export.plain.key_bias import PlainBias
from kvedge.export.plain.layer import LayerInputs, paged_attention
from kvedge.export.plain.places import GraphSize, Places, Tables, find_places
from kvedge.export.standard.expr import Expr, Recorder
from kvedge.export.standard.operators import use_standard_operators
from kvedge.export.standard.products import join_products
from kvedge.export.standard.splice import add_constants, put_in_place
from kvedge.export.standard.turn import Turn
from kvedge.plugins import schema
from kvedge.targets import names
from kvedge.targets.errors import require
from kvedge.targets.kinds import USE_INT8
from kvedge.targets.profiles import StepLimits
from kvedge.targets.spec import CacheSpec, LayerSpec


def graph_size(cache: CacheSpec, limits: StepLimits, group: int) -> GraphSize:
    """Pools and tables of a group, as the runtime allocates them for one session."""
    pages = cache.groups[group].capacity(limits.context, limits.chunk)
    return GraphSize(
        chunk=limits.chunk,
        hot_pages=pages.hot_pages,
        hot_slots=pages.hot_pages,
        packed_pages=pages.packed_pages,
        packed_slots=pages.packed_pages,
    )


def make_plain(model: ir.Model, cache: CacheSpec, limits: StepLimits) -> None:
    """Rewrite a graph that was stamped with `cache`, in place: names of inputs and outputs stay.

    Of their dimensions `new` (1 to limits.chunk) and `rows` stay open, all others get their sizes.

    Raises:
        KvedgeError: more than one session, codes that are floats, or operators that have no standard form yet.
    """
    floats = next((layer.kind.value for layer in cache.layers if layer.rules.packs and layer.kind.has_floats), None)
    require(floats is None, "codes in standard operators", expected="integers", got=floats, fix=USE_INT8)
    require(limits.sessions == 1, "sessions of a graph in standard operators", expected="1", got=limits.sessions)
    graph = model.graph
    recorder = Recorder()
    _fix_sizes(graph, cache, limits)
    layers = _Layers(graph, cache, limits, recorder)
    for node in [node for node in graph if (node.domain, node.op_type) == (schema.DOMAIN, schema.NAME)]:
        layers.replace(node)
    recorder.part = "plain"
    join_products(graph, recorder)
    use_standard_operators(graph, recorder)
    add_constants(graph, recorder)
    RemoveUnusedNodesPass()(model)
    for domain in [domain for domain in model.opset_imports if domain]:
        model.opset_imports.pop(domain)


def _fix_sizes(graph: ir.Graph, cache: CacheSpec, limits: StepLimits) -> None:
    """Write sizes into inputs and outputs; what lies between has none any more."""
    sizes: dict[str, int | str] = {"batch": 1, "new": "new", "rows": "rows"}
    for group in range(len(cache.groups)):
        size = graph_size(cache, limits, group)
        sizes |= {f"hot_pages_{group}": size.hot_pages, f"hot_slots_{group}": size.hot_slots}
        sizes |= {f"packed_pages_{group}": size.packed_pages, f"packed_slots_{group}": size.packed_slots}
    for node in graph:
        for value in node.outputs:
            if not value.is_graph_output():
                value.shape = None
    for value in (*graph.inputs, *graph.outputs):
        assert value.shape is not None
        value.shape = ir.Shape([dim if isinstance(dim, int) else sizes[str(dim)] for dim in value.shape])


class _Layers:
    """Attention nodes of a graph, replaced one by one; layers of a group share what their tables say."""

    def __init__(self, graph: ir.Graph, cache: CacheSpec, limits: StepLimits, recorder: Recorder) -> None:
        self._graph, self._cache, self._limits, self._recorder = graph, cache, limits, recorder
        self._layers = {names.hot(layer.index): layer for layer in cache.layers}
        self._places: dict[tuple[int, int, int], Places] = {}

    def replace(self, node: ir.Node) -> None:
        """Put the plain form in the place of a node."""
        given = dict(zip(schema.INPUTS, node.inputs, strict=False))
        pool = given["hot"]
        assert pool is not None and pool.name is not None
        layer = self._layers[pool.name]
        size = graph_size(self._cache, self._limits, self._cache.group_of(layer))
        inputs = {name: self._recorder.of(value) for name, value in given.items() if value is not None}
        self._recorder.part = f"attention.{layer.index}"
        found = paged_attention(layer, size, self._find_places(layer, size, inputs), self._inputs(layer, inputs))
        put_in_place(self._graph, node, self._recorder, [found.out, found.hot, found.packed, found.pages_read])

    def _find_places(self, layer: LayerSpec, size: GraphSize, inputs: dict[str, Expr]) -> Places:
        key = (self._cache.group_of(layer), layer.heads, layer.kv_heads)
        if key not in self._places:
            self._places[key] = find_places(layer, size, self._tables(inputs))
        return self._places[key]

    def _tables(self, inputs: dict[str, Expr]) -> Tables:
        ids = next(value for value in self._graph.inputs if value.name == names.INPUT_IDS)
        return Tables(
            hot=inputs["hot_table"],
            packed=inputs.get("packed_table"),
            context=inputs["context"],
            num_new=inputs["num_new"],
            new=self._recorder.of(ids).size(1),
        )

    def _inputs(self, layer: LayerSpec, inputs: dict[str, Expr]) -> LayerInputs:
        turn = sink_turn = None
        if "cos" in inputs:
            turn = self._turn(layer, inputs["cos"], inputs["sin"])
        if "sink_cos" in inputs:
            sink_turn = self._turn(layer, inputs["sink_cos"], -inputs["sink_sin"])
        return LayerInputs(
            projected=tuple(inputs[name] for name in ("q", "k", "v") if name in inputs),
            turn=turn,
            sink_turn=sink_turn,
            hot=inputs["hot"],
            packed=inputs.get("packed"),
            bias=_key_bias(inputs) if "bias_page" in inputs else None,
        )

    def _turn(self, layer: LayerSpec, cos: Expr, sin: Expr) -> Turn:
        assert layer.rope is not None
        rope = self._cache.ropes[layer.rope]
        return Turn(cos=cos, sin=sin, pairs=rope.pairs, interleaved=rope.interleaved)


def _key_bias(inputs: dict[str, Expr]) -> PlainBias:
    return PlainBias(
        page=inputs["bias_page"], freqs=_known(inputs["bias_freqs"]), channels=_known(inputs["bias_channels"])
    )


def _known(constant: Expr) -> Any:
    """The numbers of an initializer."""
    tensor = constant.value.const_value
    assert tensor is not None
    return tensor.numpy()
