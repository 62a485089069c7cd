"""merge: what the splits of attend saw, un-rotated and taken together."""

import triton
import triton.language as tl

from kvedge.plugins.cuda.rotation import channel_of, rotate


@triton.jit
def merge_kernel(
    sums_of_splits,
    tops,
    totals,
    dct,
    num_new,
    out,
    splits,
    packed_splits,
    new_tokens,
    rows,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    POWER: tl.constexpr,
    ODD: tl.constexpr,
    ODD_P: tl.constexpr,
    NORM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (B * HEADS * N / BLOCK). Output float32 [B, N, HEADS, DIM]; padding is 0."""
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row, head, index = number // (HEADS * new_tokens), number // new_tokens % HEADS, number % new_tokens
    there = number < rows
    real = there & (index < tl.load(num_new + row, mask=there, other=0))
    place = tl.arange(0, POWER * ODD_P)[None, :]
    channel = channel_of(place, ODD, ODD_P)
    held = (place % ODD_P < ODD) & there[:, None]
    high = tl.full((BLOCK,), float("-inf"), tl.float32)
    for s in range(splits):
        high = tl.maximum(high, tl.load(tops + number * splits + s, mask=real, other=0.0))
    total = tl.zeros((BLOCK,), tl.float32)
    exact = tl.zeros((BLOCK, POWER * ODD_P), tl.float32)
    packed = tl.zeros((BLOCK, POWER * ODD_P), tl.float32)
    for s in range(splits):
        at = number * splits + s
        share = tl.exp(tl.load(tops + at, mask=real, other=0.0) - high)
        total += share * tl.load(totals + at, mask=real, other=1.0)
        sums = tl.load(sums_of_splits + at[:, None] * DIM + channel, mask=held & real[:, None], other=0.0)
        packed += tl.where(s < packed_splits, share[:, None] * sums, 0.0)
        exact += tl.where(s < packed_splits, 0.0, share[:, None] * sums)
    if packed_splits > 0:
        exact += rotate(packed, dct, BLOCK, POWER, ODD, ODD_P, NORM, True)
    target = ((row * new_tokens + index) * HEADS + head)[:, None] * DIM + channel
    tl.store(out + target, tl.where(real[:, None], exact / total[:, None], 0.0), mask=held)
