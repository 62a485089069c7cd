"""Where keys and values of a row are, in Triton: the new ones of a step, or the hot pool.

As kvedge.plugins.reference.tokens and kvedge.targets.visibility say.
"""

import triton
import triton.language as tl


@triton.jit
def floor_div(a, b):
    """a // b rounded down, for b > 0."""
    return tl.where(a >= 0, a // b, -((b - 1 - a) // b))


@triton.jit
def page_of(order, sinks, page):
    """Page of a token; negative for sinks."""
    return floor_div(order - sinks, page)


@triton.jit
def window_start(query, sinks, window):
    """Order of the oldest token outside the sinks that a query sees; a window of 0 is none."""
    return tl.where(window == 0, sinks, tl.maximum(sinks, query - window + 1))


@triton.jit
def sealed_pages(tokens, sinks, page, recent_pages):
    """Pages that are sealed once so many tokens are in the cache."""
    return tl.where(tokens == 0, 0, tl.maximum(0, page_of(tokens - 1, sinks, page) - recent_pages))


@triton.jit
def page_at(table, number, slots, head, KV_HEADS: tl.constexpr, HEAD_WORDS: tl.constexpr):
    """Words before one head of a packed page of a row, in the pool."""
    return (tl.load(table + number % slots).to(tl.int64) * KV_HEADS + head) * HEAD_WORDS


@triton.jit
def hot_column(order, sinks, page, ring_pages):
    """Column of the hot block table, and offset in that page, where a token lies."""
    slot = (order - sinks) % (ring_pages * page)
    column = tl.where(order < sinks, order // page, (sinks + page - 1) // page + slot // page)
    return column, tl.where(order < sinks, order % page, slot % page)


@triton.jit
def to_half(x):
    """Nearest float16, saturating; what is no number stays none."""
    return tl.clamp(x, -65504.0, 65504.0, tl.PropagateNan.ALL).to(tl.float16)


@triton.jit
def as_stored(x, hot):
    """x float32 rounded as the pool keeps it."""
    if hot.dtype.element_ty == tl.float16:
        x = to_half(x).to(tl.float32)
    return x


@triton.jit
def source_of(hot, hot_table, context, num_new, row, head, sinks, hot_slots, new_tokens, TOKENS: tl.constexpr):
    """Where one head of a row has its tokens: what load_tokens takes apart again."""
    ring_pages = hot_slots - (sinks + TOKENS - 1) // TOKENS
    return (
        hot,
        hot_table + row * hot_slots,
        row,
        head,
        tl.load(context + row),
        tl.load(num_new + row),
        sinks,
        ring_pages,
        new_tokens,
    )


@triton.jit
def load_tokens(
    new,
    source,
    first,
    token,
    channel,
    valid,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    TOKENS: tl.constexpr,
    PART: tl.constexpr,
):
    """Keys (PART 0) or values (1) float32 of tokens and channels that are broadcast against each other.

    Args:
        new: the step's, float32 [B, KV_HEADS, N, DIM].
        first: order of the first token of a page, or of a page's worth of sinks; `token` counts from there.
        valid: what is loaded; the rest is 0.
    """
    hot, table, row, head, context, num_new, sinks, ring_pages, new_tokens = source
    index = first - context + token
    is_new = valid & (index >= 0) & (index < num_new)
    fresh = tl.load(new + ((row * KV_HEADS + head) * new_tokens + index) * DIM + channel, mask=is_new, other=0.0)
    id = tl.load(table + hot_column(first, sinks, TOKENS, ring_pages)[0]).to(tl.int64)
    page = hot + ((id * 2 + PART) * KV_HEADS + head) * TOKENS * DIM
    old = tl.load(page + token * DIM + channel, mask=valid & (index < 0), other=0.0).to(tl.float32)
    return tl.where(is_new, as_stored(fresh, hot), old)
