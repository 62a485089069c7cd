"""Rotary embedding in standard operators."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvedge.export.standard.expr import Expr, concat


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A rotation of the first channels of every token.

    Args:
        cos, sin: float32 [..., N, pairs], to be broadcast over what is turned.
        pairs: number of rotated pairs.
        interleaved: pairs are channels (2i, 2i + 1), not (i, i + pairs).
    """

    cos: Expr
    sin: Expr
    pairs: int
    interleaved: bool


def turned(x: Expr, turn: Turn, head_dim: int) -> Expr:
    """Vectors x [..., N, D], each turned by its token's angles."""
    pairs, rotary = turn.pairs, 2 * turn.pairs
    channels = np.arange(rotary, dtype=np.int32)
    if turn.interleaved:
        a, b = (x.take(channels[first::2], -1) for first in (0, 1))
    else:
        a, b = (x.part(-1, first, first + pairs) for first in (0, pairs))
    both = concat([a * turn.cos - b * turn.sin, b * turn.cos + a * turn.sin], -1)
    if turn.interleaved:
        both = both.take(channels.reshape(2, pairs).T.reshape(-1), -1)
    rest = [x.part(-1, rotary, head_dim)] if rotary < head_dim else []
    return concat([both, *rest], -1)
