"""Queries, keys and values by head in standard operators, for several sequences, as the reference lays them out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from plain_layers import run_formula
from streams import make_layer

from kvedge.export.gpu.heads import by_head
from kvedge.export.standard.expr import Expr
from kvedge.export.standard.turn import Turn
from kvedge.plugins.reference.prepare import prepare

LAYER = replace(make_layer(), heads=6, kv_heads=2, head_dim=24)
BATCH, NEW = 2, 5


def projected() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    widths = (LAYER.heads * 24, LAYER.kv_heads * 24, LAYER.kv_heads * 24)
    q, k, v = (rng.standard_normal((BATCH, NEW, width)).astype(np.float32) for width in widths)
    return q, k, v


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("pairs", [None, 4, 12])
@pytest.mark.parametrize("form", ["side by side", "apart", "apart, by head"])
def test_heads_are_those_of_the_reference(interleaved: bool, pairs: int | None, form: str) -> None:
    parts = projected()
    given = (np.concatenate(parts, -1),) if form == "side by side" else parts
    if form == "apart, by head":
        given = tuple(part.reshape(BATCH, NEW, -1, 24) for part in parts)
    angle = np.random.default_rng(1).uniform(0, 6, (BATCH, NEW, pairs or 1))
    turn = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)

    def formula(cos: Expr, sin: Expr, *x: Expr) -> tuple[Expr, ...]:
        angles = None
        if pairs is not None:
            angles = Turn(cos=cos.unsqueeze(1), sin=sin.unsqueeze(1), pairs=pairs, interleaved=interleaved)
        return by_head(LAYER, x, angles)

    want = prepare(LAYER, parts, None if pairs is None else turn, interleaved=interleaved)
    for got, one in zip(run_formula(formula, *turn, *given), want, strict=True):
        assert got.shape == one.shape and np.abs(got - one).max() <= 1e-6
