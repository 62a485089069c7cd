"""A graph of one attention layer alone, to look at, to build and to time."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from kvedge.export.plain.key_bias import PlainBias
from kvedge.export.plain.layer import LayerInputs, LayerOutputs, paged_attention
from kvedge.export.plain.places import GraphSize, Tables, find_places
from kvedge.export.standard.expr import FLOAT, FLOAT16, INT32, Expr, Recorder
from kvedge.export.standard.turn import Turn
from kvedge.plugins.key_bias import KeyBias
from kvedge.targets.kinds import HotDtype
from kvedge.targets.spec import LayerSpec, RopeSpec

NEW = "new"
"""The dimension that stays open: new tokens of a step."""
OPSET = 20
IR_VERSION = 10
HOT_TYPES = {HotDtype.FLOAT32: FLOAT, HotDtype.FLOAT16: FLOAT16}


def layer_model(layer: LayerSpec, size: GraphSize, rope: RopeSpec, bias: KeyBias | None = None) -> ir.Model:
    """The op of one layer: inputs and outputs by the names of kvedge.plugins.schema, B = 1.

    Queries and keys come turned; sink_cos and sink_sin are inputs where the layer has sinks. Without packed pages
    there is no packed, packed_table and packed_out.
    """
    recorder, inputs = Recorder(), _Inputs()
    given = _layer_inputs(layer, size, rope, recorder, inputs)
    if bias is not None:
        page = recorder.constant(bias.page)
        given = replace(given, bias=PlainBias(page=page, freqs=bias.freqs, channels=bias.channels))
    tables = Tables(
        hot=recorder.of(inputs.add("hot_table", INT32, 1, size.hot_slots)),
        packed=recorder.of(inputs.add("packed_table", INT32, 1, size.packed_slots)) if layer.rules.packs else None,
        context=recorder.of(inputs.add("context", INT32, 1)),
        num_new=recorder.of(inputs.add("num_new", INT32, 1)),
        new=given.projected[0].size(1),
    )
    outputs = paged_attention(layer, size, find_places(layer, size, tables), given)
    graph = ir.Graph(
        inputs.values,
        _named(layer, size, outputs),
        nodes=recorder.take_nodes(),
        initializers=recorder.constants,
        opset_imports={"": OPSET},
        name="paged_attention",
    )
    return ir.Model(graph, ir_version=IR_VERSION)


class _Inputs:
    def __init__(self) -> None:
        self.values: list[ir.Value] = []

    def add(self, name: str, dtype: ir.DataType, *shape: int | str) -> ir.Value:
        self.values.append(ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape)))
        return self.values[-1]


def _layer_inputs(
    layer: LayerSpec, size: GraphSize, rope: RopeSpec, recorder: Recorder, inputs: _Inputs
) -> LayerInputs:
    def add(name: str, dtype: ir.DataType, *shape: int | str) -> Expr:
        return recorder.of(inputs.add(name, dtype, *shape))

    widths = {"q": layer.heads, "k": layer.kv_heads, "v": layer.kv_heads}
    projected = tuple(add(name, FLOAT, 1, NEW, heads * layer.head_dim) for name, heads in widths.items())
    sinks = None
    if layer.rules.sinks:
        cos, sin = (add(name, FLOAT, 1, NEW, rope.pairs) for name in ("sink_cos", "sink_sin"))
        sinks = Turn(cos=cos, sin=-sin, pairs=rope.pairs, interleaved=rope.interleaved)
    return LayerInputs(
        projected=projected,
        turn=None,
        sink_turn=sinks,
        hot=add("hot", HOT_TYPES[layer.kind.hot_dtype], *layer.hot_shape(size.hot_pages)),
        packed=add("packed", INT32, *layer.packed_shape(size.packed_pages)) if layer.rules.packs else None,
    )


def _named(layer: LayerSpec, size: GraphSize, outputs: LayerOutputs) -> list[ir.Value]:
    """Outputs with their names and shapes."""
    found = [
        ("out", outputs.out, (1, NEW, layer.heads * layer.head_dim)),
        ("hot_out", outputs.hot, layer.hot_shape(size.hot_pages)),
        ("pages_read", outputs.pages_read, (1,)),
    ]
    if outputs.packed is not None:
        found.append(("packed_out", outputs.packed, layer.packed_shape(size.packed_pages)))
    for name, expr, shape in found:
        expr.value.name, expr.value.shape = name, ir.Shape(shape)
    return [expr.value for _, expr, _ in found]
