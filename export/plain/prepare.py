"""New queries, keys and values from the products that made them; twin of kvedge.plugins.reference.prepare."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvedge.export.standard.expr import Expr, concat
from kvedge.targets.spec import LayerSpec


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A rotation of the first channels of every new token.

    Args:
        cos, sin: float32 [1, N, pairs].
        pairs: number of rotated pairs.
        interleaved: pairs are channels (2i, 2i + 1), not (i, i + pairs).
    """

    cos: Expr
    sin: Expr
    pairs: int
    interleaved: bool


def turned(x: Expr, turn: Turn, head_dim: int) -> Expr:
    """Vectors x [heads, N, D], each turned by its token's angles."""
    channels = np.arange(2 * turn.pairs, dtype=np.int32)
    if turn.interleaved:
        first, second = channels[0::2], channels[1::2]
        order = np.arange(2 * turn.pairs, dtype=np.int32).reshape(2, turn.pairs).T.reshape(-1)
    else:
        first, second = channels[: turn.pairs], channels[turn.pairs :]
        order = channels
    a, b = x.take(first, -1), x.take(second, -1)
    both = concat([a * turn.cos - b * turn.sin, b * turn.cos + a * turn.sin], -1)
    if turn.interleaved:
        both = both.take(order, -1)
    rest = [x.part(-1, 2 * turn.pairs, head_dim)] if 2 * turn.pairs < head_dim else []
    return concat([both, *rest], -1)


def prepare(layer: LayerSpec, projected: tuple[Expr, ...], turn: Turn | None) -> tuple[Expr, Expr, Expr]:
    """Queries [Q, N, D], keys and values [H, N, D].

    Args:
        projected: queries, keys and values [1, N, heads * D], or one tensor with all three side by side.
        turn: rotary embedding of queries and keys, or None.
    """
    width, kv_width = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim
    if len(projected) == 1:
        ends = (0, width, width + kv_width, width + 2 * kv_width)
        projected = tuple(projected[0].part(-1, *pair) for pair in zip(ends[:-1], ends[1:], strict=True))
    number = (layer.heads, layer.kv_heads, layer.kv_heads)
    sides = zip(projected, number, strict=True)
    q, k, v = (x.reshape(-1, heads, layer.head_dim).transpose(1, 0, 2) for x, heads in sides)
    if turn is None:
        return q, k, v
    return turned(q, turn, layer.head_dim), turned(k, turn, layer.head_dim), v
