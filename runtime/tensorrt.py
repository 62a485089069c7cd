"""Engines of TensorRT and TensorRT for RTX, with a profile for decoding and one for prompts."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from numpy.typing import NDArray

from kvedge.plugins.cuda_device import Buffer, Graph
from kvedge.plugins.engine_package import make_log
from kvedge.plugins.feeds import Feeds
from kvedge.runtime.backend import StepOutput
from kvedge.runtime.device_step import DeviceStep
from kvedge.runtime.kernel_cache import KernelCache
from kvedge.runtime.tensorrt_part import PROMPTS, Key, Library, Part


class TensorRt:
    """A built engine with its pools. Not for several threads at once.

    Its parts run one after the other and share one scratch memory. Decoding steps are recorded once for each number of
    sessions (a CUDA graph of all parts) and then launched as a whole.

    Args:
        package: `tensorrt` or `tensorrt_rtx`.
        files: the engine's parts, in the order in which they run.
        kernels: those that the library compiles where it runs.
        step: its memory.

    Raises:
        KvedgeError: the library cannot load or run the engine, with what it says.
    """

    def __init__(self, package: ModuleType, files: tuple[Path, ...], kernels: KernelCache, step: DeviceStep) -> None:
        library = Library(package, make_log(package), kernels)
        # In the order in which they are given back.
        self._graphs: dict[Key, Graph | None] = {}
        self._parts = [Part(library, file) for file in files]
        self._kernels = kernels
        self._scratch = Buffer(step.device, max(part.scratch_bytes for part in self._parts))
        self._step = step
        step.device.synchronize()

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the pools, all copies."""
        return self._step.pools.allocated_bytes

    def bind(self, feeds: Feeds) -> None:
        """Send the inputs of a step to the device."""
        self._step.bind(feeds)

    def run(self) -> StepOutput:
        """One step: logits that are valid until the next, and the packed pages that were read."""
        if self._step.is_decode:
            self._decode((self._step.batch, self._step.pools.turn))
        else:
            self._execute(PROMPTS)
        return self._step.take()

    def swap(self) -> None:
        """Read next what was written, where it is not the same."""
        self._step.pools.swap()

    def read_pool(self, name: str) -> NDArray[Any]:
        """A copy of a pool."""
        return self._step.read_pool(name)

    def write_pool(self, name: str, pool: NDArray[Any]) -> None:
        """Fill a pool."""
        self._step.write_pool(name, pool)

    def _decode(self, key: Key) -> None:
        """A step of one token a session: as recorded, or for the first time and then recorded."""
        if graph := self._graphs.get(key):
            graph.launch()
            return
        self._execute(key)
        if key not in self._graphs:
            self._graphs[key] = self._recorded(key)

    def _recorded(self, key: Key) -> Graph | None:
        """The graph of a step that was executed, or None where the library cannot be recorded: steps work without."""
        stream = self._step.device.stream
        if not all(part.can_record(key, stream) for part in self._parts):
            return None
        return self._step.device.record(lambda: all(part.enqueue(key, stream) for part in self._parts))

    def _execute(self, key: Key) -> None:
        stream, shapes, addresses = self._step.device.stream, self._step.all_shapes, self._step.all_addresses
        made = [part.prepare(key, self._scratch, stream) for part in self._parts]
        for part in self._parts:
            part.bind(key, shapes, addresses)
        for part in self._parts:
            part.run(key, stream)
        if any(made):
            self._kernels.save()
