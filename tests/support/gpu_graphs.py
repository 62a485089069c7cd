"""Graphs for GPUs on ONNX Runtime's CPU provider: the plugin's nodes become the CPU op, which here stands in for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from chains import Chain

from kvedge.export.gpu.graph import make_gpu
from kvedge.export.gpu.node import given_inputs
from kvedge.plugins import library, schema
from kvedge.plugins.feeds import Row, build_feeds
from kvedge.targets import manifest, names
from kvedge.targets.spec import CacheSpec

_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
_EXACT_PRODUCTS = ("session.qdq_matmulnbits_accuracy_level", "1")
"""Else ONNX Runtime rounds what meets 4-bit weights to 8 bits."""


def load(folder: Path) -> ir.Model:
    """An artifact's graph."""
    return ir.load(folder / manifest.GRAPH)


def gpu_model(folder: Path, cache: CacheSpec) -> ir.Model:
    """An artifact's graph for GPUs."""
    model = load(folder)
    make_gpu(model, cache)
    return model


def plugin_nodes(model: ir.Model) -> list[ir.Node]:
    """Attention nodes in the plugin's form."""
    return [node for node in model.graph if (node.domain, node.op_type) == (schema.DOMAIN, schema.NAME)]


def stand_in_cpu_op(model: ir.Model) -> ir.Model:
    """The same graph with the CPU op where the plugin would be, in place."""
    for node in plugin_nodes(model):
        given = given_inputs(node)
        for name in ("q", "k", "v"):
            given[name] = _by_token(model.graph, node, given[name])
        attributes = [value for name, value in node.attributes.items() if name not in (schema.GIVEN, schema.FORM)]
        ordered = [given.get(name) for name in schema.INPUTS]
        op = ir.Node(schema.DOMAIN, schema.NAME, ordered, attributes, num_outputs=len(schema.OUTPUTS))
        named = [name for name in schema.OUTPUTS if name != "packed_out" or "packed" in given]
        model.graph.insert_after(node, op)
        for name, old in zip(named, node.outputs, strict=True):
            new = op.outputs[schema.OUTPUTS.index(name)]
            new.name, new.type, new.shape = old.name, old.type, old.shape
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        for value in op.outputs:
            value.name = value.name or ""
        model.graph.remove(node, safe=True)
    return model


def _by_token(graph: ir.Graph, before: ir.Node, value: ir.Value) -> ir.Value:
    """[B, heads, N, D] as [B, N, heads * D]."""
    shape = ir.tensor(np.array([0, 0, -1], np.int64), name=f"{value.name}.flat")
    flat = ir.Value(name=shape.name, type=ir.TensorType(shape.dtype), shape=ir.Shape((3,)), const_value=shape)
    graph.register_initializer(flat)
    transpose = ir.node("Transpose", [value], {"perm": [0, 2, 1, 3]})
    reshape = ir.node("Reshape", [transpose.outputs[0], flat])
    graph.insert_before(before, [transpose, reshape])
    return reshape.outputs[0]


def cut_attention_out(model: ir.Model) -> ir.Model:
    """What is left without the plugin, in place: its float inputs are outputs of the graph, its results inputs."""
    graph = model.graph
    for number, node in enumerate(plugin_nodes(model)):
        for name in ("q", "k", "v"):
            value = given_inputs(node)[name]
            value.name = f"{name}.{number}"
            graph.outputs.append(value)
        out, *pools = node.outputs
        attended = ir.Value(name=f"attended.{number}", type=out.type, shape=out.shape)
        graph.inputs.append(attended)
        out.replace_all_uses_with(attended)
        for pool in pools:
            graph.outputs.remove(pool)
        graph.remove(node, safe=True)
    for value in [value for value in graph.inputs if not value.uses()]:
        graph.inputs.remove(value)
    model.opset_imports.pop(schema.DOMAIN)
    return model


class BatchTrial:
    """A graph with pools for several sequences, page by page of their own, fed ragged steps.

    Args:
        model: the graph, or those of its blocks.
        weights: folder of the files that its weights are in.
        batch: number of sequences; context: tokens of each at most; chunk: new tokens of a step at most, if fewer.
    """

    def __init__(
        self,
        model: ir.Model | list[ir.Model],
        weights: Path,
        cache: CacheSpec,
        *,
        batch: int,
        context: int,
        chunk: int | None = None,
    ) -> None:
        models = model if isinstance(model, list) else [model]
        self._session = Chain([_session(each, weights) for each in models])
        self._cache, self._batch = cache, batch
        self._capacities = [rules.capacity(context, chunk or context) for rules in cache.groups]
        self._outputs = [output.name for output in self._session.get_outputs()]
        self.contexts, self.pages_read = [0] * batch, 0
        self._pools = self._empty_pools()

    def step(self, ids: Sequence[Sequence[int]]) -> np.ndarray:
        """Feed each sequence some tokens; logits [batch, tokens of the longest, vocab]."""
        rows = [
            Row(
                ids=part,
                context=context,
                hot=[[row * each.hot_pages + page for page in range(each.hot_pages)] for each in self._capacities],
                packed=[
                    [row * each.packed_pages + page for page in range(each.packed_pages)] for each in self._capacities
                ],
            )
            for row, (part, context) in enumerate(zip(ids, self.contexts, strict=True))
        ]
        feeds = build_feeds(self._cache, rows, range(max(map(len, ids))))
        out = dict(zip(self._outputs, self._session.run(None, feeds | self._pools), strict=True))
        for name in self._pools:
            kind, layer = name.split(".")
            self._pools[name] = out[f"{kind}_out.{layer}"]
        self.pages_read += sum(int(out[names.pages_read(layer.index)].sum()) for layer in self._cache.layers)
        self.contexts = [context + len(part) for context, part in zip(self.contexts, ids, strict=True)]
        return np.asarray(out[names.LOGITS])

    def _empty_pools(self) -> dict[str, np.ndarray]:
        pools = {}
        for layer in self._cache.layers:
            capacity = self._capacities[self._cache.group_of(layer)]
            hot = layer.hot_shape(self._batch * capacity.hot_pages)
            pools[names.hot(layer.index)] = np.zeros(hot, layer.kind.hot_dtype.value)
            if layer.rules.packs:
                packed = layer.packed_shape(self._batch * capacity.packed_pages)
                pools[names.packed(layer.index)] = np.zeros(packed, np.int32)
        return pools


def _session(model: ir.Model, weights: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry(_WEIGHTS_FOLDER, str(weights))
    options.add_session_config_entry(*_EXACT_PRODUCTS)
    library.register(options)
    content = ir.to_proto(model).SerializeToString()
    return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def keep_half_rounding(model: ir.Model) -> ir.Model:
    """The same graph, with a float16 operator at each end of its float16 products, in place.

    The CPU provider multiplies in float32 and drops casts that meet; these it cannot drop, so that inputs and results
    are rounded as on a GPU.
    """
    axes = ir.tensor(np.zeros(1, np.int64), name="half_axes")
    axis = ir.Value(name=axes.name, type=ir.TensorType(axes.dtype), shape=ir.Shape((1,)), const_value=axes)
    model.graph.register_initializer(axis)

    def detour(value: ir.Value) -> list[ir.Node]:
        there = ir.node("Unsqueeze", [value, axis])
        return [there, ir.node("Squeeze", [there.outputs[0], axis])]

    for node in [node for node in model.graph if node.op_type == "MatMul"]:
        x, result = node.inputs[0], node.outputs[0]
        if x is None or result.dtype != ir.DataType.FLOAT16:
            continue
        before, uses = detour(x), list(result.uses())
        model.graph.insert_before(node, before)
        node.replace_input_with(0, before[-1].outputs[0])
        after = detour(result)
        model.graph.insert_after(node, after)
        for use in uses:
            use.node.replace_input_with(use.idx, after[-1].outputs[0])
    return model
