"""Bit and byte arithmetic of one packed page, in integers only.

A packed page is a row of int32 words. Heads follow each other; within a head:

    K planes    k_bits planes of T*D bits, plane 0 the lowest magnitude bit, the last one the sign
    V planes    v_bits planes of T*D bits, likewise
    K scales    T fp16, one per token
    V scales    T fp16
    K mean      D fp16, one per channel

Key planes run by channel (bit d*T + t), value planes by token (bit t*D + d), so that both products of
attention read along their inner loop and need no horizontal sums. Bit i of a plane is bit i % 32 of word
i // 32; on a little-endian machine also bit i % 8 of byte i // 8. A code is sign and magnitude: the sign
bit is set for negative values, the magnitude indexes the positive levels of the codebook.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvedge.targets.errors import require

WORD_BITS = 32
LAYOUT_VERSION = 1
LAYOUT_NAME = "bit-planes-1"


@dataclass(frozen=True, kw_only=True)
class PackedLayout:
    """Where everything lies in a packed page; all sizes in int32 words.

    Raises:
        KvedgeError: head_dim or page is not a positive multiple of 8.
    """

    kv_heads: int
    head_dim: int
    page: int
    k_bits: int
    v_bits: int

    def __post_init__(self) -> None:
        require(self.head_dim > 0 and self.head_dim % 8 == 0, "head_dim", expected="a multiple of 8", got=self.head_dim)
        require(self.page > 0 and self.page % 8 == 0, "page size", expected="a multiple of 8 tokens", got=self.page)

    @property
    def plane_words(self) -> int:
        """One bit of every channel of every token."""
        return self.page * self.head_dim // WORD_BITS

    @property
    def v_planes(self) -> int:
        """Offset of the value planes in a head."""
        return self.k_bits * self.plane_words

    @property
    def k_scales(self) -> int:
        """Offset of the key scales in a head."""
        return self.v_planes + self.v_bits * self.plane_words

    @property
    def v_scales(self) -> int:
        """Offset of the value scales in a head."""
        return self.k_scales + self.page // 2

    @property
    def k_mean(self) -> int:
        """Offset of the key mean in a head."""
        return self.v_scales + self.page // 2

    @property
    def head_words(self) -> int:
        """Words of one head."""
        return self.k_mean + self.head_dim // 2

    @property
    def page_words(self) -> int:
        """Words of the page: the second dimension of the packed pool."""
        return self.kv_heads * self.head_words

    @property
    def page_bytes(self) -> int:
        """Bytes of the page."""
        return 4 * self.page_words

    @property
    def bits_per_value(self) -> float:
        """Bits per cached key or value element, scales and mean counted."""
        return 8 * self.page_bytes / (2 * self.kv_heads * self.head_dim * self.page)
