"""Where to cut a graph, so that its blocks of whole layers are about equal in bytes of weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import accumulate

from kvedge.export.build.flow import Flow
from kvedge.targets.errors import require


@dataclass(frozen=True, kw_only=True)
class Cuts:
    """Blocks of a graph.

    Args:
        ends: numbers of the flow's nodes where they end; layers: the same in layers.
        share: of all weights, of the largest block.
    """

    ends: tuple[int, ...]
    layers: tuple[int, ...]
    share: float


class Cutter:
    """Finds the best cuts into any number of blocks."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self._before = [0, *accumulate(flow.sizes)]
        self._best = cache(self._find_best)

    @property
    def most(self) -> int:
        """Blocks at most: one for each layer."""
        return len(self.flow.ends)

    def cuts(self, count: int) -> Cuts:
        """The cuts into `count` blocks whose largest is the smallest.

        Raises:
            KvedgeError: there are fewer layers.
        """
        fine = 1 <= count <= self.most
        require(fine, "blocks of layers", expected=f"1 to {self.most}, a layer in each at least", got=count)
        largest, _, layers = self._best(count, self.most)
        share = 1.0 if count == 1 else largest / max(1, self.flow.stored)
        return Cuts(ends=tuple(self.flow.ends[layer - 1] for layer in layers), layers=layers, share=share)

    def _find_best(self, count: int, layers: int) -> tuple[int, int, tuple[int, ...]]:
        """Of the first `layers`: bytes of the largest block, sum of all squares, and where blocks end."""
        if count == 1:
            size = self._before[layers]
            return size, size * size, (layers,)
        return min(self._with_last(count, first, layers) for first in range(count - 1, layers))

    def _with_last(self, count: int, first: int, layers: int) -> tuple[int, int, tuple[int, ...]]:
        size = self._before[layers] - self._before[first]
        largest, squares, ends = self._best(count - 1, first)
        return max(largest, size), squares + size * size, (*ends, layers)
