"""Codes of packed pages in Triton: the words of kvedge.targets.packing to levels, and codes to words.

A lane has DEPTH elements, eight of them (an octet) at a time: a tile of levels is [octets, 8, lanes], seen as
[DEPTH, lanes]. Sizes that end in P are padded to powers of two.
"""

import triton
import triton.language as tl

from kvedge.targets.codebook import E4M3_PARTS, LEVELS, UNIFORM_BITS, UNIFORM_STEPS, boundaries
from kvedge.targets.packing import GROUP, OCTET

POSITIVE_LEVELS = {**LEVELS, UNIFORM_BITS: (1.0 / UNIFORM_STEPS,)}
"""Positive levels by bits, as a kernel takes them; at 8 bits the step alone."""

EDGES = {**{bits: boundaries(bits) for bits in LEVELS}, UNIFORM_BITS: ()}
"""Magnitudes at which the code changes, by bits."""

_PART = tl.constexpr(1.0 / E4M3_PARTS)
_OCTET = tl.constexpr(OCTET)
_GROUP_OCTETS = tl.constexpr(GROUP // OCTET)


@triton.jit
def nibble_bit(element):
    """First bit of the nibble of an element (0 to 7) of an octet, in its word."""
    return 4 * (2 * (element % 4) + element // 4)


@triton.jit
def pairs_before(octet, octets):
    """Pairs of octets in the group of an octet: the words of low bits in front of its word of signs at 3 bits."""
    left = octets - octet // _GROUP_OCTETS * _GROUP_OCTETS
    return (tl.minimum(left, _GROUP_OCTETS) + 1) // 2


@triton.jit
def load_words(words, number, valid, lanes: tl.constexpr, LANES_P: tl.constexpr):
    """Words [octets, 1, LANES_P] whose numbers in a lane are given by octet."""
    lane = tl.arange(0, LANES_P)
    at = words + number[:, None] * lanes + lane[None, :]
    return tl.load(at, mask=valid[:, None] & (lane < lanes)[None, :], other=0)[:, None, :]


@triton.jit
def levels_of(magnitude, negative, LEVELS: tl.constexpr, COUNT: tl.constexpr, TYPE: tl.constexpr):
    """Levels of sign and magnitude."""
    level = tl.full(magnitude.shape, LEVELS[0], TYPE)
    for i in tl.static_range(1, COUNT):
        level = tl.where(magnitude >= i, tl.full(magnitude.shape, LEVELS[i], TYPE), level)
    return tl.where(negative != 0, -level, level)


@triton.jit
def levels_of_floats(word):
    """Levels float16 of floats (e4m3) in the upper bytes of words; chips convert them from SM89 on."""
    return (word >> 24).to(tl.int8).to(tl.float8e4nv, bitcast=True).to(tl.float16) * _PART


@triton.jit
def load_levels(
    words,
    BITS: tl.constexpr,
    FLOATS: tl.constexpr,
    DEPTH: tl.constexpr,
    lanes: tl.constexpr,
    DEPTH_P: tl.constexpr,
    LANES_P: tl.constexpr,
    LEVELS: tl.constexpr,
    TYPE: tl.constexpr,
):
    """Levels [DEPTH_P, LANES_P] of codes, rounded to TYPE; where nothing is, the level of code 0."""
    octets: tl.constexpr = DEPTH // _OCTET
    octet = tl.arange(0, DEPTH_P // _OCTET)
    element = tl.arange(0, _OCTET)[None, :, None]
    valid = octet < octets
    inside = (octet % _GROUP_OCTETS)[:, None, None]
    if BITS == 8:
        low = load_words(words, 2 * octet, valid, lanes, LANES_P)
        high = load_words(words, 2 * octet + 1, valid, lanes, LANES_P)
        word = tl.where(element < 4, low, high) << (24 - 8 * (element % 4))
        level = levels_of_floats(word).to(TYPE) if FLOATS else ((word >> 24).to(tl.float32) * LEVELS[0]).to(TYPE)
    elif BITS == 4:
        code = load_words(words, octet, valid, lanes, LANES_P) >> nibble_bit(element)
        level = levels_of(code & 7, code & 8, LEVELS, 8, TYPE)
    else:
        number = octet // _GROUP_OCTETS * BITS + octet % _GROUP_OCTETS // 2
        code = load_words(words, number, valid, lanes, LANES_P) >> (nibble_bit(element) + 2 * (inside % 2))
        if BITS == 2:
            level = levels_of(code & 1, code & 2, LEVELS, 2, TYPE)
        else:
            signs = octet // _GROUP_OCTETS * BITS + pairs_before(octet, octets)
            sign = load_words(words, signs, valid, lanes, LANES_P)
            sign = sign >> (nibble_bit(element) + 2 * (1 - inside % 2) + inside // 2)
            level = levels_of(code & 3, sign & 1, LEVELS, 4, TYPE)
    return tl.reshape(level, (DEPTH_P, LANES_P))


@triton.jit
def store_codes(
    words,
    codes,
    BITS: tl.constexpr,
    DEPTH: tl.constexpr,
    lanes: tl.constexpr,
    DEPTH_P: tl.constexpr,
    LANES_P: tl.constexpr,
):
    """Words of codes [LANES_P, DEPTH_P] int32, zero where DEPTH ends."""
    octets: tl.constexpr = DEPTH // _OCTET
    OCTETS_P: tl.constexpr = DEPTH_P // _OCTET
    octet = tl.arange(0, OCTETS_P)[None, :]
    inside = (octet % _GROUP_OCTETS)[:, :, None]
    element = tl.arange(0, _OCTET)[None, None, :]
    lane = tl.arange(0, LANES_P)[:, None]
    there = (octet < octets) & (lane < lanes)
    parts = tl.reshape(codes, (LANES_P, OCTETS_P, _OCTET))
    if BITS == 8:
        for half in tl.static_range(2):
            byte = tl.where(element // 4 == half, (parts & 255) << (8 * (element % 4)), 0)
            tl.store(words + (2 * octet + half) * lanes + lane, tl.sum(byte, 2).to(tl.int32), mask=there)
    elif BITS == 4:
        tl.store(words + octet * lanes + lane, tl.sum(parts << nibble_bit(element), 2).to(tl.int32), mask=there)
    else:
        low = tl.sum((parts & 3) << (nibble_bit(element) + 2 * (inside % 2)), 2)
        both = tl.sum(tl.reshape(low, (LANES_P, OCTETS_P // 2, 2)), 2).to(tl.int32)
        pair = tl.arange(0, OCTETS_P // 2)[None, :]
        number = pair // (_GROUP_OCTETS // 2) * BITS + pair % (_GROUP_OCTETS // 2)
        tl.store(words + number * lanes + lane, both, mask=(2 * pair < octets) & (lane < lanes))
        if BITS == 3:
            bits = tl.sum((parts >> 2 & 1) << (nibble_bit(element) + 2 * (1 - inside % 2) + inside // 2), 2)
            GROUPS_P: tl.constexpr = (OCTETS_P + _GROUP_OCTETS - 1) // _GROUP_OCTETS
            IN_GROUP: tl.constexpr = OCTETS_P // GROUPS_P
            signs = tl.sum(tl.reshape(bits, (LANES_P, GROUPS_P, IN_GROUP)), 2).to(tl.int32)
            group = tl.arange(0, GROUPS_P)[None, :]
            number = group * BITS + pairs_before(group * _GROUP_OCTETS, octets)
            tl.store(words + number * lanes + lane, signs, mask=(group * _GROUP_OCTETS < octets) & (lane < lanes))


@triton.jit
def round_trip(
    words,
    codes,
    levels_out,
    words_out,
    BITS: tl.constexpr,
    FLOATS: tl.constexpr,
    DEPTH: tl.constexpr,
    lanes: tl.constexpr,
    DEPTH_P: tl.constexpr,
    LANES_P: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """Levels [DEPTH_P, LANES_P] float32 of words, and words of codes int32 [DEPTH, lanes]: to try both alone."""
    depth, lane = tl.arange(0, DEPTH_P), tl.arange(0, LANES_P)
    levels = load_levels(words, BITS, FLOATS, DEPTH, lanes, DEPTH_P, LANES_P, LEVELS, tl.float32)
    tl.store(levels_out + depth[:, None] * LANES_P + lane[None, :], levels)
    there = (depth < DEPTH)[None, :] & (lane < lanes)[:, None]
    by_lane = tl.load(codes + depth[None, :] * lanes + lane[:, None], mask=there, other=0)
    store_codes(words_out, by_lane, BITS, DEPTH, lanes, DEPTH_P, LANES_P)
