"""New queries, keys and values by head, turned, from the products that made them, however many there are."""

from __future__ import annotations

from collections.abc import Sequence

from kvedge.export.standard.expr import Expr
from kvedge.export.standard.turn import Turn, turned
from kvedge.targets.spec import LayerSpec


def by_head(layer: LayerSpec, projected: Sequence[Expr], turn: Turn | None) -> tuple[Expr, Expr, Expr]:
    """Queries [B, Q, N, D], keys and values [B, H, N, D].

    Args:
        projected: queries, keys and values [B, N, heads * D] or [B, N, heads, D], or one tensor with all side by side.
        turn: of queries and keys, cos and sin [B, 1, N, pairs], or None.
    """
    heads = [x.reshape(0, 0, -1, layer.head_dim).transpose(0, 2, 1, 3) for x in projected]
    if len(heads) == 3:
        q, k, v = heads
        return _turned(q, turn, layer.head_dim), _turned(k, turn, layer.head_dim), v
    turning = layer.heads + layer.kv_heads
    both = _turned(heads[0].part(1, 0, turning), turn, layer.head_dim)
    v = heads[0].part(1, turning, turning + layer.kv_heads)
    return both.part(1, 0, layer.heads), both.part(1, layer.heads, turning), v


def _turned(x: Expr, turn: Turn | None, head_dim: int) -> Expr:
    return x if turn is None else turned(x, turn, head_dim)
