"""The exact twin of an artifact: its own graph and weights, with a cache that stores everything in float32.

Where a quantized cache hides an error of one position in its noise, the twin shows it: it must agree with the
original model to float32 noise.
"""

from __future__ import annotations

import math
from dataclasses import replace

import onnx_ir as ir

from kvedge.export.stamp import stamp
from kvedge.export.trace import TracedModel
from kvedge.plugins import schema
from kvedge.targets import names
from kvedge.targets.errors import require
from kvedge.targets.kinds import Kind
from kvedge.targets.spec import CacheSpec, LayerSpec


def exact_cache(cache: CacheSpec) -> CacheSpec:
    """The same windows, sinks and pages, with nothing packed."""
    return replace(cache, layers=tuple(_exact_layer(layer) for layer in cache.layers))


def exact_twin(stamped: ir.Model, cache: CacheSpec) -> ir.Model:
    """A graph with the cache of `exact_cache(cache)`, from one that was stamped with `cache`, which is used up."""
    unstamp(stamped, cache)
    traced = TracedModel(
        model=stamped,
        ropes=cache.ropes,
        layer_rope=tuple(layer.rope for layer in cache.layers),
        layers=(),
        key_biases={},  # they only concern what is packed
    )
    return stamp(traced, exact_cache(cache))


def unstamp(model: ir.Model, cache: CacheSpec) -> None:
    """Undo `stamp` in place: attention nodes as they were traced, no pools, tables and turns.

    Raises:
        KvedgeError: the graph was stamped with another cache.
    """
    graph = model.graph
    layers = {names.hot(layer.index): layer for layer in cache.layers}
    hot = schema.INPUTS.index("hot")
    for node in [node for node in graph if (node.domain, node.op_type) == (schema.DOMAIN, schema.NAME)]:
        pool = node.inputs[hot]
        assert pool is not None and pool.name is not None
        _check_node(node, layers[pool.name], cache)
        _unstamp_node(graph, node, layers[pool.name])
    kept = [value for value in graph.outputs if value.name == names.LOGITS]
    graph.outputs.clear()
    graph.outputs.extend(kept)
    for value in [value for value in graph.inputs if _is_of_cache(value, cache)]:
        graph.inputs.remove(value)


def _check_node(node: ir.Node, layer: LayerSpec, cache: CacheSpec) -> None:
    for name, wanted in schema.attributes(layer, interleaved=cache.is_interleaved(layer)).items():
        found = node.attributes[name].value
        fine = found == wanted or math.isclose(found, wanted, rel_tol=1e-6)
        require(fine, f"layer {layer.index} of the graph: {name}", expected=wanted, got=found, fix="export it again")


def _unstamp_node(graph: ir.Graph, node: ir.Node, layer: LayerSpec) -> None:
    facts = {"layer": layer.index, "scale": layer.scale, "softcap": layer.softcap, "window": layer.rules.window or 0}
    traced = ir.node(schema.NAME, node.inputs[: schema.INPUTS.index("hot")], facts, domain=schema.DOMAIN)
    traced.outputs[0].type, traced.outputs[0].shape = node.outputs[0].type, node.outputs[0].shape
    graph.insert_after(node, traced)
    node.outputs[0].replace_all_uses_with(traced.outputs[0])
    graph.remove(node)


def _is_of_cache(value: ir.Value, cache: CacheSpec) -> bool:
    ropes = range(len(cache.ropes))
    traced = {names.INPUT_IDS, names.LOGITS_INDEX, *map(names.cos, ropes), *map(names.sin, ropes)}
    return value.name not in traced


def _exact_layer(layer: LayerSpec) -> LayerSpec:
    return replace(layer, kind=Kind.FP, rules=replace(layer.rules, exact=True))
