"""A key bias that is kept out of the codes, in plain operators; twin of kvedge.plugins.key_bias.

A page's first position times a frequency is too large an angle for float32. So pages are numbered in digits, and the
turns by each digit, tabulated in float64, follow each other: each rounds once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvedge.export.standard.expr import Expr, concat
from kvedge.targets.spec import LayerSpec, PageRules

_BASE, _DIGITS = 256, 3
"""Pages are numbered up to 2**24: a stream of 10**9 tokens in pages of 64."""


@dataclass(frozen=True, kw_only=True)
class PlainBias:
    """The bias of one layer, as in kvedge.plugins.key_bias.

    Args:
        page: float32 [H, 2F, T].
        freqs: float32 [F]; channels: int32 [2F].
    """

    page: Expr
    freqs: NDArray[np.float32]
    channels: NDArray[np.int32]


def bias_at(bias: PlainBias, rules: PageRules, pages: Expr) -> Expr:
    """float32 [n, H, 2F, T]: the bias of every token of pages int32 [n], rotated to its position."""
    cos, sin = (x.unsqueeze(1).unsqueeze(-1) for x in _turns(bias, rules, pages.at_least(0)))
    number = len(bias.freqs)
    a, b = bias.page.part(-2, 0, number), bias.page.after(-2, number)
    return concat([a * cos - b * sin, b * cos + a * sin], -2)


def _turns(bias: PlainBias, rules: PageRules, pages: Expr) -> tuple[Expr, Expr]:
    """cos and sin float32 [n, F] of the angles at the first tokens of pages."""
    freqs, digits = bias.freqs.astype(np.float64), np.arange(_BASE)[:, None]
    cos = sin = None
    for digit in range(_DIGITS):
        angles = freqs * (digits * rules.page * _BASE**digit + (0 if digit else rules.sinks))
        index = pages // _BASE**digit % _BASE
        tables = (f(angles).astype(np.float32) for f in (np.cos, np.sin))
        more_cos, more_sin = (pages.recorder.constant(table).take(index, 0) for table in tables)
        if cos is None or sin is None:
            cos, sin = more_cos, more_sin
        else:
            cos, sin = cos * more_cos - sin * more_sin, sin * more_cos + cos * more_sin
    assert cos is not None and sin is not None
    return cos, sin


def without_bias(layer: LayerSpec, k: Expr, bias: PlainBias, pages: Expr) -> Expr:
    """Keys [n, H, T, D] of whole pages int32 [n], less their bias."""
    places = np.zeros((layer.head_dim, len(bias.channels)), np.float32)
    places[bias.channels, np.arange(len(bias.channels))] = 1
    return k - (k.recorder.constant(places) @ bias_at(bias, layer.rules, pages)).transpose(0, 1, 3, 2)


def bias_scores(layer: LayerSpec, q: Expr, bias: PlainBias, pages: Expr) -> Expr:
    """float32 [n, H, queries, T]: what the bias adds to scores of queries [H, queries, D] with tokens of pages [n]."""
    return q.take(bias.channels, -1) @ bias_at(bias, layer.rules, pages)
