"""Check a traced graph: one attention node a layer, every rotary input used, no length baked in."""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir

from kvedge.plugins import schema
from kvedge.targets import names
from kvedge.targets.errors import require

_MIXING = frozenset({"Conv", "CumSum", "GRU", "If", "LSTM", "Loop", "Pad", "RNN", "Scan"})


def attention_nodes(model: ir.Model) -> list[ir.Node]:
    """List the PagedAttention nodes in order of their layers."""
    nodes = [node for node in model.graph if (node.domain, node.op_type) == (schema.DOMAIN, schema.NAME)]
    return sorted(nodes, key=lambda node: node.attributes["layer"].as_int())


def check_graph(model: ir.Model, *, num_layers: int, num_ropes: int) -> None:
    """Check `model` against the number of attention layers and rotary embeddings.

    Raises:
        KvedgeError: what is missing, doubled or unused.
    """
    _check_layers(model, num_layers)
    _check_ropes(model, num_ropes)
    _check_mixing(model)
    _check_dynamic(model)


def _check_layers(model: ir.Model, num_layers: int) -> None:
    counts = Counter(node.attributes["layer"].as_int() for node in attention_nodes(model))
    doubled = sorted(layer for layer, count in counts.items() if count > 1)
    missing = sorted(set(range(num_layers)) - set(counts))
    require(
        not doubled and not missing and len(counts) == num_layers,
        "attention nodes of the trace",
        expected=f"one for each of layers 0 to {num_layers - 1}",
        got=f"layers {sorted(counts)}, doubled {doubled}, missing {missing}",
        fix="this model's attention layers are numbered in a way that kvedge does not know",
    )


def _check_ropes(model: ir.Model, num_ropes: int) -> None:
    inputs = {value.name: value for value in model.graph.inputs}
    wanted = [name(rope) for rope in range(num_ropes) for name in (names.cos, names.sin)]
    unused = [name for name in wanted if name not in inputs or not inputs[name].uses()]
    require(
        not unused,
        f"rotary inputs {', '.join(unused)} are not used by the traced graph",
        expected="every rotary embedding fed from outside",
        fix="this model computes its rotary embedding in a way that kvedge does not know",
    )


def _check_mixing(model: ir.Model) -> None:
    """Only attention may carry anything from token to token: no other state is kept between steps."""
    mixing = sorted({node.op_type for node in model.graph if node.op_type in _MIXING})
    require(
        not mixing,
        "the model mixes tokens outside its attention layers",
        expected="attention as the only way from token to token",
        got=", ".join(mixing),
        fix="no export for it yet",
    )


def _check_dynamic(model: ir.Model) -> None:
    shapes = {value.name: value.shape for value in (*model.graph.inputs, *model.graph.outputs)}
    ids, index, logits = (shapes[name] for name in (names.INPUT_IDS, names.LOGITS_INDEX, names.LOGITS))
    assert ids is not None and index is not None and logits is not None
    require(
        [str(dim) for dim in (*ids, *index, *logits[:2])] == ["batch", "new", "rows", "batch", "rows"],
        "the trace fixed or mixed up a length that must stay free",
        expected="input_ids [batch, new], logits_index [rows], logits [batch, rows, vocab]",
        got=f"{ids}, {index}, {logits}",
        fix="this model computes its logits in a way that kvedge does not know",
    )
