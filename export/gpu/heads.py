"""New queries, keys and values by head, turned, from the products that made them, however many there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvedge.export.standard.expr import Expr, concat
from kvedge.targets.spec import LayerSpec


@dataclass(frozen=True, kw_only=True)
class Angles:
    """Rotary angles of the new tokens.

    Args:
        cos, sin: float32 [B, 1, N, pairs].
        pairs: number of rotated pairs.
        interleaved: pairs are channels (2i, 2i + 1), not (i, i + pairs).
    """

    cos: Expr
    sin: Expr
    pairs: int
    interleaved: bool


def by_head(layer: LayerSpec, projected: Sequence[Expr], angles: Angles | None) -> tuple[Expr, Expr, Expr]:
    """Queries [B, Q, N, D], keys and values [B, H, N, D].

    Args:
        projected: queries, keys and values [B, N, heads * D] or [B, N, heads, D], or one tensor with all side by side.
        angles: of queries and keys, or None.
    """
    heads = [x.reshape(0, 0, -1, layer.head_dim).transpose(0, 2, 1, 3) for x in projected]
    if len(heads) == 3:
        q, k, v = heads
        return _turned(q, angles, layer.head_dim), _turned(k, angles, layer.head_dim), v
    turning = layer.heads + layer.kv_heads
    both = _turned(heads[0].part(1, 0, turning), angles, layer.head_dim)
    v = heads[0].part(1, turning, turning + layer.kv_heads)
    return both.part(1, 0, layer.heads), both.part(1, layer.heads, turning), v


def _turned(x: Expr, angles: Angles | None, head_dim: int) -> Expr:
    """Vectors x [B, heads, N, D], each turned by its token's angles."""
    if angles is None:
        return x
    pairs, rotary = angles.pairs, 2 * angles.pairs
    turning = x.part(-1, 0, rotary) if rotary < head_dim else x
    if angles.interleaved:
        split = turning.reshape(0, 0, 0, pairs, 2)
        a, b = (side.squeeze(-1) for side in split.halved(-1))
        sides = [side.unsqueeze(-1) for side in _rotated(a, b, angles)]
        turned = concat(sides, -1).reshape(0, 0, 0, rotary)
    else:
        turned = concat(_rotated(turning.part(-1, 0, pairs), turning.part(-1, pairs, rotary), angles), -1)
    rest = [x.part(-1, rotary, head_dim)] if rotary < head_dim else []
    return concat([turned, *rest], -1)


def _rotated(a: Expr, b: Expr, angles: Angles) -> list[Expr]:
    return [a * angles.cos - b * angles.sin, b * angles.cos + a * angles.sin]
