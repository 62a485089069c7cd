"""New tokens laid out by head, with their rotary embedding: as the reference, and that as complex numbers do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from streams import NATIVE, make_layer

from kvedge.plugins.reference.prepare import prepare

LAYER = replace(make_layer(), heads=6, kv_heads=2, head_dim=24)
BATCH, NEW = 2, 37


def projected(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    widths = (LAYER.heads * 24, LAYER.kv_heads * 24, LAYER.kv_heads * 24)
    q, k, v = (rng.standard_normal((BATCH, NEW, width)).astype(np.float32) for width in widths)
    return q, k, v


def angles(pairs: int) -> np.ndarray:
    return np.random.default_rng(1).uniform(0, 6, (BATCH, NEW, pairs))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("pairs", [None, 4, 12])
@pytest.mark.parametrize("side_by_side", [False, True])
def test_native_equals_the_reference(interleaved: bool, pairs: int | None, side_by_side: bool) -> None:
    parts = projected()
    given = np.concatenate(parts, -1) if side_by_side else parts
    turn = (
        None if pairs is None else (np.cos(angles(pairs)).astype(np.float32), np.sin(angles(pairs)).astype(np.float32))
    )
    want = prepare(LAYER, given, turn, interleaved=interleaved)
    for got, one in zip(NATIVE.prepare(LAYER, given, turn, interleaved=interleaved), want, strict=True):
        assert np.array_equal(got, one)


@pytest.mark.parametrize("interleaved", [False, True])
def test_queries_and_keys_are_turned(interleaved: bool) -> None:
    """The first channels only; values stay."""
    parts, angle = projected(), angles(8)
    turn = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    made = prepare(LAYER, parts, turn, interleaved=interleaved)
    for got, part, turned in zip(made, parts, (True, True, False), strict=True):
        x = part.reshape(BATCH, NEW, -1, 24).transpose(0, 2, 1, 3)
        assert got.shape == x.shape and np.array_equal(got[..., 16:], x[..., 16:])
        a, b = (x[..., 0:16:2], x[..., 1:16:2]) if interleaved else (x[..., :8], x[..., 8:16])
        z = (a + 1j * b) * (np.exp(1j * angle)[:, None] if turned else 1)
        pair = (got[..., 0:16:2], got[..., 1:16:2]) if interleaved else (got[..., :8], got[..., 8:16])
        assert np.abs(pair[0] - z.real).max() < 1e-6 and np.abs(pair[1] - z.imag).max() < 1e-6
