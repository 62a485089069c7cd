"""Attention in plain operators: exact tokens and packed pages under one softmax."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvedge.export.plain.expr import Expr, concat, where
from kvedge.export.plain.places import PackedPlaces, Places, Profile
from kvedge.export.plain.prepare import Turn, turned
from kvedge.export.plain.quantize import rotated, unrotated
from kvedge.export.plain.words import half_values, split_words, unpack_codes
from kvedge.targets.codebook import LEVELS, UNIFORM_BITS, UNIFORM_STEPS
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


def read_packed(layer: LayerSpec, profile: Profile, packed: Expr, places: PackedPlaces) -> PackedTokens:
    """Unpack the pages of the table from the pool int32 [pages, words]."""
    layout, kind = layer.packed_layout, layer.kind
    rows = (profile.packed_slots, layer.kv_heads)
    words = packed.take(places.ids, 0).reshape(*rows, layout.head_words)
    halves = concat([side.unsqueeze(-2) for side in split_words(words)], -2)  # [slots, H, 2, words]
    k_halves = halves.part(-1, 0, layout.v_codes).reshape(*rows, -1, layout.page)
    v_halves = halves.part(-1, layout.v_codes, layout.k_scales).reshape(*rows, -1, layout.head_dim)
    numbers = half_values(halves.part(-1, layout.k_scales, layout.head_words).transpose(0, 1, 3, 2))
    numbers = numbers.reshape(*rows, 1, 2 * (layout.head_words - layout.k_scales))
    page, dim = layout.page, layout.head_dim
    return PackedTokens(
        k_levels=levels(unpack_codes(k_halves, kind.k_bits, dim), kind.k_bits),
        v_levels=levels(unpack_codes(v_halves, kind.v_bits, page), kind.v_bits),
        k_scales=numbers.part(-1, 0, page),
        v_scales=numbers.part(-1, page, 2 * page),
        k_mean=numbers.part(-1, 2 * page, 2 * page + dim).reshape(*rows, dim, 1),
    )


def levels(codes: Expr, bits: int) -> Expr:
    """float32 levels of codes, whole float32 numbers."""
    if bits == UNIFORM_BITS:
        whole = float(1 << UNIFORM_BITS)
        return where(codes >= whole / 2, codes - whole, codes) * (1 / UNIFORM_STEPS)
    positive = np.array(LEVELS[bits], np.float32)
    return codes.look_up(np.concatenate([positive, -positive]))


def attend(
    layer: LayerSpec,
    profile: Profile,
    places: Places,
    query: tuple[Expr, Turn | None],
    tokens: tuple[ExactTokens, PackedTokens | None],
) -> Expr:
    """Output float32 [1, N, Q * D].

    Args:
        query: [Q, N, D], and its turn towards the sinks.
        tokens: what there is to read.
    """
    q, turn = query
    exact, packed = tokens
    new, dim, group = profile.new, layer.head_dim, layer.heads // layer.kv_heads
    grouped = q.reshape(layer.kv_heads, group * new, dim)
    back = turned(q, turn, dim).reshape(layer.kv_heads, group * new, dim) if turn is not None else None
    scores = [_masked(layer, profile, _exact_scores(layer, profile, places, (grouped, back), exact.k), places.seen)]
    if packed is not None:
        assert places.packed is not None
        seen = places.packed.seen
        scores.append(_masked(layer, profile, _packed_scores(layer, profile, grouped, packed), seen))
    weights = concat(scores, -1).softmax().reshape(layer.kv_heads, group * new, -1)
    out = _weighted(layer, profile, weights, (exact, packed))
    rows = out.reshape(layer.heads, new, dim).transpose(1, 0, 2).reshape(new, layer.heads * dim)
    return where(places.is_new.unsqueeze(-1), rows, 0.0).unsqueeze(0)


def _exact_scores(layer: LayerSpec, profile: Profile, places: Places, query: tuple[Expr, Expr | None], k: Expr) -> Expr:
    """[H, G * N, tokens]: sinks by the query that is turned to them."""
    plain, back = query
    sinks = profile.sink_tokens(layer.rules)
    old = sinks + profile.ring_tokens(layer.rules)
    keys = k.transpose(0, 2, 1)
    if back is None:
        return plain @ keys
    ring, fresh = plain @ keys.part(-1, sinks, old), plain @ keys.part(-1, old, old + profile.new)
    if layer.rules.window is not None and profile.new > layer.rules.window:
        # Only in so long a step do sinks and queries come that have lost sight of what follows them.
        fresh = where(places.new_sinks, back @ keys.part(-1, old, old + profile.new), fresh)
    return concat([*([back @ keys.part(-1, 0, sinks)] if sinks else []), ring, fresh], -1)


def _packed_scores(layer: LayerSpec, profile: Profile, plain: Expr, packed: PackedTokens) -> Expr:
    """[H, G * N, slots * T]."""
    turned_query = rotated(plain, layer.head_dim)
    scores = (turned_query @ packed.k_levels) * packed.k_scales + plain @ packed.k_mean  # [slots, H, G * N, T]
    rows = layer.heads // layer.kv_heads * profile.new
    return scores.transpose(1, 2, 0, 3).reshape(layer.kv_heads, rows, profile.packed_slots * layer.rules.page)


def _masked(layer: LayerSpec, profile: Profile, scores: Expr, seen: Expr) -> Expr:
    """[H, G, N, tokens]: scaled, capped, without what is not seen."""
    group = layer.heads // layer.kv_heads
    scaled = scores.reshape(layer.kv_heads, group, profile.new, -1) * layer.scale
    if layer.softcap:
        scaled = (scaled * (1 / layer.softcap)).tanh() * layer.softcap
    return where(seen, scaled, _UNSEEN)


def _weighted(
    layer: LayerSpec, profile: Profile, weights: Expr, tokens: tuple[ExactTokens, PackedTokens | None]
) -> Expr:
    """[H, G * N, D]: values by weights [H, G * N, tokens]."""
    exact, packed = tokens
    number = profile.hot_slots * layer.rules.page + profile.new
    if packed is None:
        return weights @ exact.v
    page, slots = layer.rules.page, profile.packed_slots
    shares = weights.part(-1, number, number + slots * page)
    by_page = shares.reshape(layer.kv_heads, -1, slots, page).transpose(2, 0, 1, 3)
    rotated_sum = ((by_page * packed.v_scales) @ packed.v_levels).sum(0).squeeze(0)
    return weights.part(-1, 0, number) @ exact.v + unrotated(rotated_sum, layer.head_dim)
