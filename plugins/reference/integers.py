"""attend where packed pages are read in integers: queries, weights and levels in 8 bits, sums exact.

As CPUs with byte products do it. What attend says stays the aim; this says which roundings are made on the way:

    query    one step for a rotated query: its largest channel is 127
    levels   those of kvedge.targets.codebook, as integers
    weights  softmax weights times value scales, one step for a page: its largest is 255
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvedge.plugins.key_bias import bias_at
from kvedge.plugins.reference.attend import Attended, Doubles, Row, attend_each, softmax, turn_back
from kvedge.plugins.reference.pages import PageCodes
from kvedge.plugins.reference.rotation import rotate, unrotate
from kvedge.plugins.step import PagedStep
from kvedge.targets.codebook import BYTE_LEVELS, BYTE_STEPS, UNIFORM_STEPS, Code
from kvedge.targets.spec import LayerSpec
from kvedge.targets.visibility import page_of, reads_packed, window_start


def attend_in_integers(layer: LayerSpec, step: PagedStep, *, interleaved: bool) -> Attended:
    """As attend, with those roundings."""
    return attend_each(layer, step, _attend_token, interleaved=interleaved)


def _attend_token(source: Row, index: int, interleaved: bool) -> Doubles:
    """Output [Q, D] of one new token, group by group."""
    size = source.layer.heads // source.layer.kv_heads
    groups = [
        _attend_group(source, index, head, slice(head * size, (head + 1) * size), interleaved)
        for head in range(source.layer.kv_heads)
    ]
    return np.concatenate(groups)


@dataclass(frozen=True)
class _Part:
    """Keys that are read together: scores [G, keys], and values [keys, D] or codes of a page from `first` on."""

    scores: Doubles
    values: Doubles | None = None
    codes: PageCodes | None = None
    first: int = 0


def _attend_group(source: Row, index: int, head: int, group: slice, interleaved: bool) -> Doubles:
    """Output [G, D] of the query heads of one kv head."""
    layer = source.layer
    parts = _parts(source, index, head, group, interleaved)
    weights = softmax(np.concatenate([part.scores for part in parts], 1), layer.softcap)
    exact, packed = np.zeros((2, group.stop - group.start, layer.head_dim))
    at = 0
    for part in parts:
        some = weights[:, at : at + part.scores.shape[1]]
        at += part.scores.shape[1]
        if part.values is not None:
            exact += some @ part.values
        else:
            packed += _packed_sum(some, part, layer.kind.v_code)
    return np.asarray(exact + unrotate(packed.astype(np.float32)))


def _parts(source: Row, index: int, head: int, group: slice, interleaved: bool) -> list[_Part]:
    layer, rules = source.layer, source.layer.rules
    order = int(source.step.context[source.row]) + index
    q = source.step.q[source.row, :, index].astype(np.float64)
    turned, plain = turn_back(q, source, index, interleaved)[group] * layer.scale, q[group] * layer.scale
    parts: list[_Part] = []
    pages: dict[int, int] = {}  # the oldest token that is seen of each
    for key in (*range(min(rules.sinks, order + 1)), *range(window_start(order, rules.sinks, rules.window), order + 1)):
        if not rules.exact and reads_packed(order, key, rules.sinks, rules.page, rules.recent):
            pages.setdefault(page_of(key, rules.sinks, rules.page), key)
            continue
        k, v = source.token(order, key)
        query = turned if key < rules.sinks else plain
        parts.append(_Part(query @ k[head][:, None], v[head][None]))
    return [*(_packed_part(source, (order, oldest, number), head, plain) for number, oldest in pages.items()), *parts]


def _packed_part(source: Row, page: tuple[int, int, int], head: int, plain: Doubles) -> _Part:
    order, oldest, number = page
    rules, kind = source.layer.rules, source.layer.kind
    source.token(order, oldest)  # counts the page
    codes = source.codes(number)[head]
    start = rules.sinks + number * rules.page
    steps, query = _query_bytes(rotate(plain.astype(np.float32)))
    scores = query @ byte_levels(codes.k_codes, kind.k_code).T * steps * byte_step(kind.k_code)
    scores = scores * codes.k_scales.astype(np.float64) + plain @ codes.k_mean.astype(np.float64)[:, None]
    bias = source.step.bias
    if bias is not None:
        scores = scores + plain[:, bias.channels] @ bias_at(bias, start)[head]
    return _Part(scores[:, oldest - start :], codes=codes, first=oldest - start)


def _query_bytes(rotated: NDArray[np.float32]) -> tuple[Doubles, Doubles]:
    most = np.abs(rotated).max(-1, keepdims=True)
    inverse = np.divide(np.float32(127), most, out=np.zeros_like(most), where=most > 0)
    return (most / np.float32(127)).astype(np.float64), np.rint(rotated * inverse).astype(np.float64)


def _packed_sum(weights: Doubles, part: _Part, code: Code) -> Doubles:
    assert part.codes is not None
    scaled = weights * part.codes.v_scales.astype(np.float64)[part.first :]
    steps = scaled.max(-1, keepdims=True) / 255
    bytes_ = np.rint(np.divide(scaled, steps, out=np.zeros_like(scaled), where=steps > 0))
    levels = byte_levels(part.codes.v_codes, code)[part.first :]
    return np.asarray(bytes_ @ levels * steps * byte_step(code))


def byte_levels(codes: NDArray[np.uint8], code: Code) -> Doubles:
    """Integers that codes stand for."""
    if code is Code.UNIFORM:
        return codes.view(np.int8).astype(np.float64)
    positive = np.array(BYTE_LEVELS[code.bits], np.float64)
    return np.concatenate([positive, -positive])[codes]


def byte_step(code: Code) -> float:
    """What one of those integers is worth."""
    return 1 / UNIFORM_STEPS if code is Code.UNIFORM else BYTE_STEPS[code.bits]
