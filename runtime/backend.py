"""What an engine asks of the library that runs its graph: bind, run, swap, and access to the page pools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kvedge.plugins.feeds import Feeds


@dataclass(frozen=True)
class StepOutput:
    """Logits [B, rows, vocab] float32, valid until the next step, and the packed pages that all layers read."""

    logits: NDArray[np.float32]
    packed_pages_read: int


class Backend(Protocol):
    """One loaded graph with its page pools. Not for several threads at once.

    All memory is allocated when it is made. A step is `bind`, `run`, `swap`.
    """

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the page pools as they are, each counted as often as it is kept."""

    def bind(self, feeds: Feeds) -> None:
        """Take the inputs of the next step, pools apart; they must stay as they are until it has run."""

    def run(self) -> StepOutput:
        """Run the graph on what was bound."""

    def swap(self) -> None:
        """Make what the step wrote the cache of the next one: nothing to do where pools are written in place."""

    def read_pool(self, name: str) -> NDArray[Any]:
        """The contents of a page pool: the pool itself, or a copy where it lies elsewhere."""

    def write_pool(self, name: str, pool: NDArray[Any]) -> None:
        """Give a pool new contents, which were read and changed."""
