"""One PagedAttention node in plain operators: seal, attend, append, as kvedge.plugins.reference does them."""

from __future__ import annotations

from dataclasses import dataclass

from kvedge.export.plain.attend import ExactTokens, attend, read_packed
from kvedge.export.plain.key_bias import PlainBias, without_bias
from kvedge.export.plain.places import GraphSize, PackedPlaces, Places
from kvedge.export.plain.prepare import prepare
from kvedge.export.plain.quantize import page_words
from kvedge.export.standard.expr import FLOAT, FLOAT16, Expr, concat, where
from kvedge.export.standard.turn import Turn
from kvedge.export.standard.words import to_float16
from kvedge.targets.spec import LayerSpec


@dataclass(frozen=True, kw_only=True)
class LayerInputs:
    """Inputs of one layer; shapes as in kvedge.plugins.schema, B = 1.

    Args:
        projected: q, k and v, or one tensor with all three.
        turn: rotary embedding of q and k, or None.
        sink_turn: turn of the query towards the sinks, or None.
        hot, packed: the pools; packed is None where nothing is packed.
        bias: the key bias that packed pages lack, or None.
    """

    projected: tuple[Expr, ...]
    turn: Turn | None
    sink_turn: Turn | None
    hot: Expr
    packed: Expr | None
    bias: PlainBias | None = None


@dataclass(frozen=True, kw_only=True)
class LayerOutputs:
    """Outputs of one layer, as in kvedge.plugins.schema; packed is None where nothing is."""

    out: Expr
    hot: Expr
    packed: Expr | None
    pages_read: Expr


def paged_attention(layer: LayerSpec, size: GraphSize, places: Places, inputs: LayerInputs) -> LayerOutputs:
    """One step of one layer."""
    q, k, v = prepare(layer, inputs.projected, inputs.turn)
    fresh = _stored(concat([k.unsqueeze(0), v.unsqueeze(0)], 0), inputs.hot)  # [2, H, N, D] as the pool keeps them
    old = _hot_tokens(layer, size, inputs.hot, places)
    exact = _exact_tokens(old, fresh)
    packed = pages = None
    if places.packed is not None:
        packed = _seal(layer, inputs, places.packed, exact)
        pages = read_packed(layer, size, packed, places.packed)
    return LayerOutputs(
        out=attend(layer, size, places, (q, inputs.sink_turn), (exact, pages), inputs.bias),
        hot=_append(layer, inputs.hot, places, fresh),
        packed=packed,
        pages_read=places.tiles * layer.kv_heads,
    )


def _stored(x: Expr, hot: Expr) -> Expr:
    """x in the pool's type, saturating."""
    return to_float16(x) if hot.dtype == FLOAT16 else x


def _hot_tokens(layer: LayerSpec, size: GraphSize, hot: Expr, places: Places) -> Expr:
    """[2, H, tokens, D]: what the hot columns held before the step, in the pool's type."""
    pages = hot.take(places.hot_ids, 0).transpose(1, 2, 0, 3, 4)
    return pages.reshape(2, layer.kv_heads, size.hot_slots * layer.rules.page, layer.head_dim)


def _exact_tokens(old: Expr, fresh: Expr) -> ExactTokens:
    both = concat([old, fresh], 2).cast(FLOAT)
    k, v = (side.squeeze(0) for side in both.halved(0))
    return ExactTokens(k=k, v=v)


def _seal(layer: LayerSpec, inputs: LayerInputs, places: PackedPlaces, exact: ExactTokens) -> Expr:
    """The pool with the pages that the step makes old."""
    packed = inputs.packed
    assert packed is not None
    shape = (layer.kv_heads, -1, layer.rules.page, layer.head_dim)
    k, v = (x.take(places.sealed_tokens, 1).reshape(*shape).transpose(1, 0, 2, 3) for x in (exact.k, exact.v))
    k = k if inputs.bias is None else without_bias(layer, k, inputs.bias, places.sealed_pages)
    words = where(places.seals_any, page_words(layer, k, v), packed.take(places.sealed_ids.squeeze(-1), 0))
    return packed.scatter(places.sealed_ids, words)


def _append(layer: LayerSpec, hot: Expr, places: Places, fresh: Expr) -> Expr:
    """The pool with the new tokens: rows of D numbers, scattered."""
    rows = fresh.take(places.written, 2).transpose(2, 0, 1, 3).reshape(-1, layer.head_dim)
    return hot.reshape(-1, layer.head_dim).scatter(places.rows, rows).reshape(*layer.hot_shape(-1))
