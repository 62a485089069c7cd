"""One piece of memory for all page pools, in huge pages where the system has them.

Attention jumps from page to page of the cache: with pages of memory of 4 KiB every jump misses the TLB, which on a
virtual machine costs more than reading the page of the cache.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvedge.targets.plan import MemoryPlan

_HUGE = 1 << 21
_LINE = 64  # bytes: pools begin at cache lines


class PoolArena:
    """Memory for the pools of a plan, handed out piece by piece."""

    def __init__(self, plan: MemoryPlan) -> None:
        pools = 2 * len(plan.layers)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._memory = mmap.mmap(-1, plan.kv_bytes + pools * _LINE + _HUGE, flags=flags)
        with suppress(AttributeError, OSError):  # no huge pages: small ones do as well
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        whole = np.frombuffer(self._memory, np.uint8)
        self._bytes = whole[-whole.ctypes.data % _HUGE :]
        self._used = 0

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """The next pool, as zeros."""
        size = prod(shape) * dtype.itemsize
        pool = self._bytes[self._used : self._used + size].view(dtype).reshape(shape)
        self._used += -(-size // _LINE) * _LINE
        return pool
