"""A random stream of queries, keys and values, fed to one layer's kernels in any cuts."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
from instruction_sets import float_kernels

from kvedge.plugins.key_bias import KeyBias, key_bias
from kvedge.plugins.native import NativeKernels
from kvedge.plugins.reference.append import append
from kvedge.plugins.reference.attend import attend
from kvedge.plugins.reference.seal import seal
from kvedge.plugins.rotary import turn_table
from kvedge.plugins.step import PagedStep
from kvedge.targets.kinds import Kind
from kvedge.targets.spec import LayerSpec, PageRules, RopeSpec
from kvedge.targets.visibility import sink_shift, window_start

NATIVE = float_kernels()
Kernels = NativeKernels | SimpleNamespace
REFERENCE = SimpleNamespace(seal=seal, attend=attend, append=append)


def make_layer(
    kind: Kind = Kind.INT3,
    *,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    page: int = 8,
    sinks: int = 4,
    recent: int = 8,
    window: int | None = 40,
    softcap: float = 0.0,
) -> LayerSpec:
    """A small layer."""
    rules = PageRules(page=page, sinks=sinks, recent=recent, window=window, exact=kind.is_exact)
    return LayerSpec(
        index=0,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        kind=kind,
        rules=rules,
        rope=0,
        scale=head_dim**-0.5,
        softcap=softcap,
    )


def make_rope(head_dim: int, *, interleaved: bool = False) -> RopeSpec:
    """Rotary embedding over the whole head."""
    freqs = tuple(float(f) for f in 100.0 ** -(np.arange(0, head_dim, 2) / head_dim))
    return RopeSpec(inv_freq=freqs, attention_scaling=1.0, interleaved=interleaved)


@dataclass
class Stream:
    """`length` tokens of one sequence for one layer; outputs [length, Q, D]."""

    layer: LayerSpec
    length: int
    seed: int = 0
    interleaved: bool = False
    chunk: int = 64
    bias_norm: float = 0.0  # of a key bias per head, in a few random pairs
    pages_read: int = 0
    hot: np.ndarray = field(init=False)
    packed: np.ndarray | None = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        layer = self.layer
        shape = (layer.kv_heads, self.length, layer.head_dim)
        offset = rng.normal(size=(layer.kv_heads, 1, layer.head_dim)).astype(np.float32)
        self.q = 2 * rng.normal(size=(layer.heads, self.length, layer.head_dim)).astype(np.float32)
        self.k = rng.normal(size=shape).astype(np.float32) + offset
        self.v = rng.normal(size=shape).astype(np.float32)
        self.rope = make_rope(layer.head_dim, interleaved=self.interleaved)
        self.bias = self._add_bias(rng) if self.bias_norm else None
        self.allocate()

    def _add_bias(self, rng: np.random.Generator) -> KeyBias:
        """Rotate a bias to every token's position and add it to the keys."""
        layer = self.layer
        bias = np.zeros((layer.kv_heads, layer.head_dim), np.float32)
        for row in bias:
            row[rng.choice(layer.head_dim, 6, replace=False)] = rng.normal(size=6)
            row *= self.bias_norm / np.linalg.norm(row)
        cos, sin = turn_table(self.rope, np.arange(self.length))
        self.k += np.stack(
            [_turn(np.repeat(b[None], self.length, 0), cos, -sin, self.interleaved) for b in bias]
        ).astype(np.float32)
        return key_bias(bias, self.rope, layer.rules.page)

    def allocate(self) -> None:
        """Poisoned pools, shuffled tables."""
        rng = np.random.default_rng(self.seed + 1)
        layer, capacity = self.layer, self.layer.rules.capacity(self.length, self.chunk)
        self.hot = np.full(layer.hot_shape(capacity.hot_pages + 2), 7.0, layer.kind.hot_dtype.value)
        self.hot_table = rng.permutation(capacity.hot_pages + 2)[None, : capacity.hot_pages].astype(np.int32)
        self.packed = self.packed_table = None
        if layer.rules.packs:
            self.packed = np.full(layer.packed_shape(capacity.packed_pages + 2), -1, np.int32)
            ids = rng.permutation(capacity.packed_pages + 2)[: capacity.packed_pages]
            self.packed_table = ids[None].astype(np.int32)
        self.pages_read = 0

    def step(self, first: int, last: int) -> PagedStep:
        """The step that brings tokens [first, last)."""
        part = slice(first, last)
        cos, sin = turn_table(self.rope, np.array([[self.shift(order) for order in range(first, last)]], np.int64))
        return PagedStep(
            q=np.ascontiguousarray(self.q[None, :, part]),
            k=np.ascontiguousarray(self.k[None, :, part]),
            v=np.ascontiguousarray(self.v[None, :, part]),
            hot=self.hot,
            packed=self.packed,
            hot_table=self.hot_table,
            packed_table=self.packed_table,
            context=np.array([first], np.int32),
            num_new=np.array([last - first], np.int32),
            sink_cos=cos,
            sink_sin=sin,
            bias=self.bias,
        )

    def shift(self, order: int) -> int:
        """Turn of a query towards the sinks."""
        rules = self.layer.rules
        if rules.sinks == 0 or order < rules.sinks:
            return 0
        return sink_shift(order, window_start(order, rules.sinks, rules.window), rules.sinks - 1)

    def run(self, kernels: Kernels, cuts: list[int]) -> np.ndarray:
        """All outputs, the stream cut at `cuts` (ends of chunks)."""
        out, first = [], 0
        for last in cuts:
            step = self.step(first, last)
            kernels.seal(self.layer, step)
            result = kernels.attend(self.layer, step, interleaved=self.interleaved)
            kernels.append(self.layer, step)
            out.append(result.out[0])
            self.pages_read += int(result.pages_read[0])
            first = last
        return np.concatenate(out)


def against_reference(
    stream: Stream, kernels: Kernels, chunk: int, *, tolerance: float, other_words: float = 0.0
) -> None:
    """Feed a stream to the reference and to kernels, in the same cuts, and compare what they leave behind.

    Args:
        tolerance: of outputs, relative to the largest.
        other_words: share of packed words that may differ.
    """
    want = stream.run(REFERENCE, cuts_of(stream.length, chunk))
    packed, hot, read = stream.packed, stream.hot, stream.pages_read
    stream.allocate()
    got = stream.run(kernels, cuts_of(stream.length, chunk))
    assert np.abs(got - want).max() <= tolerance * np.abs(want).max()
    assert stream.pages_read == read
    assert (read > 0) == stream.layer.rules.packs
    assert np.array_equal(stream.hot, hot)
    assert packed is None or np.mean(stream.packed != packed) <= other_words


def cuts_of(length: int, chunk: int) -> list[int]:
    """Ends of equal chunks."""
    return [*range(chunk, length, chunk), length]


def dense(stream: Stream) -> np.ndarray:
    """Attention by mask over the whole stream in float64: what exact kinds must give."""
    layer, rules = stream.layer, stream.layer.rules
    k, v = (np.repeat(x, layer.heads // layer.kv_heads, 0).astype(np.float64) for x in (stream.k, stream.v))
    out = np.zeros((stream.length, layer.heads, layer.head_dim))
    cos, sin = turn_table(stream.rope, np.array([stream.shift(o) for o in range(stream.length)], np.int64))
    for order in range(stream.length):
        q = stream.q[:, order].astype(np.float64)
        keys = np.arange(order + 1)
        is_sink, in_window = keys < rules.sinks, rules.window is None or keys > order - rules.window
        plain = np.einsum("hd,hkd->hk", q, k[:, : order + 1])
        turned = np.einsum("hd,hkd->hk", _turn(q, cos[order], sin[order], stream.interleaved), k[:, : order + 1])
        scores = np.where(is_sink, turned, plain) * layer.scale
        if layer.softcap:
            scores = layer.softcap * np.tanh(scores / layer.softcap)
        scores = np.where(is_sink | in_window, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out[order] = np.einsum("hk,hkd->hd", weights / weights.sum(-1, keepdims=True), v[:, : order + 1])
    return out


def _turn(q: np.ndarray, cos: np.ndarray, sin: np.ndarray, interleaved: bool) -> np.ndarray:
    """Rotate by minus the angle, through complex numbers."""
    half = q.shape[-1] // 2
    a, b = (q[:, 0::2], q[:, 1::2]) if interleaved else (q[:, :half], q[:, half:])
    z = (a + 1j * b) * (cos - 1j * sin)
    pairs = [z.real, z.imag]
    return np.stack(pairs, -1).reshape(q.shape) if interleaved else np.concatenate(pairs, -1)
