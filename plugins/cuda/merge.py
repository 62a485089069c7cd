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
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    POWER: tl.constexpr,
    ODD: tl.constexpr,
    ODD_P: tl.constexpr,
    NORM: tl.constexpr,
):
    """Grid (B * HEADS * N). Output float32 [B, N, HEADS, DIM]; padding is 0."""
    number = tl.program_id(0)
    row, head, index = number // (HEADS * new_tokens), number // new_tokens % HEADS, number % new_tokens
    place = tl.arange(0, POWER * ODD_P)
    channel, real = channel_of(place, ODD, ODD_P), place % ODD_P < ODD
    target = out + ((row * new_tokens + index) * HEADS + head) * DIM + channel
    if index >= tl.load(num_new + row):
        tl.store(target, tl.zeros((POWER * ODD_P,), tl.float32), mask=real)
        return
    high = float("-inf")
    for s in range(splits):
        high = tl.maximum(high, tl.load(tops + number * splits + s))
    total = 0.0
    exact = tl.zeros((POWER * ODD_P,), tl.float32)
    packed = tl.zeros((POWER * ODD_P,), tl.float32)
    for s in range(splits):
        at = number * splits + s
        share = tl.exp(tl.load(tops + at) - high)
        total += share * tl.load(totals + at)
        part = share * tl.load(sums_of_splits + at * DIM + channel, mask=real, other=0.0)
        packed += tl.where(s < packed_splits, part, 0.0)
        exact += tl.where(s < packed_splits, 0.0, part)
    if packed_splits > 0:
        whole = rotate(tl.reshape(packed, (1, POWER * ODD_P)), dct, 1, POWER, ODD, ODD_P, NORM, True)
        exact += tl.reshape(whole, (POWER * ODD_P,))
    tl.store(target, exact / total, mask=real)
