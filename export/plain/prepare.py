"""New queries, keys and values from the products that made them; twin of kvedge.plugins.reference.prepare."""

from __future__ import annotations

from kvedge.export.standard.expr import Expr
from kvedge.export.standard.turn import Turn, turned
from kvedge.targets.spec import LayerSpec


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
