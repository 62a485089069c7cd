"""prepare: new queries, keys and values as attention takes them, from the products that made them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvedge.targets.spec import LayerSpec

Floats = NDArray[np.float32]


def prepare(
    layer: LayerSpec,
    projected: tuple[Floats, Floats, Floats] | Floats,
    turn: tuple[Floats, Floats] | None,
    *,
    interleaved: bool,
) -> tuple[Floats, Floats, Floats]:
    """Queries [B, Q, N, D], keys and values [B, H, N, D] float32.

    Args:
        layer: their heads.
        projected: [B, N, Q * D], [B, N, H * D] and the same again, or all three side by side.
        turn: cos and sin [B, N, pairs] of the rotary embedding, its scaling included; None for none.
        interleaved: which channels are pairs.
    """
    width, kv_width = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim
    if not isinstance(projected, tuple):
        q, k, v = np.split(projected, [width, width + kv_width], axis=-1)
    else:
        q, k, v = projected
    parts = [np.moveaxis(x.reshape(*x.shape[:2], -1, layer.head_dim), 2, 1) for x in (q, k, v)]
    if turn is not None:
        cos, sin = (part[:, None] for part in turn)
        parts[:2] = [turned(part, cos, sin, interleaved) for part in parts[:2]]
    return np.ascontiguousarray(parts[0]), np.ascontiguousarray(parts[1]), np.ascontiguousarray(parts[2])


def turned(x: NDArray[Any], cos: NDArray[Any], sin: NDArray[Any], interleaved: bool) -> NDArray[Any]:
    """Vectors x [..., D] with their first pairs turned by angles of cos and sin [..., pairs]."""
    pairs, out = cos.shape[-1], x.copy()
    first = slice(0, 2 * pairs, 2) if interleaved else slice(pairs)
    second = slice(1, 2 * pairs, 2) if interleaved else slice(pairs, 2 * pairs)
    a, b = x[..., first], x[..., second]
    out[..., first], out[..., second] = a * cos - b * sin, b * cos + a * sin
    return out
