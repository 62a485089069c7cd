"""Attention in plain operators: exact tokens and packed pages under one softmax."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvedge.export.plain.key_bias import PlainBias, bias_scores
from kvedge.export.plain.places import GraphSize, PackedPlaces, Places
from kvedge.export.plain.quantize import rotated, unrotated
from kvedge.export.standard.expr import Expr, concat, where
from kvedge.export.standard.turn import Turn, turned
from kvedge.export.standard.words import half_values, split_words, unpack_codes
from kvedge.targets.codebook import LEVELS, UNIFORM_BITS, UNIFORM_STEPS, Code
from kvedge.targets.spec import LayerSpec

_UNSEEN = -1e30
"""Score of what a query does not see: finite, so that a query that sees nothing (there is none) makes no NaN."""


@dataclass(frozen=True, kw_only=True)
class ExactTokens:
    """Keys and values float32 [H, tokens, D]: hot columns, then new tokens."""

    k: Expr
    v: Expr


@dataclass(frozen=True, kw_only=True)
class PackedTokens:
    """Pages in the rotated basis, all [slots, H, ...]: levels [D, T] and [T, D], scales [1, T], key mean [D, 1].

    The mean is not rotated.
    """

    k_levels: Expr
    v_levels: Expr
    k_scales: Expr
    v_scales: Expr
    k_mean: Expr


def read_packed(layer: LayerSpec, size: GraphSize, packed: Expr, places: PackedPlaces) -> PackedTokens:
    """Unpack the pages of the table from the pool int32 [pages, words]."""
    layout, kind = layer.packed_layout, layer.kind
    rows = (size.packed_slots, layer.kv_heads)
    words = packed.take(places.ids, 0).reshape(*rows, layout.head_words)
    halves = concat([side.unsqueeze(-2) for side in split_words(words)], -2)  # [slots, H, 2, words]
    k_halves = halves.part(-1, 0, layout.v_codes).reshape(*rows, -1, layout.page)
    v_halves = halves.part(-1, layout.v_codes, layout.k_scales).reshape(*rows, -1, layout.head_dim)
    numbers = half_values(halves.part(-1, layout.k_scales, layout.head_words).transpose(0, 1, 3, 2))
    numbers = numbers.reshape(*rows, 1, 2 * (layout.head_words - layout.k_scales))
    page, dim = layout.page, layout.head_dim
    return PackedTokens(
        k_levels=levels(unpack_codes(k_halves, kind.k_bits, dim), kind.k_code),
        v_levels=levels(unpack_codes(v_halves, kind.v_bits, page), kind.v_code),
        k_scales=numbers.part(-1, 0, page),
        v_scales=numbers.part(-1, page, 2 * page),
        k_mean=numbers.part(-1, 2 * page, 2 * page + dim).reshape(*rows, dim, 1),
    )


def levels(codes: Expr, code: Code) -> Expr:
    """float32 levels of codes, whole float32 numbers."""
    if code is Code.UNIFORM:
        whole = float(1 << UNIFORM_BITS)
        return where(codes >= whole / 2, codes - whole, codes) * (1 / UNIFORM_STEPS)
    positive = np.array(LEVELS[code.bits], np.float32)
    return codes.look_up(np.concatenate([positive, -positive]))


def attend(
    layer: LayerSpec,
    size: GraphSize,
    places: Places,
    query: tuple[Expr, Turn | None],
    tokens: tuple[ExactTokens, PackedTokens | None],
    bias: PlainBias | None,
) -> Expr:
    """Output float32 [1, N, Q * D].

    Args:
        query: [Q, N, D], and its turn towards the sinks.
        tokens: what there is to read; bias: what packed keys lack.
    """
    q, turn = query
    exact, packed = tokens
    dim = layer.head_dim
    grouped = q.reshape(layer.kv_heads, -1, dim)
    back = turned(q, turn, dim).reshape(layer.kv_heads, -1, dim) if turn is not None else None
    scores = _exact_scores(layer, size, places, (grouped, back), exact.k)
    if packed is not None:
        assert places.packed is not None
        besides = bias_scores(layer, grouped, bias, places.packed.pages) if bias is not None else None
        scores = concat([_packed_scores(layer, size, grouped, packed, besides), scores], -1)
    weights = _masked(layer, scores, places.seen).softmax()
    out = _weighted(layer, size, weights, (exact, packed))
    rows = out.reshape(layer.heads, -1, dim).transpose(1, 0, 2).reshape(-1, layer.heads * dim)
    return where(places.is_new.unsqueeze(-1), rows, 0.0).unsqueeze(0)


def _exact_scores(layer: LayerSpec, size: GraphSize, places: Places, query: tuple[Expr, Expr | None], k: Expr) -> Expr:
    """[H, G * N, tokens]: sinks by the query that is turned to them."""
    plain, back = query
    sinks = size.sink_tokens(layer.rules)
    old = sinks + size.ring_tokens(layer.rules)
    keys = k.transpose(0, 2, 1)
    if back is None:
        return plain @ keys
    ring, fresh = plain @ keys.part(-1, sinks, old), plain @ keys.after(-1, old)
    if layer.rules.window is not None and size.chunk > layer.rules.window:
        # Only in so long a step do sinks and queries come that have lost sight of what follows them.
        fresh = where(places.new_sinks, back @ keys.after(-1, old), fresh)
    return concat([*([back @ keys.part(-1, 0, sinks)] if sinks else []), ring, fresh], -1)


def _packed_scores(layer: LayerSpec, size: GraphSize, plain: Expr, packed: PackedTokens, besides: Expr | None) -> Expr:
    """[H, G * N, slots * T]; besides: what is added to them, [slots, H, G * N, T]."""
    turned_query = rotated(plain, layer.head_dim)
    scores = (turned_query @ packed.k_levels) * packed.k_scales + plain @ packed.k_mean  # [slots, H, G * N, T]
    scores = scores if besides is None else scores + besides
    return scores.transpose(1, 2, 0, 3).reshape(layer.kv_heads, -1, size.packed_slots * layer.rules.page)


def _masked(layer: LayerSpec, scores: Expr, seen: Expr) -> Expr:
    """[H, G * N, tokens]: scaled, capped, without what is not seen."""
    scaled = scores * layer.scale
    if layer.softcap:
        scaled = (scaled * (1 / layer.softcap)).tanh() * layer.softcap
    return where(seen, scaled, _UNSEEN)


def _weighted(
    layer: LayerSpec, size: GraphSize, weights: Expr, tokens: tuple[ExactTokens, PackedTokens | None]
) -> Expr:
    """[H, G * N, D]: values by weights [H, G * N, tokens]."""
    exact, packed = tokens
    if packed is None:
        return weights @ exact.v
    page, slots = layer.rules.page, size.packed_slots
    by_page = weights.part(-1, 0, slots * page).reshape(layer.kv_heads, -1, slots, page).transpose(2, 0, 1, 3)
    rotated_sum = ((by_page * packed.v_scales) @ packed.v_levels).sum(0).squeeze(0)
    return weights.after(-1, slots * page) @ exact.v + unrotated(rotated_sum, layer.head_dim)
