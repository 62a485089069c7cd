"""Packed pages as arrays: codes, scales and means to words and back (layout: kvedge.targets.packing)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvedge.targets.packing import GROUP, OCTET, PackedLayout, bit_place, group_words, lane_words, octets_of

Words = NDArray[np.int32]
Codes = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class PageCodes:
    """One page of one head: codes [T, D] uint8, scales [T] float16, key mean [D] float16."""

    k_codes: Codes
    v_codes: Codes
    k_scales: NDArray[np.float16]
    v_scales: NDArray[np.float16]
    k_mean: NDArray[np.float16]


def pack(codes: PageCodes, layout: PackedLayout) -> Words:
    """Words [head_words] of one head."""
    parts = [
        pack_codes(codes.k_codes.T, layout.k_bits),
        pack_codes(codes.v_codes, layout.v_bits),
        codes.k_scales.view("<i4"),
        codes.v_scales.view("<i4"),
        codes.k_mean.view("<i4"),
    ]
    return np.concatenate(parts).astype(np.int32)


def unpack(words: Words, layout: PackedLayout) -> PageCodes:
    """Inverse of pack."""
    data = words.astype("<i4")
    tokens, dim = layout.page, layout.head_dim
    return PageCodes(
        k_codes=unpack_codes(data[: layout.v_codes], layout.k_bits, (dim, tokens)).T,
        v_codes=unpack_codes(data[layout.v_codes : layout.k_scales], layout.v_bits, (tokens, dim)),
        k_scales=data[layout.k_scales : layout.v_scales].view("<f2"),
        v_scales=data[layout.v_scales : layout.k_mean].view("<f2"),
        k_mean=data[layout.k_mean : layout.head_words].view("<f2"),
    )


def head_words(row: Words, head: int, layout: PackedLayout) -> Words:
    """View of one head in a packed page [words]."""
    return row[head * layout.head_words : (head + 1) * layout.head_words]


def pack_codes(codes: Codes, bits: int) -> Words:
    """Words of codes [depth, lanes], flat."""
    depth, lanes = codes.shape
    words = np.zeros((lane_words(bits, depth), lanes), np.uint32)
    for element, code_bit, word, bit in _places(bits, depth):
        words[word] |= (codes[element].astype(np.uint32) >> code_bit & 1) << bit
    return words.reshape(-1).view(np.int32)


def unpack_codes(words: Words, bits: int, shape: tuple[int, int]) -> Codes:
    """Codes [depth, lanes] of words, flat."""
    depth, lanes = shape
    codes, by_lane = np.zeros(shape, np.uint8), words.view(np.uint32).reshape(-1, lanes)
    for element, code_bit, word, bit in _places(bits, depth):
        codes[element] |= (by_lane[word] >> bit & 1).astype(np.uint8) << code_bit
    return codes


def _places(bits: int, depth: int) -> Iterator[tuple[int, int, int, int]]:
    """Element, bit of its code, word of the lane, bit of the word: of all bits of a lane."""
    first = 0
    for group, octets in enumerate(octets_of(depth)):
        for element in range(OCTET * octets):
            for code_bit in range(bits):
                word, bit = bit_place(bits, octets, element, code_bit)
                yield GROUP * group + element, code_bit, first + word, bit
        first += group_words(bits, octets)
