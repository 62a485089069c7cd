"""Stamp a cache onto a traced graph: pools, tables and turns become inputs and outputs of the attention nodes."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from kvedge.export import graph_check
from kvedge.export.trace import TracedModel
from kvedge.plugins import schema
from kvedge.plugins.key_bias import key_bias
from kvedge.targets import names
from kvedge.targets.kinds import HotDtype
from kvedge.targets.spec import CacheSpec, LayerSpec

_HOT_TYPES = {HotDtype.FLOAT32: ir.DataType.FLOAT, HotDtype.FLOAT16: ir.DataType.FLOAT16}
_Shape = list[int | str | ir.SymbolicDim]
_BATCH, _NEW = ir.SymbolicDim("batch"), ir.SymbolicDim("new")


def stamp(traced: TracedModel, cache: CacheSpec) -> ir.Model:
    """A copy of the traced graph that reads and writes the cache; weights are shared with the original."""
    model = traced.model.clone()
    inputs = _CacheInputs(model.graph, cache)
    nodes = graph_check.attention_nodes(model)
    for node, layer in zip(nodes, cache.layers, strict=True):
        assert node.attributes["layer"].as_int() == layer.index
        _stamp_node(
            model.graph, node, layer, cache, [*inputs.of(layer), *_bias_inputs(model.graph, traced, cache, layer)]
        )
    model.opset_imports[schema.DOMAIN] = schema.VERSION
    return model


class _CacheInputs:
    """Graph inputs of the cache, made once and shared by the layers of a group."""

    def __init__(self, graph: ir.Graph, cache: CacheSpec) -> None:
        self._graph, self._cache = graph, cache
        self._made: dict[str, ir.Value] = {}

    def of(self, layer: LayerSpec) -> list[ir.Value | None]:
        """Inputs of the layer's node after cos and sin, in the order of the schema."""
        group, packs = self._cache.group_of(layer), layer.rules.packs
        turn = self._cache.turn_of(layer)
        return [
            self._pool(layer),
            self._packed(layer) if packs else None,
            self._make(names.hot_table(group), ir.DataType.INT32, [_BATCH, f"hot_slots_{group}"]),
            self._make(names.packed_table(group), ir.DataType.INT32, [_BATCH, f"packed_slots_{group}"])
            if packs
            else None,
            self._make(names.CONTEXT, ir.DataType.INT32, [_BATCH]),
            self._make(names.NUM_NEW, ir.DataType.INT32, [_BATCH]),
            self._turn(names.sink_cos(*turn), turn[1]) if turn else None,
            self._turn(names.sink_sin(*turn), turn[1]) if turn else None,
        ]

    def _pool(self, layer: LayerSpec) -> ir.Value:
        shape: _Shape = [f"hot_pages_{self._cache.group_of(layer)}", *layer.hot_shape(0)[1:]]
        return self._make(names.hot(layer.index), _HOT_TYPES[layer.kind.hot_dtype], shape)

    def _packed(self, layer: LayerSpec) -> ir.Value:
        shape: _Shape = [f"packed_pages_{self._cache.group_of(layer)}", layer.packed_shape(0)[1]]
        return self._make(names.packed(layer.index), ir.DataType.INT32, shape)

    def _turn(self, name: str, rope: int) -> ir.Value:
        return self._make(name, ir.DataType.FLOAT, [_BATCH, _NEW, self._cache.ropes[rope].pairs])

    def _make(self, name: str, dtype: ir.DataType, shape: _Shape) -> ir.Value:
        if name not in self._made:
            self._made[name] = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
            self._graph.inputs.append(self._made[name])
        return self._made[name]


def _bias_inputs(graph: ir.Graph, traced: TracedModel, cache: CacheSpec, layer: LayerSpec) -> list[ir.Value | None]:
    """Constants of the layer's key bias, where it has one that matters and packs."""
    bias = traced.key_biases.get(layer.index)
    if bias is None or layer.rope is None or not layer.rules.packs:
        return [None, None, None]
    table = key_bias(bias, cache.ropes[layer.rope], layer.rules.page)
    if len(table.freqs) == 0:
        return [None, None, None]
    arrays = {"bias_page": table.page, "bias_freqs": table.freqs, "bias_channels": table.channels}
    return [_constant(graph, f"{name}.{layer.index}", array) for name, array in arrays.items()]


def _constant(graph: ir.Graph, name: str, array: NDArray[Any]) -> ir.Value:
    tensor = ir.tensor(array, name=name)
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)
    graph.register_initializer(value)
    return value


def _stamp_node(
    graph: ir.Graph, node: ir.Node, layer: LayerSpec, cache: CacheSpec, cache_inputs: list[ir.Value | None]
) -> None:
    """Replace the traced node by one with the cache, and put its pools among the graph's outputs."""
    hot, packed = cache_inputs[0], cache_inputs[1]
    attributes = schema.attributes(layer, interleaved=cache.is_interleaved(layer))
    given = [*node.inputs, *[None] * (schema.INPUTS.index("hot") - len(node.inputs))]
    stamped = ir.node(
        schema.NAME,
        [*given, *cache_inputs],
        attributes,
        domain=schema.DOMAIN,
        num_outputs=len(schema.OUTPUTS),
        name=f"attention.{layer.index}",
    )
    out, hot_out, packed_out, pages_read = stamped.outputs
    out.type, out.shape = node.outputs[0].type, node.outputs[0].shape
    graph.insert_after(node, stamped)
    node.outputs[0].replace_all_uses_with(out)
    graph.remove(node, safe=True)
    assert hot is not None
    _publish(graph, hot_out, names.hot_out(layer.index), hot)
    if packed is not None:
        _publish(graph, packed_out, names.packed_out(layer.index), packed)
    else:
        packed_out.name = ""
    pages_read.type, pages_read.shape = ir.TensorType(ir.DataType.INT32), ir.Shape([_BATCH])
    pages_read.name = names.pages_read(layer.index)
    graph.outputs.append(pages_read)


def _publish(graph: ir.Graph, output: ir.Value, name: str, like: ir.Value) -> None:
    output.name, output.type, output.shape = name, like.type, like.shape
    graph.outputs.append(output)
