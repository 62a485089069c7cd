"""A bias of the key projection, kept out of the packed codes and added back exactly.

A key is R_p (x + b): the bias b is rotated to the token's position p and known from the weights. On the Qwen2
family it is so large that packed keys collapse with it. So sealing subtracts R_p b, and attention adds q . R_p b.

The token at offset t of a page that begins at position s stands at p = s + t, and R_p b = R_s R_t b. The part
R_t b is the same for all pages: it is tabulated once. Only the pairs that turn by more than half a radian
within a page are treated so; for the slow ones the page mean is as good.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvedge.targets.spec import RopeSpec

SLOW_TURN = 0.5
"""Radians within a page below which the page mean takes care of a pair."""


@dataclass(frozen=True, kw_only=True)
class KeyBias:
    """The bias of one layer, for F fast pairs.

    Args:
        page: R_t b, float32 [H, 2F, T]: first components of all pairs, then second ones.
        freqs: radians per position of each pair, float32 [F].
        channels: channel of each row of `page`, int32 [2F].
    """

    page: NDArray[np.float32]
    freqs: NDArray[np.float32]
    channels: NDArray[np.int32]


def key_bias(bias: NDArray[np.float32], rope: RopeSpec, page: int) -> KeyBias:
    """Table of a bias [H, D] as it is before the rotary embedding, for pages of `page` tokens."""
    freqs = np.array(rope.inv_freq, np.float64)
    fast = np.flatnonzero(freqs * page > SLOW_TURN)
    first = 2 * fast if rope.interleaved else fast
    second = first + 1 if rope.interleaved else fast + rope.pairs
    channels = np.concatenate([first, second]).astype(np.int32)
    angles = freqs[fast][:, None] * np.arange(page)
    a, b = (rope.attention_scaling * bias[:, rows, None].astype(np.float64) for rows in (first, second))
    turned = [a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)]
    return KeyBias(
        page=np.concatenate(turned, 1).astype(np.float32), freqs=freqs[fast].astype(np.float32), channels=channels
    )


def bias_at(bias: KeyBias, start: int) -> NDArray[np.float32]:
    """R_p b of a page that begins at position `start`: [H, 2F, T], one rounding per operation."""
    angles = bias.freqs.astype(np.float64) * start
    cos, sin = (f(angles).astype(np.float32)[:, None] for f in (np.cos, np.sin))
    a, b = np.split(bias.page, 2, axis=1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], 1)
