"""Queries as tiles want them, once per step: scaled, turned towards the sinks, and rotated for packed pages."""

import triton
import triton.language as tl

from kvedge.plugins.cuda.rotation import channel_of, rotate


@triton.jit
def turned_back(x, q, cos, sin, channel, real, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr):
    """x, the channels of a query at q, turned by minus the angles of cos and sin [PAIRS]."""
    if INTERLEAVED:
        pair, second, other = channel // 2, channel % 2 == 1, channel ^ 1
    else:
        pair, second = channel % PAIRS, channel >= PAIRS
        other = tl.where(second, channel - PAIRS, channel + PAIRS)
    turns = real & (channel < 2 * PAIRS)
    a = tl.load(q + other, mask=turns, other=0.0)
    c = tl.load(cos + pair, mask=turns, other=1.0)
    s = tl.load(sin + pair, mask=turns, other=0.0)
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
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    POWER: tl.constexpr,
    ODD: tl.constexpr,
    ODD_P: tl.constexpr,
    NORM: tl.constexpr,
    PAIRS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    PACKS: tl.constexpr,
):
    """Grid (B * HEADS * N). All float32 [B, HEADS, N, DIM]; cos and sin [B, N, PAIRS]."""
    number = tl.program_id(0)
    token = number // (HEADS * new_tokens) * new_tokens + number % new_tokens
    place = tl.arange(0, POWER * ODD_P)
    channel, real = channel_of(place, ODD, ODD_P), place % ODD_P < ODD
    x = tl.load(q + number * DIM + channel, mask=real, other=0.0)
    at = number * DIM + channel
    tl.store(plain + at, x * scale, mask=real)
    if PAIRS > 0:
        back = turned_back(
            x, q + number * DIM, sink_cos + token * PAIRS, sink_sin + token * PAIRS, channel, real, PAIRS, INTERLEAVED
        )
        tl.store(turned + at, back * scale, mask=real)
    if PACKS:
        whole = rotate(tl.reshape(x * scale, (1, POWER * ODD_P)), dct, 1, POWER, ODD, ODD_P, NORM, False)
        tl.store(rotated + at, tl.reshape(whole, (POWER * ODD_P,)), mask=real)
