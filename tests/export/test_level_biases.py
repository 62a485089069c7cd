"""Key biases with pairs of zeros are the same biases."""

from __future__ import annotations

import numpy as np
import pytest
from streams import make_rope

from kvedge.export.gpu.level_biases import filled_up
from kvedge.plugins.key_bias import bias_at, key_bias

HEADS, DIM, PAGE = 2, 16, 8


def dense(bias, start: int) -> np.ndarray:  # type: ignore[no-untyped-def]
    """What is subtracted from keys [H, D, T] of a page."""
    whole = np.zeros((HEADS, DIM, PAGE), np.float32)
    whole[:, bias.channels] = bias_at(bias, start)
    return whole


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("more", [0, 1, 3])
def test_nothing_is_added(interleaved: bool, more: int) -> None:
    rope = make_rope(DIM, interleaved=interleaved)
    values = np.zeros((HEADS, DIM), np.float32)
    values[:, [0, 1, 2, 3]] = 4.0
    bias = key_bias(values, rope, PAGE)
    pairs = len(bias.freqs) + more
    assert len(bias.freqs) > 0 and pairs <= DIM // 2
    filled = filled_up(bias, rope, pairs)
    assert len(filled.freqs) == pairs
    assert filled.page.shape == (HEADS, 2 * pairs, PAGE)
    assert len(set(filled.channels.tolist())) == len(filled.channels) == 2 * pairs
    assert filled.page.dtype == filled.freqs.dtype == np.float32 and filled.channels.dtype == np.int32
    for start in (0, 96):
        assert np.array_equal(dense(filled, start), dense(bias, start))
