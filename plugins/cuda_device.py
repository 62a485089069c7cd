"""The few entries of the CUDA driver that a step needs, called in libcuda itself: no toolkit, no other package.

On boards whose CPU and GPU share one memory (Jetson), what a step brings back is memory that both see.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvedge.targets.errors import KvedgeError

LIBRARY = "libcuda.so.1"

# cuda.h
_MAJOR, _MINOR, _INTEGRATED = 75, 76, 18
_MAPPED = 2  # CU_MEMHOSTALLOC_DEVICEMAP
_NON_BLOCKING = 1
_RELAXED_CAPTURE = 2
_OUT_OF_MEMORY = 2


class Buffer:
    """Device memory, given back when the buffer is collected."""

    def __init__(self, device: Device, size: int) -> None:
        self._device, self.bytes, self._address = device, size, c_void_p()
        device.call("cuMemAlloc_v2", byref(self._address), c_size_t(max(size, 1)))

    @property
    def address(self) -> int:
        """Where it lies."""
        assert self._address.value is not None
        return self._address.value

    def __del__(self) -> None:
        if self._address.value:
            self._device.release("cuMemFree_v2", self._address)


class HostBuffer:
    """Host memory that the device copies from and to without a detour, or reads itself (`address`)."""

    def __init__(self, device: Device, size: int) -> None:
        self._device, self._memory = device, c_void_p()
        device.call("cuMemHostAlloc", byref(self._memory), c_size_t(max(size, 1)), c_uint(_MAPPED))
        seen = c_void_p()
        device.call("cuMemHostGetDevicePointer_v2", byref(seen), self._memory, c_uint(0))
        assert self._memory.value is not None and seen.value is not None
        self.address = seen.value
        place = (self._memory.value, False)
        self.__array_interface__ = {"version": 3, "shape": (max(size, 1),), "typestr": "|u1", "data": place}

    @property
    def array(self) -> NDArray[np.uint8]:
        """All of it as bytes; the memory lives as long as any array of it."""
        return np.asarray(self)

    def __del__(self) -> None:
        if self._memory.value:
            self._device.release("cuMemFreeHost", self._memory)


class Graph:
    """Recorded work of a stream."""

    def __init__(self, device: Device, graph: c_void_p) -> None:
        self._device, self._exec = device, c_void_p()
        device.call("cuGraphInstantiateWithFlags", byref(self._exec), graph, ctypes.c_ulonglong(0))

    def launch(self) -> None:
        """Do it all again."""
        self._device.call("cuGraphLaunch", self._exec, c_void_p(self._device.stream))

    def __del__(self) -> None:
        if self._exec.value:
            self._device.release("cuGraphExecDestroy", self._exec)


class Device:
    """The first GPU, its primary context and one stream.

    Raises:
        KvedgeError: no driver, no GPU, or what the driver says.
    """

    def __init__(self) -> None:
        self.stream, self._context = 0, c_void_p()
        self._driver = _load()
        stream, self._device = c_void_p(), c_int()
        self.call("cuInit", c_uint(0))
        self.call("cuDeviceGet", byref(self._device), c_int(0))
        self.call("cuDevicePrimaryCtxRetain", byref(self._context), self._device)
        self.use()
        self.call("cuStreamCreate", byref(stream), c_uint(_NON_BLOCKING))
        self.stream = stream.value or 0

    @property
    def sm(self) -> int:
        """Compute capability x 10."""
        return 10 * self._attribute(_MAJOR) + self._attribute(_MINOR)

    @property
    def shares_memory(self) -> bool:
        """Whether CPU and GPU have one memory."""
        return bool(self._attribute(_INTEGRATED))

    def use(self) -> None:
        """Let the calling thread work on this device."""
        self.call("cuCtxSetCurrent", self._context)

    def zeros(self, size: int) -> Buffer:
        """Device memory of zeros."""
        buffer = Buffer(self, size)
        self.call("cuMemsetD8Async", c_void_p(buffer.address), ctypes.c_ubyte(0), c_size_t(size), c_void_p(self.stream))
        return buffer

    def upload(self, address: int, array: NDArray[Any]) -> None:
        """Copy an array to the device, in the stream's order; the array must stay as it is until then."""
        assert array.flags.c_contiguous
        source = c_void_p(array.ctypes.data)
        self.call("cuMemcpyHtoDAsync_v2", c_void_p(address), source, c_size_t(array.nbytes), c_void_p(self.stream))

    def download(self, array: NDArray[Any], address: int) -> None:
        """Fill an array from the device, in the stream's order."""
        assert array.flags.c_contiguous
        target = c_void_p(array.ctypes.data)
        self.call("cuMemcpyDtoHAsync_v2", target, c_void_p(address), c_size_t(array.nbytes), c_void_p(self.stream))

    def synchronize(self) -> None:
        """Wait for all that the stream was given."""
        self.call("cuStreamSynchronize", c_void_p(self.stream))

    def record(self, work: Callable[[], bool]) -> Graph | None:
        """Record what `work` gives the stream instead of doing it; None where that cannot be recorded.

        Args:
            work: returns whether it succeeded.
        """
        graph = c_void_p()
        self.call("cuStreamBeginCapture_v2", c_void_p(self.stream), c_int(_RELAXED_CAPTURE))
        try:
            fine = work()
        finally:
            ended = self._driver.cuStreamEndCapture(c_void_p(self.stream), byref(graph))
        try:
            return Graph(self, graph) if fine and ended == 0 else None
        except KvedgeError:  # it cannot be instantiated
            return None
        finally:
            if graph.value:
                self._driver.cuGraphDestroy(graph)

    def call(self, name: str, *arguments: Any) -> None:
        """Call an entry of the driver.

        Raises:
            MemoryError: the device has not enough memory.
            KvedgeError: any other error.
        """
        code = getattr(self._driver, name)(*arguments)
        if code == _OUT_OF_MEMORY:
            raise MemoryError(f"the GPU has no memory left ({name})")
        if code:
            raise KvedgeError(f"CUDA's {name}", expected="success", got=self._error(code))

    def __del__(self) -> None:
        if self.stream:
            self.release("cuStreamDestroy_v2", c_void_p(self.stream))
        if self._context.value:
            self.release("cuDevicePrimaryCtxRelease_v2", self._device)
            self._driver.cuCtxSetCurrent(c_void_p())  # it may be gone

    def release(self, name: str, *arguments: Any) -> None:
        """Call an entry that gives something back; errors change nothing any more."""
        if self._driver.cuCtxSetCurrent(self._context) == 0:
            getattr(self._driver, name)(*arguments)

    def _attribute(self, number: int) -> int:
        value = c_int()
        self.call("cuDeviceGetAttribute", byref(value), c_int(number), self._device)
        return value.value

    def _error(self, code: int) -> str:
        text = c_char_p()
        known = self._driver.cuGetErrorName(c_int(code), byref(text)) == 0 and text.value
        return f"{text.value.decode()} ({code})" if known and text.value else f"error {code}"


def _load() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError:
        fix = "install NVIDIA's driver, or export without --target and run on the CPU"
        raise KvedgeError("no CUDA driver", expected=LIBRARY, got="none", fix=fix) from None
