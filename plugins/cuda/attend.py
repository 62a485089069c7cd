"""attend: split-KV attention over sinks, packed pages, exact pages and the step's own tokens.

One program is a block of query rows, all of one page of one row and of query heads of one kv head, and one split of
the keys (Flash-Decoding, Dao et al. 2023): some packed pages, or some exact ones, the last split with the sinks. A page
is unpacked once for all rows. In a step that decodes, the rows are the query group of a kv head; in a prompt they are
the tokens of a page and one query head. Splits are merged by kvedge.plugins.cuda.merge.
"""

import triton
import triton.language as tl

from kvedge.plugins.cuda.codes import load_levels
from kvedge.plugins.cuda.tokens import floor_div, load_tokens, page_at, page_of, source_of, window_start


@triton.jit
def product(a, b, DOT: tl.constexpr):
    """a . b in float32, of operands rounded to DOT."""
    return tl.dot(a.to(DOT), b.to(DOT), input_precision="ieee")


@triton.jit
def capped(scores, SOFTCAP: tl.constexpr):
    """Scores after the soft cap."""
    if SOFTCAP > 0:
        scores = SOFTCAP * (2 * tl.sigmoid(2 * scores / SOFTCAP) - 1)
    return scores


@triton.jit
def weigh(scores, seen, top, total, sums):
    """Weights of scores, and the running softmax (Milakov and Gimelshein, 2018) shrunk to their top."""
    scores = tl.where(seen, scores, float("-inf"))
    high = tl.maximum(top, tl.max(scores, 1))
    base = tl.where(high == float("-inf"), 0.0, high)
    weights = tl.exp(scores - base[:, None])
    shrink = tl.exp(top - base)
    return weights, high, total * shrink + tl.sum(weights, 1), sums * shrink[:, None]


@triton.jit
def begin_split(ROWS: tl.constexpr, DIM_P: tl.constexpr):
    """Sums, tops and totals before anything was read."""
    return (
        tl.zeros((ROWS, DIM_P), tl.float32),
        tl.full((ROWS,), float("-inf"), tl.float32),
        tl.zeros((ROWS,), tl.float32),
    )


@triton.jit
def bias_scores(
    q,
    rows,
    real,
    bias,
    head,
    start,
    TOKENS: tl.constexpr,
    TOKENS_P: tl.constexpr,
    PAIRS: tl.constexpr,
    PAIRS_P: tl.constexpr,
    DIM: tl.constexpr,
    DOT: tl.constexpr,
):
    """Scores of the key bias of the page at position `start`: queries turned to its first position, times its table."""
    page, freqs, channels = bias
    pair, token = tl.arange(0, PAIRS_P), tl.arange(0, TOKENS_P)
    has = pair < PAIRS
    angle = tl.load(freqs + pair, mask=has, other=0.0).to(tl.float64) * start
    cos, sin = tl.cos(angle).to(tl.float32)[None, :], tl.sin(angle).to(tl.float32)[None, :]
    held, of_row = real[:, None] & has[None, :], q + rows[:, None] * DIM
    a = tl.load(of_row + tl.load(channels + pair, mask=has, other=0)[None, :], mask=held, other=0.0)
    b = tl.load(of_row + tl.load(channels + PAIRS + pair, mask=has, other=0)[None, :], mask=held, other=0.0)
    table = page + (head * 2 * PAIRS + pair[:, None]) * TOKENS + token[None, :]
    there = has[:, None] & (token < TOKENS)[None, :]
    first = tl.load(table, mask=there, other=0.0)
    second = tl.load(table + PAIRS * TOKENS, mask=there, other=0.0)
    return product(a * cos + b * sin, first, DOT) + product(b * cos - a * sin, second, DOT)


@triton.jit
def read_packed(
    q,
    rotated_q,
    rows,
    real,
    begin,
    plain,
    pool,
    first_page,
    last_page,
    bias,
    head,
    sinks,
    ROWS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_P: tl.constexpr,
    TOKENS: tl.constexpr,
    TOKENS_P: tl.constexpr,
    SOFTCAP: tl.constexpr,
    K_BITS: tl.constexpr,
    V_BITS: tl.constexpr,
    FLOAT_CODES: tl.constexpr,
    K_LEVELS: tl.constexpr,
    V_LEVELS: tl.constexpr,
    V_CODES: tl.constexpr,
    K_SCALES: tl.constexpr,
    V_SCALES: tl.constexpr,
    K_MEAN: tl.constexpr,
    HEAD_WORDS: tl.constexpr,
    BIAS_PAIRS: tl.constexpr,
    BIAS_PAIRS_P: tl.constexpr,
    DOT: tl.constexpr,
):
    """Sums, tops and totals over packed pages [first_page, last_page), in the rotated basis."""
    packed, packed_halves, table, slots = pool
    sums, top, total = begin_split(ROWS, DIM_P)
    channel, token = tl.arange(0, DIM_P), tl.arange(0, TOKENS_P)
    for number in range(first_page, last_page):
        at = page_at(table, number, slots, head, KV_HEADS, HEAD_WORDS)
        halves = packed_halves + 2 * at
        scale = tl.load(halves + 2 * K_SCALES + token, mask=token < TOKENS, other=0.0).to(tl.float32)
        mean = tl.load(halves + 2 * K_MEAN + channel, mask=channel < DIM, other=0.0).to(tl.float32)
        keys = load_levels(packed + at, K_BITS, FLOAT_CODES, DIM, TOKENS, DIM_P, TOKENS_P, K_LEVELS, DOT)
        scores = product(rotated_q, keys, DOT) * scale[None, :] + tl.sum(q * mean[None, :], 1)[:, None]
        start = sinks + number * TOKENS
        if BIAS_PAIRS > 0:
            scores += bias_scores(
                plain, rows, real, bias, head, start, TOKENS, TOKENS_P, BIAS_PAIRS, BIAS_PAIRS_P, DIM, DOT
            )
        seen = real[:, None] & (start + token[None, :] >= begin[:, None]) & (token < TOKENS)[None, :]
        weights, top, total, sums = weigh(capped(scores, SOFTCAP), seen, top, total, sums)
        scale = tl.load(halves + 2 * V_SCALES + token, mask=token < TOKENS, other=0.0).to(tl.float32)
        values = load_levels(packed + at + V_CODES, V_BITS, FLOAT_CODES, TOKENS, DIM, TOKENS_P, DIM_P, V_LEVELS, DOT)
        sums += product(weights * scale[None, :], values, DOT)
    return sums, top, total


@triton.jit
def read_exact(
    q,
    turned_q,
    query,
    real,
    begin,
    k,
    v,
    source,
    sink_tiles,
    first_page,
    last_page,
    end,
    sinks,
    ROWS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_P: tl.constexpr,
    TOKENS: tl.constexpr,
    TOKENS_P: tl.constexpr,
    SOFTCAP: tl.constexpr,
    DOT: tl.constexpr,
):
    """Sums, tops and totals over tiles of sinks, then over exact pages [first_page, last_page) up to token `end`."""
    sums, top, total = begin_split(ROWS, DIM_P)
    channel, token = tl.arange(0, DIM_P), tl.arange(0, TOKENS_P)
    for tile in range(sink_tiles + tl.maximum(0, last_page - first_page)):
        is_sinks = tile < sink_tiles
        first = tl.where(is_sinks, tile * TOKENS, sinks + (first_page + tile - sink_tiles) * TOKENS)
        last = tl.minimum(first + TOKENS, tl.where(is_sinks, tl.minimum(sinks, end), end))
        order = first + token
        valid = order < last
        there = valid[None, :] & (channel < DIM)[:, None]
        keys = load_tokens(k, source, first, token[None, :], channel[:, None], there, KV_HEADS, DIM, TOKENS, 0)
        scores = product(tl.where(is_sinks, turned_q, q), keys, DOT)
        seen = real[:, None] & valid[None, :] & (order[None, :] <= query[:, None])
        seen = seen & (is_sinks | (order[None, :] >= begin[:, None]))
        weights, top, total, sums = weigh(capped(scores, SOFTCAP), seen, top, total, sums)
        there = valid[:, None] & (channel < DIM)[None, :]
        values = load_tokens(v, source, first, token[:, None], channel[None, :], there, KV_HEADS, DIM, TOKENS, 1)
        sums += product(weights, values, DOT)
    return sums, top, total


@triton.jit
def block_of(before, new, sinks, TOKENS: tl.constexpr, BLOCK: tl.constexpr):
    """Page of this program's queries, where their block begins, its first token of this step, and its end."""
    block = page_of(before, sinks, BLOCK) + tl.program_id(0)
    start = sinks + block * BLOCK
    return floor_div(block * BLOCK, TOKENS), start, tl.maximum(start, before), tl.minimum(start + BLOCK, before + new)


@triton.jit
def pages_of(split, first, last, pages_a_split):
    """Pages [from, to) of a split of pages [first, last); none where to is not above from."""
    from_page = first + split * pages_a_split
    return from_page, tl.minimum(last, from_page + pages_a_split)


@triton.jit
def queries_of(
    start,
    first_query,
    end,
    first_head,
    BLOCK: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    HEADS_OF_BLOCK: tl.constexpr,
):
    """Order and head of each row of a block that begins at token `start`, and whether it is one of this step."""
    r = tl.arange(0, BLOCK * BLOCK_HEADS)
    query = start + r // BLOCK_HEADS
    real = (query >= first_query) & (query < end) & (r % BLOCK_HEADS < HEADS_OF_BLOCK)
    return query, first_head + r % BLOCK_HEADS, real


@triton.jit
def attend_kernel(
    plain,
    turned,
    rotated,
    k,
    v,
    hot,
    packed,
    packed_halves,
    hot_table,
    packed_table,
    context,
    num_new,
    bias_page,
    bias_freqs,
    bias_channels,
    sums_of_splits,
    tops,
    totals,
    pages_read,
    sinks,
    recent_pages,
    window,
    hot_slots,
    packed_slots,
    packed_splits,
    pages_a_split,
    exact_pages_a_split,
    new_tokens,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_P: tl.constexpr,
    TOKENS: tl.constexpr,
    TOKENS_P: tl.constexpr,
    PACKS: tl.constexpr,
    TURNS: tl.constexpr,
    SOFTCAP: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    HEADS_OF_BLOCK: tl.constexpr,
    K_BITS: tl.constexpr,
    V_BITS: tl.constexpr,
    FLOAT_CODES: tl.constexpr,
    K_LEVELS: tl.constexpr,
    V_LEVELS: tl.constexpr,
    V_CODES: tl.constexpr,
    K_SCALES: tl.constexpr,
    V_SCALES: tl.constexpr,
    K_MEAN: tl.constexpr,
    HEAD_WORDS: tl.constexpr,
    BIAS_PAIRS: tl.constexpr,
    BIAS_PAIRS_P: tl.constexpr,
    DOT: tl.constexpr,
):
    """Grid (blocks of queries from the one with the first, B * HEADS / HEADS_OF_BLOCK, splits).

    Args:
        plain, turned, rotated: queries float32 [B, HEADS, N, DIM].
        sums_of_splits: float32 [B, HEADS, N, splits, DIM], of packed splits in the rotated basis; tops and totals
            [B, HEADS, N, splits]. A split that a row sees nothing of has top -inf.
        window: 0 for none.
        BLOCK: tokens of a block, which divides a page; BLOCK_HEADS: HEADS_OF_BLOCK padded to a power of two.
    """
    GROUP: tl.constexpr = HEADS // KV_HEADS
    BLOCKS_OF_ROW: tl.constexpr = HEADS // HEADS_OF_BLOCK
    ROWS: tl.constexpr = BLOCK * BLOCK_HEADS
    row, first_head = tl.program_id(1) // BLOCKS_OF_ROW, tl.program_id(1) % BLOCKS_OF_ROW * HEADS_OF_BLOCK
    head = first_head // GROUP
    source = source_of(hot, hot_table, context, num_new, row, head, sinks, hot_slots, new_tokens, TOKENS)
    query_page, start, first_query, end = block_of(source[4], source[5], sinks, TOKENS, BLOCK)
    if first_query >= end:
        return
    channel, split = tl.arange(0, DIM_P), tl.program_id(2)
    query, query_head, real = queries_of(start, first_query, end, first_head, BLOCK, BLOCK_HEADS, HEADS_OF_BLOCK)
    rows = (row * HEADS + query_head) * new_tokens + query - source[4]
    at, held = rows[:, None] * DIM + channel[None, :], real[:, None] & (channel < DIM)[None, :]
    q = tl.load(plain + at, mask=held, other=0.0)
    begin = window_start(query, sinks, window)
    oldest = page_of(window_start(first_query, sinks, window), sinks, TOKENS)
    exact = tl.maximum(oldest, query_page - recent_pages) if PACKS else oldest
    sums, top, total = begin_split(ROWS, DIM_P)
    if split < packed_splits:
        if PACKS:
            first_page, last_page = pages_of(split, oldest, exact, pages_a_split)
            rotated_q = tl.load(rotated + at, mask=held, other=0.0)
            pool = (packed, packed_halves, packed_table + row * packed_slots, packed_slots)
            bias = (bias_page, bias_freqs, bias_channels)
            sums, top, total = read_packed(q, rotated_q, rows, real, begin, plain, pool, first_page, last_page,
                bias, head, sinks, ROWS, KV_HEADS, DIM, DIM_P, TOKENS, TOKENS_P, SOFTCAP, K_BITS, V_BITS,
                FLOAT_CODES, K_LEVELS, V_LEVELS, V_CODES, K_SCALES, V_SCALES, K_MEAN, HEAD_WORDS, BIAS_PAIRS,
                BIAS_PAIRS_P, DOT)  # fmt: skip
            counts = (first_query == tl.maximum(source[4], sinks + query_page * TOKENS)) & (first_head % GROUP == 0)
            tl.atomic_add(pages_read + row, tl.maximum(0, last_page - first_page), mask=counts)
    else:
        first_page, last_page = pages_of(split - packed_splits, exact, query_page + 1, exact_pages_a_split)
        sink_tiles = tl.where(split == tl.num_programs(2) - 1, (tl.minimum(sinks, end) + TOKENS - 1) // TOKENS, 0)
        turned_q = tl.load(turned + at, mask=held, other=0.0) if TURNS else q
        sums, top, total = read_exact(q, turned_q, query, real, begin, k, v, source, sink_tiles, first_page,
            last_page, end, sinks, ROWS, KV_HEADS, DIM, DIM_P, TOKENS, TOKENS_P, SOFTCAP, DOT)  # fmt: skip
    place = rows * tl.num_programs(2) + split
    tl.store(sums_of_splits + place[:, None] * DIM + channel[None, :], sums, mask=held)
    tl.store(tops + place, top, mask=real)
    tl.store(totals + place, total, mask=real)
