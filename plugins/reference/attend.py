"""attend: what every new token reads, in float64, one query at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvedge.plugins.key_bias import bias_at
from kvedge.plugins.reference.pages import PageCodes, head_words, unpack
from kvedge.plugins.reference.prepare import turned
from kvedge.plugins.reference.quantize import decode
from kvedge.plugins.reference.rotation import unrotate
from kvedge.plugins.reference.tokens import exact_token
from kvedge.plugins.step import PagedStep
from kvedge.targets.kinds import Kind
from kvedge.targets.spec import LayerSpec
from kvedge.targets.visibility import page_of, reads_packed, window_start

Doubles = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Attended:
    """Output [B, N, Q, D] float32, and the packed pages read [B] int32 (summed over kv heads and query pages)."""

    out: NDArray[np.float32]
    pages_read: NDArray[np.int32]


AttendToken = Callable[["Row", int, bool], Doubles]
"""Output [Q, D] of one new token of a row, given its index and the layer's rotary pairing."""


def attend(layer: LayerSpec, step: PagedStep, *, interleaved: bool) -> Attended:
    """Attention of every new token over sinks, packed pages, exact pages and its own chunk.

    `interleaved` is the layer's rotary pairing, for the turn towards the sinks.
    """
    return attend_each(layer, step, _attend_token, interleaved=interleaved)


def attend_each(layer: LayerSpec, step: PagedStep, attend_token: AttendToken, *, interleaved: bool) -> Attended:
    """Token by token, by a way of reading pages."""
    rows, heads, new, dim = step.q.shape
    out = np.zeros((rows, new, heads, dim), np.float32)
    pages_read = np.zeros(rows, np.int32)
    for row in range(rows):
        source = Row(layer, step, row)
        for index in range(int(step.num_new[row])):
            out[row, index] = attend_token(source, index, interleaved)
        pages_read[row] = layer.kv_heads * len(source.packed_tiles)
    return Attended(out=out, pages_read=pages_read)


class Row:
    """Keys and values of one row, by order: [H, D] float64."""

    def __init__(self, layer: LayerSpec, step: PagedStep, row: int) -> None:
        self.layer, self.step, self.row = layer, step, row
        self.packed_tiles: set[tuple[int, int]] = set()
        self._codes: dict[int, list[PageCodes]] = {}
        self._pages: dict[int, tuple[Doubles, Doubles]] = {}

    def token(self, query: int, key: int) -> tuple[Doubles, Doubles]:
        """Key and value of a visible token, as the query reads it."""
        rules = self.layer.rules
        if rules.exact or not reads_packed(query, key, rules.sinks, rules.page, rules.recent):
            k, v = exact_token(rules, self.step, self.row, key)
            return k.astype(np.float64), v.astype(np.float64)
        number = page_of(key, rules.sinks, rules.page)
        self.packed_tiles.add((page_of(query, rules.sinks, rules.page), number))
        k_page, v_page = self._page(number)
        offset = (key - rules.sinks) % rules.page
        return k_page[:, offset], v_page[:, offset]

    def codes(self, number: int) -> list[PageCodes]:
        """A packed page, head by head."""
        if number not in self._codes:
            assert self.step.packed is not None and self.step.packed_table is not None
            column = number % self.step.packed_table.shape[1]
            row = self.step.packed[self.step.packed_table[self.row, column]]
            layout = self.layer.packed_layout
            self._codes[number] = [unpack(head_words(row, h, layout), layout) for h in range(self.layer.kv_heads)]
        return self._codes[number]

    def _page(self, number: int) -> tuple[Doubles, Doubles]:
        """Dequantized page: keys and values [H, T, D]."""
        if number not in self._pages:
            kind, heads = self.layer.kind, self.codes(number)
            k, v = zip(*(dequantize_page(codes, kind) for codes in heads), strict=True)
            self._pages[number] = self._with_bias(np.stack(k), number), np.stack(v)
        return self._pages[number]

    def _with_bias(self, k: Doubles, number: int) -> Doubles:
        """Keys [H, T, D] with the part of their bias that was kept out of the codes."""
        if self.step.bias is not None:
            rules = self.layer.rules
            start = rules.sinks + number * rules.page
            k[..., self.step.bias.channels] += bias_at(self.step.bias, start).swapaxes(1, 2)
        return k


def dequantize_page(codes: PageCodes, kind: Kind) -> tuple[Doubles, Doubles]:
    """Keys and values [T, D] that a packed page stands for."""
    k = unrotate(decode(codes.k_codes, kind.k_code) * codes.k_scales.astype(np.float32)[:, None])
    v = unrotate(decode(codes.v_codes, kind.v_code) * codes.v_scales.astype(np.float32)[:, None])
    return k.astype(np.float64) + codes.k_mean.astype(np.float64), v.astype(np.float64)


def _attend_token(source: Row, index: int, interleaved: bool) -> Doubles:
    """Output [Q, D] of one new token."""
    layer, rules = source.layer, source.layer.rules
    query = int(source.step.context[source.row]) + index
    sinks = range(min(rules.sinks, query + 1))
    window = range(window_start(query, rules.sinks, rules.window), query + 1)
    pairs = [source.token(query, key) for key in (*sinks, *window)]
    k, v = (np.stack([pair[i] for pair in pairs]) for i in (0, 1))  # [keys, H, D]
    q = source.step.q[source.row, :, index].astype(np.float64)
    turned = turn_back(q, source, index, interleaved)
    group = layer.heads // layer.kv_heads
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scores = np.concatenate(
        [np.einsum("qd,kqd->qk", turned, k[: len(sinks)]), np.einsum("qd,kqd->qk", q, k[len(sinks) :])], 1
    )
    return np.asarray(np.einsum("qk,kqd->qd", softmax(scores * layer.scale, layer.softcap), v))


def turn_back(q: Doubles, source: Row, index: int, interleaved: bool) -> Doubles:
    """The query as the sinks see it: rotated by minus the shift, over the rotary channels only."""
    if source.step.sink_cos is None or source.step.sink_sin is None:
        return q
    cos = source.step.sink_cos[source.row, index].astype(np.float64)
    sin = source.step.sink_sin[source.row, index].astype(np.float64)
    return turned(q, cos, -sin, interleaved)


def softmax(scores: Doubles, softcap: float) -> Doubles:
    """Softmax over the last axis, after the cap."""
    capped = softcap * np.tanh(scores / softcap) if softcap else scores
    weights = np.exp(capped - capped.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True))
