"""Trace a model once into an ONNX graph whose attention layers are `kvedge::PagedAttention` nodes.

The graph knows nothing of caches yet: pools, tables and the kind are stamped onto the nodes later, so that
one trace serves several kinds. Inputs: input_ids, logits_index, cos.{r} and sin.{r}; output: logits. Weights
stay the model's own tensors, under their Hugging Face names and in their [out, in] layout (a MatMul reads
them through a Transpose), so a tied embedding and head are one initializer.
"""

from __future__ import annotations

import inspect
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from onnx_ir.passes.common import (
    ClearMetadataAndDocStringPass,
    CommonSubexpressionEliminationPass,
    DeduplicateInitializersPass,
    IdentityEliminationPass,
    LiftConstantsToInitializersPass,
    RemoveUnusedNodesPass,
    RemoveUnusedOpsetsPass,
)
from onnxscript.optimizer import fold_constants
from torch import Tensor, nn
from torch.export import ExportedProgram
from transformers import PreTrainedModel

from kvedge.export import attention, graph_check
from kvedge.export.attention import Probe
from kvedge.export.families import NAMES, NO_EXPORT_YET, nearest
from kvedge.export.key_bias import key_biases
from kvedge.export.logits_of import logits_of
from kvedge.export.rotary import Feed, Ropes, fed_rotaries, find_sources, match_ropes
from kvedge.export.source import LoadedModel
from kvedge.targets import names
from kvedge.targets.errors import KvedgeError, require
from kvedge.targets.spec import RopeSpec

OPSET = 20
Decompose = Callable[[Mapping[object, object]], ExportedProgram]

_POSITION_IDS = "position_ids"  # traced to see whether anything but the rotary embedding reads positions
_ENDLESS = (1 << 63) - 1  # how torch writes the end of x[0:]
_SAMPLE = {"batch": 2, "new": 5, "rows": 3}
_SMALL = 64  # elements of a constant (a shape, a scalar) that is worth merging with its equals
_LOGIT_TOLERANCE = 1e-3  # of the logits' standard deviation; float32 noise is a hundred times smaller


@dataclass(frozen=True, kw_only=True)
class LayerFacts:
    """One attention layer as traced.

    Args:
        layer: its number in the model.
        heads: query heads (Q); kv_heads: key/value heads (H); head_dim: channels (D).
        scale: factor on q.k; softcap: 0 for none.
        window: the model's own sliding window, the current token included; 0 for none.
    """

    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    softcap: float
    window: int


@dataclass(frozen=True)
class TracedModel:
    """A traced model and what is needed to feed it.

    Args:
        model: the graph; weights still share memory with the loaded model.
        ropes: rotary embeddings; number r is fed by cos.{r} and sin.{r}.
        layer_rope: number of each layer's rotary embedding, None for layers without.
        layers: facts of the attention layers, in order.
        key_biases: bias [H, D] that a layer adds to its keys in front of the rotary embedding, by layer number.
    """

    model: ir.Model
    ropes: tuple[RopeSpec, ...]
    layer_rope: tuple[int | None, ...]
    layers: tuple[LayerFacts, ...]
    key_biases: dict[int, NDArray[np.float32]]


def trace(loaded: LoadedModel, *, max_positions: int | None = None) -> TracedModel:
    """Trace `loaded` into a graph with dynamic batch, new tokens and rows.

    Args:
        max_positions: positions that will ever be told apart (window and sinks), where the model's rotary
            embedding depends on the length (longrope).

    Raises:
        KvedgeError: a model that cannot be streamed or expressed, said per cause.
    """
    model = loaded.model
    _refuse_sharing(loaded)
    sources = find_sources(model, max_positions)
    probe = attention.probe_attention(model)
    _refuse_other_layers(loaded, probe)
    _refuse_outside_positions(probe)
    ropes = match_ropes(sources, probe)
    with attention.using_attention(model, attention.TRACING), fed_rotaries(model, ropes) as feed, _quiet():
        graph = _export(_Wrapper(model, feed), ropes, loaded)
    _name_weights(graph, model)
    _finish(graph, probe)
    layers = tuple(_layer_facts(node) for node in graph_check.attention_nodes(graph))
    graph_check.check_graph(graph, num_layers=len(probe.calls), num_ropes=len(ropes.specs))
    layer_rope = {facts.layer: rope for facts, rope in zip(layers, ropes.layer_rope, strict=True)}
    biases = key_biases(model, {layer: ropes.specs[rope] for layer, rope in layer_rope.items() if rope is not None})
    return TracedModel(graph, ropes.specs, ropes.layer_rope, layers, biases)


def _refuse_sharing(loaded: LoadedModel) -> None:
    modes = getattr(loaded.config.get_text_config(), "kv_sharing_modes", None) or ()
    require(
        "reuse" not in modes,
        f"{loaded.name} has layers that reuse the keys and values of others",
        fix=NO_EXPORT_YET,
    )


def _refuse_other_layers(loaded: LoadedModel, probe: Probe) -> None:
    layers = loaded.config.get_text_config().num_hidden_layers
    require(
        len(probe.calls) == layers,
        f"{loaded.name} has attention in {len(probe.calls)} of its {layers} layers",
        expected="attention in every layer (no convolution or recurrent state)",
        fix=NO_EXPORT_YET,
    )


def _refuse_outside_positions(probe: Probe) -> None:
    """Every token attended to itself only: equal tokens must give equal logits, wherever they stand."""
    logits = probe.logits
    allowed = _LOGIT_TOLERANCE * float(logits.std())
    require(
        float((logits[0, -1] - logits[1, -1]).abs().max()) <= allowed,
        "the model mixes tokens outside its attention layers (convolution, recurrent state)",
        expected="attention as the only way from token to token",
        fix=NO_EXPORT_YET,
    )
    require(
        float((logits[0, 0] - logits[0, -1]).abs().max()) <= allowed,
        "the model has learned or absolute positions, which end at the length it was trained for",
        expected="rotary positions, or none",
        fix=f"choose a model with rotary embeddings, such as {NAMES}",
    )


class _Wrapper(nn.Module):
    """The traced forward: feeds cos and sin, and keeps the tokens of `logits_index` in front of the head."""

    def __init__(self, model: PreTrainedModel, feed: Feed) -> None:
        super().__init__()
        self.model: Any = model
        self._feed = feed
        self._takes_positions = _POSITION_IDS in inspect.signature(model.forward).parameters

    def forward(
        self,
        input_ids: Tensor,
        logits_index: Tensor,
        position_ids: Tensor,
        cos: list[Tensor],
        sin: list[Tensor],
    ) -> Tensor:
        self._feed.cos[:], self._feed.sin[:] = cos, sin
        positions = {_POSITION_IDS: position_ids} if self._takes_positions else {}
        with logits_of(self.model, logits_index):
            logits: Tensor = self.model(input_ids=input_ids, use_cache=False, **positions).logits
            return logits


def _export(wrapper: _Wrapper, ropes: Ropes, loaded: LoadedModel) -> ir.Model:
    arguments, shapes = _sample(ropes)
    numbers = range(len(ropes.specs))
    rope_names = [names.cos(r) for r in numbers] + [names.sin(r) for r in numbers]
    try:
        with torch.no_grad():
            program = torch.export.export(wrapper, arguments, dynamic_shapes=shapes, strict=False)
        # torch.onnx.export asks the program to decompose itself: that takes most of its time.
        program.run_decompositions = partial(_decompose, program, program.run_decompositions)
        onnx_program = torch.onnx.export(
            program,
            (),
            dynamo=True,
            optimize=False,
            verbose=False,
            opset_version=OPSET,
            input_names=[names.INPUT_IDS, names.LOGITS_INDEX, _POSITION_IDS, *rope_names],
            output_names=[names.LOGITS],
        )
    except KvedgeError:
        raise
    except Exception as error:
        kind = loaded.config.model_type
        raise KvedgeError(
            f"{loaded.name} ({kind}) cannot be traced",
            expected=f"operators that have an ONNX form; nearest families that work: {nearest(kind)}",
            got=_root_cause(error),
        ) from error
    assert onnx_program is not None
    return onnx_program.model


def _root_cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _decompose(program: ExportedProgram, fully: Decompose, table: Mapping[object, object]) -> ExportedProgram:
    """Bring `program` to operators that have an ONNX form; `fully` is torch's own way, which traces it again.

    Most models need little: drop assertions and casts that change nothing. What mutates tensors, or is in the
    `table` of operators to decompose, is left to torch.
    """
    graph = program.graph_module.graph
    for node in list(graph.nodes):
        source: Any = node.args[0] if node.args else None
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            graph.erase_node(node)
        elif _changes_nothing(node, source):
            node.replace_all_uses_with(source)
            graph.erase_node(node)
    graph.eliminate_dead_code()
    operators = {node.target for node in graph.nodes if node.op == "call_function"}
    if any(operator in table or _is_left_to_torch(operator) for operator in operators):
        return fully(table)
    program.graph_module.recompile()
    return program


def _changes_nothing(node: torch.fx.Node, source: Any) -> bool:
    """Whether `node` is a cast to the same type, or a slice from the first element to the last."""
    if node.target is torch.ops.aten.to.dtype:
        return bool(source.meta["val"].dtype == node.meta["val"].dtype)
    if node.target is torch.ops.aten.slice.Tensor:
        return tuple(node.args[2:]) == (0, _ENDLESS) and not node.kwargs
    return False


def _is_left_to_torch(operator: object) -> bool:
    schema = getattr(operator, "_schema", None)
    mutable = schema is not None and schema.is_mutable
    return mutable or operator is torch.ops.aten.to.dtype


def _sample(ropes: Ropes) -> tuple[tuple[object, ...], tuple[object, ...]]:
    """Return sample arguments and their dynamic axes."""
    batch, new, rows = (torch.export.Dim(name) for name in _SAMPLE)
    b, n, r = _SAMPLE.values()
    tables = [torch.zeros(b, n, spec.pairs) for spec in ropes.specs]
    table_axes = [{0: batch, 1: new} for _ in ropes.specs]
    positions = torch.arange(n).expand(b, n).clone()
    arguments = (
        torch.ones(b, n, dtype=torch.long),
        torch.arange(r),
        positions,
        tables,
        [t + 1 for t in tables],
    )
    shapes = ({0: batch, 1: new}, {0: rows}, {0: batch, 1: new}, table_axes, table_axes)
    return arguments, shapes


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep advice to programmers of torch and onnxscript away from users."""
    noisy = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in noisy]
    try:
        for logger in noisy:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(noisy, levels, strict=True):
            logger.setLevel(level)


def _finish(model: ir.Model, probe: Probe) -> None:
    """Clean the graph up in place and stamp each layer's window."""
    _name_dimensions(model)
    for node in graph_check.attention_nodes(model):
        call = probe.calls.get(node.attributes["layer"].as_int())
        node.attributes["window"] = ir.AttrInt64("window", call.window if call else 0)
    _simplify_shapes(model)
    # Transposes stay: folding them would copy every weight.
    fold_constants(model, onnx_shape_inference=False, should_fold=_may_fold)
    for graph_pass in (
        LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        DeduplicateInitializersPass(size_limit=_SMALL),
        IdentityEliminationPass(),
        CommonSubexpressionEliminationPass(),
        RemoveUnusedNodesPass(),
        RemoveUnusedOpsetsPass(),
        ClearMetadataAndDocStringPass(),
    ):
        graph_pass(model)
    _drop_position_ids(model)


def _may_fold(node: ir.Node) -> bool | None:
    return False if node.op_type == "Transpose" else None


def _simplify_shapes(model: ir.Model) -> None:
    """Give every Reshape a constant target; drop casts and flattenings that change nothing."""
    for node in model.graph:
        source, result = node.inputs[0] if node.inputs else None, node.outputs[0]
        if source is None or source.shape is None:
            continue
        if _is_idle(node, source):
            result.replace_all_uses_with(source)
            continue
        target = _constant_target(source.shape, result.shape) if node.op_type == "Reshape" else None
        if target is not None:
            name = f"shape_of.{result.name}"
            value = ir.Value(name=name, const_value=ir.tensor(target, dtype=ir.DataType.INT64, name=name))
            model.graph.register_initializer(value)
            node.replace_input_with(1, value)
            node.attributes.pop("allowzero", None)  # torch sets it, and 0 would mean an empty axis


def _is_idle(node: ir.Node, source: ir.Value) -> bool:
    """Whether `node` casts to the type that its source has, or flattens a vector."""
    if node.op_type == "Cast":
        return source.dtype == node.attributes["to"].as_int()
    if node.op_type == "Reshape" and source.shape is not None and len(source.shape) == 1:
        shape = node.inputs[1]
        target = None if shape is None else ir.convenience.get_const_tensor(shape)
        return target is not None and target.numpy().tolist() == [-1]
    return False


def _constant_target(source: ir.Shape, result: ir.Shape | None) -> list[int] | None:
    """Write `result` for a Reshape of `source`: 0 where an axis stays, at most one -1; else None."""
    if result is None:
        return None
    target = []
    for axis, size in enumerate(result):
        stays = axis < len(source) and source[axis] == size
        target.append(size if isinstance(size, int) else 0 if stays else -1)
    return target if target.count(-1) <= 1 else None


def _name_weights(graph_model: ir.Model, model: nn.Module) -> None:
    """Give initializers the model's own parameter names, and merge those that share memory (tied weights)."""
    names_by_memory = {_memory(tensor): name for name, tensor in model.named_parameters()}
    initializers = graph_model.graph.initializers
    kept: dict[str, ir.Value] = {}
    for old_name, value in list(initializers.items()):
        tensor = getattr(value.const_value, "raw", None)
        name = names_by_memory.get(_memory(tensor)) if isinstance(tensor, Tensor) else None
        if name is None:
            continue
        first = kept.setdefault(name, value)
        if first is not value:
            value.replace_all_uses_with(first)
            initializers.pop(old_name)
    for name, value in kept.items():
        value.name = name
        if value.const_value is not None:
            value.const_value.name = name


def _memory(tensor: Tensor) -> tuple[int, tuple[int, ...]]:
    return tensor.data_ptr(), tuple(tensor.shape)


def _name_dimensions(model: ir.Model) -> None:
    """Call the traced symbols batch, new and rows."""
    inputs = {value.name: value for value in model.graph.inputs}
    ids, index = inputs[names.INPUT_IDS].shape, inputs[names.LOGITS_INDEX].shape
    assert ids is not None and index is not None
    readable = {str(ids[0]): "batch", str(ids[1]): "new", str(index[0]): "rows"}
    symbol = re.compile(r"\b(" + "|".join(map(re.escape, readable)) + r")\b")
    for value in _all_values(model):
        if value.shape is not None:
            value.shape = ir.Shape([_renamed(dim, symbol, readable) for dim in value.shape])


def _renamed(dim: int | ir.SymbolicDim, symbol: re.Pattern[str], readable: dict[str, str]) -> int | ir.SymbolicDim:
    if isinstance(dim, int) or dim.value is None:
        return dim
    return ir.SymbolicDim(symbol.sub(lambda match: readable[match[0]], dim.value))


def _all_values(model: ir.Model) -> Iterator[ir.Value]:
    yield from model.graph.inputs
    for node in model.graph:
        yield from node.outputs


def _drop_position_ids(model: ir.Model) -> None:
    """Remove the input that shows whether anything reads positions besides the rotary embeddings."""
    value = next(value for value in model.graph.inputs if value.name == _POSITION_IDS)
    ranges = [str(node.name) for node in model.graph if node.op_type in ("Range", "CumSum")]
    require(
        not value.uses() and not ranges,
        "the model uses positions outside its rotary embeddings",
        expected="positions in rotary embeddings only",
        got=", ".join(ranges + [use.node.op_type for use in value.uses()]),
        fix=NO_EXPORT_YET,
    )
    model.graph.inputs.remove(value)


def _layer_facts(node: ir.Node) -> LayerFacts:
    query, key = node.inputs[:2]
    assert query is not None and query.shape is not None and key is not None and key.shape is not None
    attributes = node.attributes
    return LayerFacts(
        layer=attributes["layer"].as_int(),
        heads=_fixed(query.shape[1]),
        kv_heads=_fixed(key.shape[1]),
        head_dim=_fixed(query.shape[3]),
        scale=attributes["scale"].as_float(),
        softcap=attributes["softcap"].as_float(),
        window=attributes["window"].as_int(),
    )


def _fixed(size: int | ir.SymbolicDim) -> int:
    assert isinstance(size, int)
    return size
