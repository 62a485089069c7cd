"""Bit and byte arithmetic of one packed page, in integers only.

A packed page is a row of int32 words. Heads follow each other; within a head:

    K codes     a lane is a token, an element a channel
    V codes     a lane is a channel, an element a token
    K scales    T fp16, one per token
    V scales    T fp16
    K mean      D fp16, one per channel

Attention sums over elements (q.k over channels, w.v over tokens), so lanes stay apart and neither product
needs a sum across a vector. Codes lie as [group][word][lane], lane fastest: a group is 32 elements (the last
one may be shorter), and a word of a lane holds the same bits of some of them. Four consecutive elements stand
at the same bit of the four bytes of their word: element i of a group belongs to octet i // 8 and to nibble
2 * (i % 4) + i // 4 % 2 of a word, and `bit_place` says which bits there are its code.

A code of up to 4 bits is sign and magnitude: the top bit is set for negative values, the others index the
positive levels of the codebook. A code of 8 bits is a two's complement integer, or a float (e4m3).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvedge.targets.errors import require

GROUP = 32
"""Elements of a lane whose codes share words."""

OCTET = 8
LAYOUT_VERSION = 2
LAYOUT_NAME = "nibble-words-2"


def octets_of(depth: int) -> list[int]:
    """Octets in each group of a lane of `depth` elements."""
    return [min(GROUP, depth - start) // OCTET for start in range(0, depth, GROUP)]


def group_words(bits: int, octets: int) -> int:
    """Words of a lane for a group: one per bit, or what a shorter group needs; 0 bits stand for no codes."""
    pairs = (octets + 1) // 2
    return {0: 0, 2: pairs, 3: pairs + 1, 4: octets, 8: 2 * octets}[bits]


def lane_words(bits: int, depth: int) -> int:
    """Words of a lane of `depth` elements."""
    return sum(group_words(bits, octets) for octets in octets_of(depth))


def bit_place(bits: int, octets: int, element: int, bit: int) -> tuple[int, int]:
    """Word of the group and bit of the word where bit `bit` of an element's code lies."""
    octet, nibble = element // OCTET, 2 * (element % 4) + element // 4 % 2
    if bits == 8:
        return element // 4, 8 * (element % 4) + bit
    if bits == 4:
        return octet, 4 * nibble + bit
    if bit < 2:
        return octet // 2, 4 * nibble + 2 * (octet % 2) + bit
    return group_words(bits, octets) - 1, 4 * nibble + 2 * (1 - octet % 2) + octet // 2


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
    def v_codes(self) -> int:
        """Offset of the value codes in a head: the size of the key codes."""
        return self.page * lane_words(self.k_bits, self.head_dim)

    @property
    def k_scales(self) -> int:
        """Offset of the key scales in a head."""
        return self.v_codes + self.head_dim * lane_words(self.v_bits, self.page)

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
