"""The cache specification: the one truth about what is stored, per layer.

`PageRules` says which tokens a group of layers keeps and how it reads them, `LayerSpec` adds the shapes of
one layer, `CacheSpec` is the whole model. `Capacity` turns rules into page counts: `plan`, `inspect` and
the runtime all ask here, so what is planned is what is allocated.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kvedge.targets.errors import require
from kvedge.targets.kinds import HotDtype, Kind
from kvedge.targets.packing import PackedLayout
from kvedge.targets.visibility import page_of, ring_pages, sink_pages

POSITION_FRAME = "cache-relative"
"""Window keys stay at their true rotary position; the query is turned towards the sinks."""

DEFAULT_KIND = Kind.INT4
DEFAULT_PAGE = 64
DEFAULT_SINKS = 64
DEFAULT_RECENT = 128


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """Pages that one session needs in one group; also the widths of its block tables."""

    hot_pages: int
    packed_pages: int


@dataclass(frozen=True, kw_only=True)
class PageRules:
    """Which tokens are kept and how they are read. Layers with equal rules share their block tables.

    Args:
        page: tokens a page (T).
        sinks: first tokens, always visible and exact (S).
        recent: tokens that every query may read exactly, a multiple of the page (R).
        window: keys that a query sees besides the sinks, itself included (W); None for all.
        exact: nothing is ever packed.

    Raises:
        KvedgeError: a number that cannot work.
    """

    page: int
    sinks: int
    recent: int
    window: int | None
    exact: bool

    def __post_init__(self) -> None:
        require(self.page > 0 and self.page % 8 == 0, "page size", expected="a multiple of 8 tokens", got=self.page)
        require(self.sinks >= 0, "sinks", expected="0 or more tokens", got=self.sinks)
        require(
            self.recent >= self.page and self.recent % self.page == 0,
            "recent tokens",
            expected=f"a positive multiple of the page size {self.page}",
            got=self.recent,
            fix="change --recent or --page",
        )
        require(self.window is None or self.window > 0, "window", expected="at least 1 token", got=self.window)

    @property
    def slack(self) -> int:
        """Tokens that can be rolled back without loss."""
        return self.page

    def check_positions(self, max_positions: int) -> None:
        """Check window and sinks against the positions that the model was made for.

        Raises:
            KvedgeError: together they are more.
        """
        require(
            (self.window or 1) + self.sinks <= max_positions,
            "window and sinks",
            expected=f"together at most the model's {max_positions} positions",
            got=f"a window of {self.window or 'all tokens'} and {self.sinks} sinks",
            fix="use a smaller --window or --sinks",
        )

    @property
    def packs(self) -> bool:
        """Whether pages get packed at all.

        The nearest key that may be read packed is R + 1 tokens back: the last of its page, seen by the first
        of another. A window of R + 1 keys or fewer never reaches it.
        """
        return not self.exact and (self.window is None or self.window > self.recent + 1)

    def span(self, context: int) -> int:
        """Tokens besides the sinks that the oldest visible one can be away, itself included."""
        whole = max(1, context - self.sinks)
        return whole if self.window is None else self.window

    def capacity(self, context: int, chunk: int) -> Capacity:
        """Pages for one session of at most `context` tokens (no matter with a window), `chunk` new ones a step."""
        return Capacity(
            hot_pages=sink_pages(self.sinks, self.page) + self._ring_pages(context),
            packed_pages=self._packed_pages(context, chunk) if self.packs else 0,
        )

    def _ring_pages(self, context: int) -> int:
        span = self.span(context)
        reach = span if self.exact else min(span, self.recent + self.page)
        pages = ring_pages(reach, self.slack, self.page)
        return pages if self.window is not None else min(pages, ring_pages(span, 0, self.page))

    def _packed_pages(self, context: int, chunk: int) -> int:
        """From the page of the oldest key that the first query sees to the newest one the last query reads packed."""
        if self.window is None:
            return max(1, page_of(context - 1, self.sinks, self.page) - self.recent // self.page)
        moving = max(chunk, self.slack)
        return -(-(self.window - self.recent + moving) // self.page) + 1


@dataclass(frozen=True, kw_only=True)
class RopeSpec:
    """One rotary embedding of the model.

    Args:
        inv_freq: radians per position of each rotated pair, the model's fp32 values.
        attention_scaling: factor on cos and sin (YaRN, longrope); 1 for plain rotary embeddings.
        interleaved: pairs are channels (2i, 2i + 1), not (i, i + pairs).
    """

    inv_freq: tuple[float, ...]
    attention_scaling: float
    interleaved: bool

    @property
    def pairs(self) -> int:
        """Number of rotated pairs: half of the rotary dimension."""
        return len(self.inv_freq)


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """One attention layer: shapes, kind and rules.

    Args:
        index: the layer's number in the model.
        heads: query heads (Q); kv_heads: key/value heads (H); head_dim: channels (D).
        kind: bits of this layer's keys and values.
        rules: pages, sinks, recent, window.
        rope: number of its rotary embedding in CacheSpec.ropes, or None.
        scale: softmax scale.
        softcap: scores become softcap * tanh(score / softcap); 0 for none.

    Raises:
        KvedgeError: shapes that cannot work.
    """

    index: int
    heads: int
    kv_heads: int
    head_dim: int
    kind: Kind
    rules: PageRules
    rope: int | None
    scale: float
    softcap: float

    def __post_init__(self) -> None:
        where = f"layer {self.index}"
        fine = self.head_dim > 0 and self.head_dim % 8 == 0
        require(fine, f"{where}: head_dim", expected="a positive multiple of 8", got=self.head_dim)
        require(self.kv_heads > 0, f"{where}: kv heads", expected="at least 1", got=self.kv_heads)
        grouped = self.heads > 0 and self.heads % self.kv_heads == 0
        require(grouped, f"{where}: query heads", expected=f"a positive multiple of {self.kv_heads}", got=self.heads)
        assert self.rules.exact == self.kind.is_exact

    @property
    def hot_page_bytes(self) -> int:
        """Bytes of one full-precision page [2, H, T, D]."""
        return 2 * self.kv_heads * self.rules.page * self.head_dim * self.kind.hot_dtype.itemsize

    @cached_property
    def packed_layout(self) -> PackedLayout:
        """Bit layout of one packed page."""
        return PackedLayout(
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            page=self.rules.page,
            k_bits=self.kind.k_bits,
            v_bits=self.kind.v_bits,
        )

    def is_read_by(self, sm: int) -> bool:
        """Whether kernels for a GPU of this compute capability (x 10) read the layer's pages."""
        return not self.rules.packs or self.kind.is_read_by(sm)

    def hot_shape(self, pages: int) -> tuple[int, int, int, int, int]:
        """Shape of the hot pool, dtype kind.hot_dtype."""
        return pages, 2, self.kv_heads, self.rules.page, self.head_dim

    def packed_shape(self, pages: int) -> tuple[int, int]:
        """Shape of the packed pool, int32."""
        return pages, self.packed_layout.page_words

    def cache_bytes(self, capacity: Capacity) -> int:
        """Bytes of this layer's pools for one session."""
        packed = capacity.packed_pages * self.packed_layout.page_bytes if capacity.packed_pages else 0
        return capacity.hot_pages * self.hot_page_bytes + packed

    @property
    def fp16_token_bytes(self) -> int:
        """Bytes that a plain fp16 cache takes for one token of this layer."""
        return 2 * self.kv_heads * self.head_dim * HotDtype.FLOAT16.itemsize


@dataclass(frozen=True, kw_only=True)
class CacheSpec:
    """The cache of a whole model.

    Args:
        max_positions: positions that the model was made for.
        layers: attention layers in order.
        ropes: rotary embeddings that the layers refer to.

    Raises:
        KvedgeError: window and sinks together exceed the model's positions.
    """

    max_positions: int
    layers: tuple[LayerSpec, ...]
    ropes: tuple[RopeSpec, ...]

    def __post_init__(self) -> None:
        for rules in self.groups:
            rules.check_positions(self.max_positions)

    @cached_property
    def groups(self) -> tuple[PageRules, ...]:
        """Distinct rules, in order of first use: one set of block tables each."""
        return tuple(dict.fromkeys(layer.rules for layer in self.layers))

    def group_of(self, layer: LayerSpec) -> int:
        """Number of the layer's group."""
        return self.groups.index(layer.rules)

    @property
    def is_endless(self) -> bool:
        """Whether a stream may go on for ever: every layer has a window."""
        return all(rules.window is not None for rules in self.groups)

    @cached_property
    def sink_turns(self) -> tuple[tuple[int, int], ...]:
        """(group, rope) pairs whose queries are turned towards the sinks: each is one pair of graph inputs."""
        pairs = {self.turn_of(layer): None for layer in self.layers}
        return tuple(pair for pair in pairs if pair is not None)

    def turn_of(self, layer: LayerSpec) -> tuple[int, int] | None:
        """The layer's (group, rope) pair, or None where sinks are read with the query as it is."""
        if layer.rope is None or layer.rules.sinks == 0 or layer.rules.window is None:
            return None
        return self.group_of(layer), layer.rope

    def is_interleaved(self, layer: LayerSpec) -> bool:
        """Pairing of the layer's rotary embedding; of no matter without one."""
        return layer.rope is not None and self.ropes[layer.rope].interleaved

    def cache_bytes(self, context: int, chunk: int) -> int:
        """Bytes of all pools for one session."""
        return sum(layer.cache_bytes(layer.rules.capacity(context, chunk)) for layer in self.layers)
