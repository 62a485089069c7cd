"""The page pools on a GPU, allocated once: written in place, or in two copies of which each step reads one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvedge.plugins.cuda_device import Buffer, Device
from kvedge.targets import names
from kvedge.targets.plan import LayerPlan, MemoryPlan


@dataclass(frozen=True)
class Pool:
    """Names of a pool as input and output, what it is, and its copies."""

    source: str
    target: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    copies: list[Buffer]


class DevicePools:
    """All pools of a plan.

    Args:
        device: the GPU; plan: sizes; copies: of each pool, 1 where the engine writes in place.
    """

    def __init__(self, device: Device, plan: MemoryPlan, copies: int) -> None:
        self._device, self._num_copies = device, copies
        self.turn = 0
        """Number of the copies that the next step reads; it writes the others, where there are others."""
        pools = [pool for layer in plan.layers for pool in _pools(layer)]
        self._pools = {
            source: Pool(source, target, shape, dtype, [device.zeros(_bytes(shape, dtype)) for _ in range(copies)])
            for source, target, shape, dtype in pools
        }

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all copies."""
        return sum(buffer.bytes for pool in self._pools.values() for buffer in pool.copies)

    @property
    def all(self) -> list[Pool]:
        """Every pool."""
        return list(self._pools.values())

    @property
    def inputs(self) -> dict[str, tuple[int, ...]]:
        """Shapes by name of the input."""
        return {pool.source: pool.shape for pool in self._pools.values()}

    def addresses(self) -> dict[str, int]:
        """Where inputs and outputs of the next step lie."""
        read = {pool.source: pool.copies[self.turn].address for pool in self._pools.values()}
        return read | {pool.target: pool.copies[self.turn - 1].address for pool in self._pools.values()}

    def swap(self) -> None:
        """What was written is read next."""
        self.turn = (self.turn + 1) % self._num_copies

    def read(self, name: str) -> NDArray[Any]:
        """A copy of a pool."""
        pool = self._pools[name]
        array = np.empty(pool.shape, pool.dtype)
        self._device.download(array, pool.copies[self.turn].address)
        self._device.synchronize()
        return array

    def write(self, name: str, array: NDArray[Any]) -> None:
        """Fill a pool."""
        whole = np.ascontiguousarray(array)  # stays until the copy is done
        self._device.upload(self._pools[name].copies[self.turn].address, whole)
        self._device.synchronize()


def _pools(plan: LayerPlan) -> list[tuple[str, str, tuple[int, ...], np.dtype[Any]]]:
    layer, index = plan.layer, plan.layer.index
    hot = (names.hot(index), names.hot_out(index), layer.hot_shape(plan.hot_pages), _dtype(layer.kind.hot_dtype.value))
    if not layer.rules.packs:
        return [hot]
    packed = layer.packed_shape(plan.packed_pages)
    return [hot, (names.packed(index), names.packed_out(index), packed, np.dtype(np.int32))]


def _dtype(name: str) -> np.dtype[Any]:
    return np.dtype(name)


def _bytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    return int(np.prod(shape)) * dtype.itemsize
