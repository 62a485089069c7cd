"""One PagedAttention node in plain operators: seal, attend, append, as kvedge.plugins.reference does them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvedge.export.plain.attend import ExactTokens, attend, read_packed
from kvedge.export.plain.expr import FLOAT, FLOAT16, Expr, concat, where
from kvedge.export.plain.places import PackedPlaces, Places, Profile
from kvedge.export.plain.prepare import Turn, prepare
from kvedge.export.plain.quantize import page_words
from kvedge.targets.spec import LayerSpec

_LARGEST = float(np.finfo(np.float16).max)


@dataclass(frozen=True, kw_only=True)
class LayerInputs:
    """Inputs of one layer; shapes as in kvedge.plugins.schema, B = 1.

    Args:
        projected: q, k and v, or one tensor with all three.
        turn: rotary embedding of q and k, or None.
        sink_turn: turn of the query towards the sinks, or None.
        hot, packed: the pools; packed is None where nothing is packed.
    """

    projected: tuple[Expr, ...]
    turn: Turn | None
    sink_turn: Turn | None
    hot: Expr
    packed: Expr | None


@dataclass(frozen=True, kw_only=True)
class LayerOutputs:
    """Outputs of one layer, as in kvedge.plugins.schema; packed is None where nothing is."""

    out: Expr
    hot: Expr
    packed: Expr | None
    pages_read: Expr


def paged_attention(layer: LayerSpec, profile: Profile, places: Places, inputs: LayerInputs) -> LayerOutputs:
    """One step of one layer."""
    q, k, v = prepare(layer, inputs.projected, inputs.turn, profile.new)
    fresh = _stored(concat([k.unsqueeze(0), v.unsqueeze(0)], 0), inputs.hot)  # [2, H, N, D] as the pool keeps them
    old = _hot_tokens(layer, profile, inputs.hot, places)
    exact = _exact_tokens(old, fresh)
    packed = pages = None
    if places.packed is not None:
        assert inputs.packed is not None
        packed = _seal(layer, profile, inputs.packed, places.packed, exact)
        pages = read_packed(layer, profile, packed, places.packed)
    return LayerOutputs(
        out=attend(layer, profile, places, (q, inputs.sink_turn), (exact, pages)),
        hot=_append(layer, profile, inputs.hot, places, fresh),
        packed=packed,
        pages_read=places.tiles * layer.kv_heads,
    )


def _stored(x: Expr, hot: Expr) -> Expr:
    """x in the pool's type, saturating."""
    return x.at_least(-_LARGEST).at_most(_LARGEST).cast(FLOAT16) if hot.dtype == FLOAT16 else x


def _hot_tokens(layer: LayerSpec, profile: Profile, hot: Expr, places: Places) -> Expr:
    """[2, H, tokens, D]: what the hot columns held before the step, in the pool's type."""
    pages = hot.take(places.hot_ids, 0).transpose(1, 2, 0, 3, 4)
    return pages.reshape(2, layer.kv_heads, profile.hot_slots * layer.rules.page, layer.head_dim)


def _exact_tokens(old: Expr, fresh: Expr) -> ExactTokens:
    both = concat([old, fresh], 2).cast(FLOAT)
    k, v = (side.squeeze(0) for side in both.halved(0))
    return ExactTokens(k=k, v=v)


def _seal(layer: LayerSpec, profile: Profile, packed: Expr, places: PackedPlaces, exact: ExactTokens) -> Expr:
    """The pool with the pages that the step makes old."""
    pages = profile.seals(layer.rules)
    shape = (layer.kv_heads, pages, layer.rules.page, layer.head_dim)
    k, v = (x.take(places.sealed_tokens, 1).reshape(*shape).transpose(1, 0, 2, 3) for x in (exact.k, exact.v))
    words = where(places.seals_any, page_words(layer, k, v, pages), packed.take(places.sealed_ids, 0))
    return packed.scatter(places.sealed_ids.unsqueeze(-1), words)


def _append(layer: LayerSpec, profile: Profile, hot: Expr, places: Places, fresh: Expr) -> Expr:
    """The pool with the new tokens."""
    rows = fresh.take(places.written, 2).transpose(2, 0, 1, 3)  # [N, 2, H, D]
    number = profile.new * 2 * layer.kv_heads
    sides = np.indices((2, layer.kv_heads), np.int32).reshape(2, -1).T  # [2 * H, (side, head)]
    middle = hot.recorder.constant(np.tile(sides, (profile.new, 1)))
    page, offset = (_each(x, profile, 2 * layer.kv_heads) for x in (places.pages, places.offsets))
    return hot.scatter(concat([page, middle, offset], -1), rows.reshape(number, layer.head_dim))


def _each(x: Expr, profile: Profile, times: int) -> Expr:
    """int32 [N * times, 1]: every element of x [N] that often."""
    rows = x.recorder.constant(np.repeat(np.arange(profile.new, dtype=np.int32), times))
    return x.take(rows, 0).unsqueeze(-1)
