"""seal: quantize the pages that a step makes old, as kvedge.plugins.reference.seal does.

One program is one page of one head. Compiled without fused multiply-add, so that codes and scales are those of the
reference: sums run over tokens and channels in order, through a scratch of one page.
"""

import triton
import triton.language as tl

from kvedge.plugins.cuda.codes import levels_of, levels_of_floats, store_codes
from kvedge.plugins.cuda.rotation import channel_of, rotate
from kvedge.plugins.cuda.tokens import load_tokens, page_at, sealed_pages, source_of, to_half
from kvedge.targets import codebook

_LAST = tl.constexpr(float(codebook.UNIFORM_LAST))
_STEPS = tl.constexpr(float(codebook.UNIFORM_STEPS))
_LAST_FLOAT = tl.constexpr(codebook.E4M3_LAST)
_NORMAL_FLOAT = tl.constexpr(codebook.E4M3_NORMAL)
_COUNTER = tl.constexpr(codebook.E4M3_COUNTER)
_DROPPED = tl.constexpr(codebook.E4M3_DROPPED)
_BELOW_HALF = tl.constexpr(codebook.E4M3_BELOW_HALF)


@triton.jit
def nearest_float(magnitude):
    """e4m3 int32 of levels, without a sign, as kvedge.plugins.reference.quantize.nearest_float."""
    most = tl.minimum(magnitude, _LAST_FLOAT).to(tl.int32, bitcast=True)
    rounded = (most + _BELOW_HALF + (most >> _DROPPED & 1)) >> _DROPPED
    below = tl.full(magnitude.shape, _NORMAL_FLOAT / 2, tl.float32).to(tl.int32, bitcast=True) >> _DROPPED
    counter = tl.full(magnitude.shape, _COUNTER, tl.float32)
    small = (magnitude + counter).to(tl.int32, bitcast=True) - counter.to(tl.int32, bitcast=True)
    return tl.where(magnitude < _NORMAL_FLOAT, small, rounded - below)


@triton.jit
def nearest(y, BITS: tl.constexpr, FLOATS: tl.constexpr, EDGES: tl.constexpr, COUNT: tl.constexpr):
    """Codes int32 of the levels nearest to y, and their magnitudes as numbers of levels."""
    magnitude = tl.abs(y)
    if FLOATS:
        return nearest_float(magnitude) | (y < 0).to(tl.int32) << (BITS - 1)
    if BITS == 8:
        steps = tl.minimum(magnitude * _STEPS + 0.5, _LAST).to(tl.int32)
        return tl.where(y < 0, -steps, steps)
    code = tl.zeros(y.shape, tl.int32)
    for i in tl.static_range(COUNT):
        code += (magnitude > EDGES[i]).to(tl.int32)
    return code | (y < 0).to(tl.int32) << (BITS - 1)


@triton.jit
def level_of(code, BITS: tl.constexpr, FLOATS: tl.constexpr, LEVELS: tl.constexpr, COUNT: tl.constexpr):
    """Levels float32 of codes."""
    if FLOATS:
        return levels_of_floats(code << 24).to(tl.float32)
    if BITS == 8:
        return tl.div_rn(code.to(tl.float32), _STEPS)
    return levels_of(code & (COUNT - 1), code & COUNT, LEVELS, COUNT, tl.float32)


@triton.jit
def spread_of(
    scratch,
    BITS: tl.constexpr,
    FLOATS: tl.constexpr,
    ROOT: tl.constexpr,
    TOKENS: tl.constexpr,
    TOKENS_P: tl.constexpr,
    DIM: tl.constexpr,
):
    """Sums of squares of the vectors in scratch [TOKENS, DIM], and the factors that bring them to the levels' range."""
    token = tl.arange(0, TOKENS_P)
    squares = tl.zeros((TOKENS_P,), tl.float32)
    largest = tl.zeros((TOKENS_P,), tl.float32)
    for d in range(DIM):
        z = tl.load(scratch + token * DIM + d, mask=token < TOKENS, other=0.0)
        squares = squares + z * z
        largest = tl.maximum(largest, tl.abs(z))
    norm = tl.sqrt_rn(squares)
    if BITS == 8:
        LAST: tl.constexpr = _LAST_FLOAT if FLOATS else _LAST / _STEPS
        factor = tl.div_rn(tl.full((TOKENS_P,), LAST, tl.float32), tl.where(norm > 0, largest, 1.0))
    else:
        factor = tl.div_rn(tl.full((TOKENS_P,), ROOT, tl.float32), tl.where(norm > 0, norm, 1.0))
    return squares, tl.where(norm > 0, factor, 0.0)


@triton.jit
def scale_of(
    scratch,
    squares,
    spread,
    BITS: tl.constexpr,
    FLOATS: tl.constexpr,
    UNBIASED: tl.constexpr,
    LEVELS: tl.constexpr,
    EDGES: tl.constexpr,
    COUNT: tl.constexpr,
    TOKENS: tl.constexpr,
    TOKENS_P: tl.constexpr,
    DIM: tl.constexpr,
):
    """Scales float16 of the vectors in scratch [TOKENS, DIM]."""
    token = tl.arange(0, TOKENS_P)
    along = tl.zeros((TOKENS_P,), tl.float32)
    energy = tl.zeros((TOKENS_P,), tl.float32)
    for d in range(DIM):
        z = tl.load(scratch + token * DIM + d, mask=token < TOKENS, other=0.0)
        code = nearest(z * spread, BITS, FLOATS, EDGES, COUNT - 1)
        level = level_of(code, BITS, FLOATS, LEVELS, COUNT)
        along = along + z * level
        energy = energy + level * level
    if UNBIASED:
        scale = tl.div_rn(squares, tl.where(squares > 0, along, 1.0))
    else:
        scale = tl.div_rn(along, tl.where(squares > 0, energy, 1.0))
    return to_half(tl.where(squares > 0, scale, 0.0))


@triton.jit
def encode(
    scratch,
    words,
    scales,
    LANES_ARE_TOKENS: tl.constexpr,
    BITS: tl.constexpr,
    FLOATS: tl.constexpr,
    UNBIASED: tl.constexpr,
    LEVELS: tl.constexpr,
    EDGES: tl.constexpr,
    ROOT: tl.constexpr,
    TOKENS: tl.constexpr,
    TOKENS_P: tl.constexpr,
    DIM: tl.constexpr,
    DIM_P: tl.constexpr,
):
    """Writes codes and scales of the rotated vectors in scratch [TOKENS, DIM]."""
    COUNT: tl.constexpr = 1 if BITS == 8 else 1 << (BITS - 1)
    token, channel = tl.arange(0, TOKENS_P), tl.arange(0, DIM_P)
    squares, spread = spread_of(scratch, BITS, FLOATS, ROOT, TOKENS, TOKENS_P, DIM)
    scale = scale_of(scratch, squares, spread, BITS, FLOATS, UNBIASED, LEVELS, EDGES, COUNT, TOKENS, TOKENS_P, DIM)
    tl.store(scales + token, scale, mask=token < TOKENS)
    held = (token < TOKENS)[:, None] & (channel < DIM)[None, :]
    z = tl.load(scratch + token[:, None] * DIM + channel[None, :], mask=held, other=0.0)
    codes = tl.where(held, nearest(z * spread[:, None], BITS, FLOATS, EDGES, COUNT - 1), 0)
    if LANES_ARE_TOKENS:
        store_codes(words, codes, BITS, DIM, TOKENS, DIM_P, TOKENS_P)
    else:
        store_codes(words, tl.trans(codes), BITS, TOKENS, DIM, TOKENS_P, DIM_P)


@triton.jit
def bias_rows_kernel(bias_channels, bias_rows, DIM: tl.constexpr, DIM_P: tl.constexpr, BIAS_PAIRS: tl.constexpr):
    """Grid (1). Row of each channel in a key bias's table, int32 [DIM], -1 for none: for launchers without numpy."""
    channel = tl.arange(0, DIM_P)
    row = tl.full((DIM_P,), -1, tl.int32)
    for i in range(2 * BIAS_PAIRS):
        row = tl.where(channel == tl.load(bias_channels + i), i, row)
    tl.store(bias_rows + channel, row, mask=channel < DIM)


@triton.jit
def bias_of(bias, channel, token, valid, first, head, TOKENS: tl.constexpr, PAIRS: tl.constexpr):
    """The key bias of channels at tokens of the page at position `first`, as kvedge.plugins.key_bias.bias_at.

    bias: table [KV_HEADS, 2 * PAIRS, TOKENS], radians a position [PAIRS], and each channel's row in the table, int32
    [DIM], -1 for none.
    """
    table, freqs, rows = bias
    row = tl.load(rows + channel, mask=valid, other=-1)
    has = valid & (row >= 0)
    pair = tl.where(row >= PAIRS, row - PAIRS, row)
    angle = tl.load(freqs + pair, mask=has, other=0.0).to(tl.float64) * first
    cos, sin = tl.cos(angle).to(tl.float32), tl.sin(angle).to(tl.float32)
    at = table + (head * 2 * PAIRS + pair) * TOKENS + token
    a = tl.load(at, mask=has, other=0.0)
    b = tl.load(at + PAIRS * TOKENS, mask=has, other=0.0)
    return tl.where(row >= PAIRS, b * cos + a * sin, a * cos - b * sin)


@triton.jit
def sealed_keys(
    k,
    source,
    token,
    channel,
    valid,
    first,
    bias,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    TOKENS: tl.constexpr,
    BIAS_PAIRS: tl.constexpr,
):
    """Keys of tokens of the page that begins at `first`, without their bias."""
    keys = load_tokens(k, source, first, token, channel, valid, KV_HEADS, DIM, TOKENS, 0)
    if BIAS_PAIRS > 0:
        keys = keys - bias_of(bias, channel, token, valid, first, source[3], TOKENS, BIAS_PAIRS)
    return keys


@triton.jit
def seal_kernel(
    k,
    v,
    hot,
    packed,
    packed_halves,
    hot_table,
    packed_table,
    context,
    num_new,
    dct,
    scratch,
    bias_page,
    bias_freqs,
    bias_rows,
    sinks,
    recent_pages,
    hot_slots,
    packed_slots,
    new_tokens,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_P: tl.constexpr,
    TOKENS: tl.constexpr,
    TOKENS_P: tl.constexpr,
    POWER: tl.constexpr,
    ODD: tl.constexpr,
    ODD_P: tl.constexpr,
    NORM: tl.constexpr,
    ROOT: tl.constexpr,
    K_BITS: tl.constexpr,
    V_BITS: tl.constexpr,
    FLOAT_CODES: tl.constexpr,
    V_UNBIASED: tl.constexpr,
    K_LEVELS: tl.constexpr,
    V_LEVELS: tl.constexpr,
    K_EDGES: tl.constexpr,
    V_EDGES: tl.constexpr,
    V_CODES: tl.constexpr,
    K_SCALES: tl.constexpr,
    V_SCALES: tl.constexpr,
    K_MEAN: tl.constexpr,
    HEAD_WORDS: tl.constexpr,
    BIAS_PAIRS: tl.constexpr,
):
    """Grid (pages that one step can make old, B * KV_HEADS). Scratch: one [TOKENS, DIM] float32 a program."""
    row, head = tl.program_id(1) // KV_HEADS, tl.program_id(1) % KV_HEADS
    source = source_of(hot, hot_table, context, num_new, row, head, sinks, hot_slots, new_tokens, TOKENS)
    before, new = source[4], source[5]
    number = sealed_pages(before, sinks, TOKENS, recent_pages) + tl.program_id(0)
    if (new == 0) | (number >= sealed_pages(before + new, sinks, TOKENS, recent_pages)):
        return
    first = sinks + number * TOKENS
    at = page_at(packed_table + row * packed_slots, number, packed_slots, head, KV_HEADS, HEAD_WORDS)
    words, halves = packed + at, packed_halves + 2 * at
    mine = scratch + (tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)) * TOKENS * DIM
    place, token = tl.arange(0, POWER * ODD_P)[None, :], tl.arange(0, TOKENS_P)[:, None]
    channel, real = channel_of(place, ODD, ODD_P), place % ODD_P < ODD
    there = (token < TOKENS) & real
    bias = (bias_page, bias_freqs, bias_rows)

    total = tl.zeros((1, POWER * ODD_P), tl.float32)
    for t in range(TOKENS):
        one = tl.full((1, 1), 0, tl.int32) + t
        total += sealed_keys(k, source, one, channel, real, first, bias, KV_HEADS, DIM, TOKENS, BIAS_PAIRS)
    mean = to_half(tl.div_rn(total, tl.full((1, POWER * ODD_P), TOKENS, tl.float32)))
    tl.store(halves + 2 * K_MEAN + channel, mean, mask=real)

    x = sealed_keys(k, source, token, channel, there, first, bias, KV_HEADS, DIM, TOKENS, BIAS_PAIRS)
    x = tl.where(there, x - mean.to(tl.float32), 0.0)
    tl.store(mine + token * DIM + channel, rotate(x, dct, TOKENS_P, POWER, ODD, ODD_P, NORM, False), mask=there)
    tl.debug_barrier()
    scales = halves + 2 * K_SCALES
    encode(mine, words, scales, True, K_BITS, FLOAT_CODES, True, K_LEVELS, K_EDGES, ROOT, TOKENS, TOKENS_P, DIM, DIM_P)
    tl.debug_barrier()

    x = load_tokens(v, source, first, token, channel, there, KV_HEADS, DIM, TOKENS, 1)
    tl.store(mine + token * DIM + channel, rotate(x, dct, TOKENS_P, POWER, ODD, ODD_P, NORM, False), mask=there)
    tl.debug_barrier()
    scales = halves + 2 * V_SCALES
    words += V_CODES
    encode(mine, words, scales, False, V_BITS, FLOAT_CODES, V_UNBIASED, V_LEVELS, V_EDGES, ROOT, TOKENS, TOKENS_P,
        DIM, DIM_P)  # fmt: skip
