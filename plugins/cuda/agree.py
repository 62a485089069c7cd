"""Whether the kernels of a device agree with the reference: random sequences through one layer, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvedge.plugins.cuda.kernels import TritonKernels
from kvedge.plugins.cuda.sized_layer import make_layer
from kvedge.plugins.reference.append import append
from kvedge.plugins.reference.attend import attend
from kvedge.plugins.reference.seal import seal
from kvedge.plugins.step import PagedStep
from kvedge.targets.kinds import Kind
from kvedge.targets.spec import LayerSpec

TOLERANCE = 4e-3
"""Of outputs, relative to the largest: products round their operands to float16."""

LENGTH, CHUNKS = 420, (200, 219, 1)
"""Tokens, and new ones of each step: two prompts and one that decodes."""


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """One kind and head size.

    Args:
        error: of outputs, relative to the largest.
        other_words: of packed pages that differ from the reference's.
        other_tokens: elements of the hot pool that differ.
    """

    kind: Kind
    head_dim: int
    error: float
    other_words: int
    other_tokens: int

    @property
    def holds(self) -> bool:
        """Whether that is what was promised."""
        return self.error <= TOLERANCE and self.other_words == 0 and self.other_tokens == 0

    @property
    def line(self) -> str:
        """For people."""
        verdict = "as the reference" if self.holds else "DIFFERS"
        return (
            f"{self.kind.value} head_dim {self.head_dim}: {verdict}; outputs within {self.error:.1e}, "
            f"{self.other_words} packed words and {self.other_tokens} exact elements differ"
        )


def agreements(device: str, sm: int) -> Iterator[Agreement]:
    """Every kind that a chip of compute capability sm (x 10) reads at head_dim 128, and the other sizes at 3 bits."""
    for kind in (kind for kind in Kind if kind.is_read_by(sm)):
        yield agreement(make_layer(kind, 8, 2, 128, 64), device)
    for head_dim in (64, 80, 96, 256):
        yield agreement(make_layer(Kind.INT3, 8, 2, head_dim, 64), device)


def agreement(layer: LayerSpec, device: str, length: int = LENGTH, chunks: tuple[int, ...] = CHUNKS) -> Agreement:
    """One layer, the same steps through both."""
    kernels, mine, theirs = TritonKernels(device=device), _Pools(layer, length), _Pools(layer, length)
    rng, first, error = np.random.default_rng(0), 0, 0.0
    for count in chunks:
        new = [rng.normal(size=(1, h, count, layer.head_dim)) for h in (layer.heads, layer.kv_heads, layer.kv_heads)]
        q, k, v = (array.astype(np.float32) for array in new)
        step, other = (pools.step(q, k, v, first) for pools in (mine, theirs))
        kernels.seal(layer, step)
        seal(layer, other)
        got = kernels.attend(layer, step, interleaved=False).out
        want = attend(layer, other, interleaved=False).out
        kernels.append(layer, step)
        append(layer, other)
        other = np.abs(got - want).max() / np.abs(want).max()
        error, first = float(np.maximum(error, other)), first + count  # what is no number stays none
    words = 0 if mine.packed is None or theirs.packed is None else int((mine.packed != theirs.packed).sum())
    return Agreement(
        kind=layer.kind,
        head_dim=layer.head_dim,
        error=error,
        other_words=words,
        other_tokens=int((mine.hot != theirs.hot).sum()),
    )


class _Pools:
    """Pools and tables of one sequence."""

    def __init__(self, layer: LayerSpec, length: int) -> None:
        capacity = layer.rules.capacity(length, length)
        self.hot: NDArray[np.generic] = np.zeros(layer.hot_shape(capacity.hot_pages), layer.kind.hot_dtype.value)
        self.hot_table = np.arange(capacity.hot_pages, dtype=np.int32)[None]
        self.packed: NDArray[np.int32] | None = None
        self.packed_table: NDArray[np.int32] | None = None
        if layer.rules.packs:
            self.packed = np.zeros(layer.packed_shape(capacity.packed_pages), np.int32)
            self.packed_table = np.arange(capacity.packed_pages, dtype=np.int32)[None]

    def step(self, q: NDArray[np.float32], k: NDArray[np.float32], v: NDArray[np.float32], first: int) -> PagedStep:
        """The step that brings these tokens."""
        return PagedStep(
            q=q,
            k=k,
            v=v,
            hot=self.hot,
            packed=self.packed,
            hot_table=self.hot_table,
            packed_table=self.packed_table,
            context=np.array([first], np.int32),
            num_new=np.array([q.shape[2]], np.int32),
        )
