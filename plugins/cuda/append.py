"""append: the new keys and values of a step to their slots, as kvedge.plugins.reference.append does."""

import triton
import triton.language as tl

from kvedge.plugins.cuda.tokens import as_stored, hot_column


@triton.jit
def append_kernel(
    k,
    v,
    hot,
    hot_table,
    context,
    num_new,
    sinks,
    hot_slots,
    new_tokens,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_P: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (blocks of BLOCK new tokens, B * KV_HEADS). Of a chunk longer than the ring, only the newest are kept."""
    row, head = tl.program_id(1) // KV_HEADS, tl.program_id(1) % KV_HEADS
    before, new = tl.load(context + row), tl.load(num_new + row)
    ring_pages = hot_slots - (sinks + TOKENS - 1) // TOKENS
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    channel = tl.arange(0, DIM_P)[None, :]
    order = before + index
    kept = (index < new) & ((order < sinks) | (order + ring_pages * TOKENS >= before + new)) & (channel < DIM)
    column, offset = hot_column(order, sinks, TOKENS, ring_pages)
    id = tl.load(hot_table + row * hot_slots + column, mask=index < new, other=0)
    source = (tl.program_id(1) * new_tokens + index) * DIM + channel
    for part in tl.static_range(2):
        at = (((id.to(tl.int64) * 2 + part) * KV_HEADS + head) * TOKENS + offset) * DIM + channel
        x = as_stored(tl.load((k if part == 0 else v) + source, mask=kept, other=0.0), hot)
        tl.store(hot + at, x.to(hot.dtype.element_ty), mask=kept)
