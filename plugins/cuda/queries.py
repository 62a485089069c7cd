"""Queries as tiles want them, once per step: scaled, turned towards the sinks, and rotated for packed pages."""

import triton
import triton.language as tl

from kvedge.plugins.cuda.rotation import channel_of, rotate


@triton.jit
def turned_back(x, q, query, cos, sin, angles, channel, real, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr):
    """x, channels of queries that begin at q + query, turned by minus the angles [PAIRS] at cos and sin + angles."""
    if INTERLEAVED:
        pair, second, other = channel // 2, channel % 2 == 1, channel ^ 1
    else:
        pair, second = channel % PAIRS, channel >= PAIRS
        other = tl.where(second, channel - PAIRS, channel + PAIRS)
    turns = real & (channel < 2 * PAIRS)
    a = tl.load(q + query + other, mask=turns, other=0.0)
    c = tl.load(cos + angles + pair, mask=turns, other=1.0)
    s = tl.load(sin + angles + pair, mask=turns, other=0.0)
    return tl.where(turns, tl.where(second, x * c - a * s, x * c + a * s), x)


@triton.jit
def queries_kernel(
    q,
    sink_cos,
    sink_sin,
    dct,
    plain,
    turned,
    rotated,
    scale,
    new_tokens,
    rows,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    POWER: tl.constexpr,
    ODD: tl.constexpr,
    ODD_P: tl.constexpr,
    NORM: tl.constexpr,
    PAIRS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    PACKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (B * HEADS * N / BLOCK). All float32 [B, HEADS, N, DIM]; cos and sin [B, N, PAIRS]."""
    number = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[:, None]
    token = number // (HEADS * new_tokens) * new_tokens + number % new_tokens
    place = tl.arange(0, POWER * ODD_P)[None, :]
    channel = channel_of(place, ODD, ODD_P)
    real = (place % ODD_P < ODD) & (number < rows)
    at = number * DIM + channel
    x = tl.load(q + at, mask=real, other=0.0)
    tl.store(plain + at, x * scale, mask=real)
    if PAIRS > 0:
        back = turned_back(x, q, at - channel, sink_cos, sink_sin, token * PAIRS, channel, real, PAIRS, INTERLEAVED)
        tl.store(turned + at, back * scale, mask=real)
    if PACKS:
        tl.store(rotated + at, rotate(x * scale, dct, BLOCK, POWER, ODD, ODD_P, NORM, False), mask=real)
