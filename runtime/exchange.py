"""The small arrays that cross to the GPU and back in a step: one block of memory each way, one copy each way.

Where CPU and GPU share one memory, nothing is copied back. What goes there is: every program of every layer reads it,
and a GPU does not cache the host's memory ("CUDA for Tegra", NVIDIA's application note).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvedge.plugins.cuda_device import Buffer, Device, HostBuffer
from kvedge.plugins.feeds import Feeds

_ALIGNMENT = 256  # bytes, at which tensors begin


class Inbox:
    """Room for a step's inputs.

    Args:
        device: the GPU.
        size: bytes of the largest step's inputs, as `aligned` counts them.
    """

    def __init__(self, device: Device, size: int) -> None:
        self._device, self._host, self._buffer = device, HostBuffer(device, size), Buffer(device, size)

    def put(self, feeds: Feeds) -> dict[str, int]:
        """Send arrays; their addresses on the device, the same for arrays of the same sizes."""
        addresses, end = {}, 0
        for name, array in feeds.items():
            self._host.array[end : end + array.nbytes].view(array.dtype).reshape(array.shape)[...] = array
            addresses[name] = self._buffer.address + end
            end += aligned(array.nbytes)
        self._device.upload(self._buffer.address, self._host.array[:end])
        return addresses


class Outbox:
    """Room for what one output brings back.

    Args:
        device: the GPU; where it shares the host's memory it writes there. size: bytes at most.
    """

    def __init__(self, device: Device, size: int) -> None:
        self._device, self._host = device, HostBuffer(device, size)
        self._buffer = None if device.shares_memory else Buffer(device, size)

    @property
    def address(self) -> int:
        """Where the device writes to."""
        return self._host.address if self._buffer is None else self._buffer.address

    def ask(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """What the device wrote, of this shape; it is there once the stream was waited for."""
        array = self._host.array[: int(np.prod(shape)) * dtype.itemsize]
        if self._buffer is not None:
            self._device.download(array, self._buffer.address)
        return array.view(dtype).reshape(shape)


def aligned(size: int) -> int:
    """Bytes up to where the next tensor may begin."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT
