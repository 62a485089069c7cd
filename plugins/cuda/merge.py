"""merge: what the splits of attend saw, un-rotated and taken together."""

import triton
import triton.language as tl

from kvedge.plugins.cuda.rotation import channel_of, rotate

_TOGETHER = tl.constexpr(8)
"""Splits that are loaded at a time."""


@triton.jit
def add_splits(sum_of, shrink, weighted, taken):
    """sum_of [BLOCK, P] shrunk, and the sums of splits [BLOCK, splits, P] that are taken [1, splits]."""
    return sum_of * shrink[:, None] + tl.sum(tl.where(taken[:, :, None], weighted, 0.0), 1)


@triton.jit
def take_splits(parts, number, real, held, channel, first, splits, packed_splits, so_far, DIM: tl.constexpr):
    """Top, total, exact and packed sums of rows so far, and those of the splits from `first` on, together."""
    sums_of_splits, tops, totals = parts
    high, total, exact, packed = so_far
    split = first + tl.arange(0, _TOGETHER)[None, :]
    at, seen = number[:, None] * splits + split, real[:, None] & (split < splits)
    top = tl.load(tops + at, mask=seen, other=float("-inf"))
    higher = tl.maximum(high, tl.max(top, 1))
    base = tl.where(higher == float("-inf"), 0.0, higher)
    share, shrink = tl.exp(top - base[:, None]), tl.exp(high - base)
    total = total * shrink + tl.sum(share * tl.load(totals + at, mask=seen, other=0.0), 1)
    there = seen[:, :, None] & held[:, None, :]
    sums = tl.load(sums_of_splits + at[:, :, None] * DIM + channel[:, None, :], mask=there, other=0.0)
    packed = add_splits(packed, shrink, share[:, :, None] * sums, split < packed_splits)
    exact = add_splits(exact, shrink, share[:, :, None] * sums, split >= packed_splits)
    return higher, total, exact, packed


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
    within = number < rows
    real = within & (index < tl.load(num_new + row, mask=within, other=0))
    place = tl.arange(0, POWER * ODD_P)[None, :]
    channel = channel_of(place, ODD, ODD_P)
    held = (place % ODD_P < ODD) & within[:, None]
    high = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    exact = tl.zeros((BLOCK, POWER * ODD_P), tl.float32)
    packed = tl.zeros((BLOCK, POWER * ODD_P), tl.float32)
    parts = (sums_of_splits, tops, totals)
    for first in range(0, splits, _TOGETHER):
        high, total, exact, packed = take_splits(
            parts, number, real, held, channel, first, splits, packed_splits, (high, total, exact, packed), DIM
        )
    if packed_splits > 0:
        exact += rotate(packed, dct, BLOCK, POWER, ODD, ODD_P, NORM, True)
    target = ((row * new_tokens + index) * HEADS + head)[:, None] * DIM + channel
    tl.store(out + target, tl.where(real[:, None], exact / tl.where(real, total, 1.0)[:, None], 0.0), mask=held)
