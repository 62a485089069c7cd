"""A bias of the key projection, kept out of the packed codes and added back exactly.

A key is R_p (x + b): the bias b is rotated to the token's position p and known from the weights. On the Qwen2
family it is so large that packed keys collapse with it. So sealing subtracts R_p b, and attention adds q . R_p b.

The token at offset t of a page that begins at position s stands at p = s + t, and R_p b = R_s R_t b. The part
R_t b is the same for all pages: it is tabulated once. Only pairs whose bias still moves noticeably once the page
mean is taken off are treated so: not the slow ones, and not those with hardly any bias.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvedge.targets.spec import RopeSpec

KEPT_IN_CODES = 0.2
"""Root mean square that the bias of a pair may leave after the page mean; keys are about 1 a channel."""


@dataclass(frozen=True, kw_only=True)
class KeyBias:
    """The bias of one layer, for the F pairs that matter.

    Args:
        page: R_t b, float32 [H, 2F, T]: first components of all pairs, then second ones.
        freqs: radians per position of each pair, float32 [F].
        channels: channel of each row of `page`, int32 [2F].
    """

    page: NDArray[np.float32]
    freqs: NDArray[np.float32]
    channels: NDArray[np.int32]


def key_bias(bias: NDArray[np.float32], rope: RopeSpec, page: int) -> KeyBias:
    """Table of a bias [H, D] as it is before the rotary embedding, for pages of `page` tokens; maybe of no pair."""
    freqs = np.array(rope.inv_freq, np.float64)
    numbers = np.arange(rope.pairs)
    first = 2 * numbers if rope.interleaved else numbers
    second = first + 1 if rope.interleaved else numbers + rope.pairs
    a, b = (rope.attention_scaling * bias[:, rows].astype(np.float64) for rows in (first, second))
    moving = np.hypot(a, b) * _spread(freqs * page) > KEPT_IN_CODES
    pairs = np.flatnonzero(moving.any(0))
    angles = freqs[pairs][:, None] * np.arange(page)
    a, b = a[:, pairs, None], b[:, pairs, None]
    turned = [a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)]
    return KeyBias(
        page=np.concatenate(turned, 1).astype(np.float32),
        freqs=freqs[pairs].astype(np.float32),
        channels=np.concatenate([first[pairs], second[pairs]]).astype(np.int32),
    )


def _spread(turn: NDArray[np.float64]) -> NDArray[np.float64]:
    """Root mean square distance of a unit vector from its mean, while it turns by `turn` radians."""
    mean_length = np.sinc(turn / (2 * np.pi))
    return np.sqrt(1 - mean_length**2)


def bias_at(bias: KeyBias, start: int) -> NDArray[np.float32]:
    """R_p b of a page that begins at position `start`: [H, 2F, T], one rounding per operation."""
    angles = bias.freqs.astype(np.float64) * start
    cos, sin = (f(angles).astype(np.float32)[:, None] for f in (np.cos, np.sin))
    a, b = np.split(bias.page, 2, axis=1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], 1)
