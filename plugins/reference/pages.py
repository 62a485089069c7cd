"""Packed pages as arrays: codes, scales and means to words and back (layout: kvedge.targets.packing)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvedge.targets.packing import PackedLayout

Words = NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class PageCodes:
    """One page of one head: codes [T, D] uint8, scales [T] float16, key mean [D] float16."""

    k_codes: NDArray[np.uint8]
    v_codes: NDArray[np.uint8]
    k_scales: NDArray[np.float16]
    v_scales: NDArray[np.float16]
    k_mean: NDArray[np.float16]


def pack(codes: PageCodes, layout: PackedLayout) -> Words:
    """Words [head_words] of one head."""
    parts = [
        _planes(codes.k_codes.T, layout.k_bits),
        _planes(codes.v_codes, layout.v_bits),
        codes.k_scales.view(np.uint8),
        codes.v_scales.view(np.uint8),
        codes.k_mean.view(np.uint8),
    ]
    return np.concatenate(parts).view("<i4").astype(np.int32)


def unpack(words: Words, layout: PackedLayout) -> PageCodes:
    """Inverse of pack."""
    data = words.astype("<i4")
    tokens, dim = layout.page, layout.head_dim
    return PageCodes(
        k_codes=_codes(data[: layout.v_planes], layout.k_bits, (dim, tokens)).T,
        v_codes=_codes(data[layout.v_planes : layout.k_scales], layout.v_bits, (tokens, dim)),
        k_scales=data[layout.k_scales : layout.v_scales].view("<f2"),
        v_scales=data[layout.v_scales : layout.k_mean].view("<f2"),
        k_mean=data[layout.k_mean : layout.head_words].view("<f2"),
    )


def head_words(row: Words, head: int, layout: PackedLayout) -> Words:
    """View of one head in a packed page [words]."""
    return row[head * layout.head_words : (head + 1) * layout.head_words]


def _planes(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Bytes of the bit planes of codes, in the order of its elements."""
    flat = codes.reshape(-1)
    return np.concatenate([np.packbits(flat >> bit & 1, bitorder="little") for bit in range(bits)])


def _codes(words: Words, bits: int, shape: tuple[int, int]) -> NDArray[np.uint8]:
    planes = np.unpackbits(words.view(np.uint8).reshape(bits, -1), axis=1, bitorder="little")
    flat = sum(planes[bit] << bit for bit in range(bits))
    return np.asarray(flat, np.uint8).reshape(shape)
