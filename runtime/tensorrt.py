"""Engines of TensorRT and TensorRT for RTX: one of each artifact, with a profile for decoding and one for prompts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvedge.plugins.cuda_device import Buffer, Device, Graph
from kvedge.plugins.engine_package import make_log
from kvedge.plugins.feeds import Feeds
from kvedge.runtime.backend import StepOutput
from kvedge.runtime.device_pools import DevicePools
from kvedge.runtime.exchange import Inbox, Outbox, aligned
from kvedge.targets import names
from kvedge.targets.errors import KvedgeError
from kvedge.targets.plan import MemoryPlan
from kvedge.targets.profiles import DECODE, PREFILL, Profile, StepLimits, profiles

_Shapes = tuple[tuple[int, ...], ...]


class TensorRt:
    """A built engine with its pools. Not for several threads at once.

    Decoding steps are recorded once for each number of sessions (a CUDA graph) and then launched as a whole.

    Args:
        library: `tensorrt` or `tensorrt_rtx`.
        device: the GPU.
        file: the engine.
        plan: sizes of the pools; copies: of each of them.
        limits: what the engine was built for; vocab_size: width of the logits.

    Raises:
        KvedgeError: the library cannot load or run the engine, with what it says.
    """

    def __init__(
        self,
        library: ModuleType,
        device: Device,
        file: Path,
        *,
        plan: MemoryPlan,
        copies: int,
        limits: StepLimits,
        vocab_size: int,
    ) -> None:
        self._device, self._vocab_size, self._library = device, vocab_size, library.__name__
        self._layers = [layer.layer.index for layer in plan.layers]
        shapes = profiles(plan.cache, limits)
        self._pools = DevicePools(device, plan, copies)
        self._inbox = Inbox(device, _most_bytes(shapes[PREFILL], self._pools))
        self._logits = Outbox(device, limits.sessions * limits.rows * vocab_size * 4)
        self._counts = Outbox(device, len(self._layers) * aligned(limits.sessions * 4))
        self._log = make_log(library)
        self._runtime = library.Runtime(self._log)  # must live as long as its engine
        self._engine = self._loaded(file)
        self._scratch = Buffer(device, self._engine.device_memory_size_v2)
        self._contexts = {name: self._context(library, number) for number, name in enumerate(shapes)}
        self._graphs: dict[tuple[int, ...], Graph] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._inputs: dict[str, int] = {}
        device.synchronize()

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the pools, all copies."""
        return self._pools.allocated_bytes

    def bind(self, feeds: Feeds) -> None:
        """Send the inputs of a step to the device."""
        self._device.use()
        self._shapes = {name: array.shape for name, array in feeds.items()}
        self._inputs = self._inbox.put(feeds)

    def run(self) -> StepOutput:
        """One step: logits that are valid until the next, and the packed pages that were read."""
        batch, new = self._shapes[names.INPUT_IDS]
        (rows,) = self._shapes[names.LOGITS_INDEX]
        if (new, rows) == (1, 1):
            self._decode(batch)
        else:
            self._execute(PREFILL, batch)
        logits = self._logits.ask((batch, rows, self._vocab_size), np.dtype(np.float32))
        counts = self._counts.ask((len(self._layers), aligned(batch * 4) // 4), np.dtype(np.int32))
        self._device.synchronize()
        return StepOutput(logits, int(counts[:, :batch].sum()))

    def swap(self) -> None:
        """Read next what was written, where it is not the same."""
        self._pools.swap()

    def read_pool(self, name: str) -> NDArray[Any]:
        """A copy of a pool."""
        self._device.use()
        return self._pools.read(name)

    def write_pool(self, name: str, pool: NDArray[Any]) -> None:
        """Fill a pool."""
        self._device.use()
        self._pools.write(name, pool)

    def _decode(self, batch: int) -> None:
        """A step of one token a session: as recorded, or for the first time and then recorded."""
        key = (batch, *self._pools.addresses().values())
        if graph := self._graphs.get(key):
            graph.launch()
            return
        self._execute(DECODE, batch)
        if _can_record(self._contexts[DECODE], self._device.stream):
            with self._device.recording() as recorded:
                self._enqueue(DECODE)
            self._graphs[key] = recorded[0]

    def _execute(self, profile: str, batch: int) -> None:
        context = self._contexts[profile]
        for name, shape in (self._shapes | self._pools.inputs).items():
            self._check(context.set_input_shape(name, shape), f"{name} of shape {shape}")
        counts = {
            names.pages_read(layer): self._counts.address + at * aligned(batch * 4)
            for at, layer in enumerate(self._layers)
        }
        outputs = {names.LOGITS: self._logits.address} | counts
        for name, address in (self._inputs | self._pools.addresses() | outputs).items():
            self._check(context.set_tensor_address(name, address), f"the address of {name}")
        self._enqueue(profile)

    def _enqueue(self, profile: str) -> None:
        self._check(self._contexts[profile].execute_async_v3(self._device.stream), f"a step of {profile}")

    def _context(self, library: ModuleType, number: int) -> Any:
        """A context for one profile; both use one scratch memory, since only one runs at a time."""
        context = self._engine.create_execution_context(library.ExecutionContextAllocationStrategy.USER_MANAGED)
        self._check(context is not None, "an execution context")
        context.set_device_memory(self._scratch.address, self._scratch.bytes)
        self._check(context.set_optimization_profile_async(number, self._device.stream), f"profile {number}")
        return context

    def _loaded(self, file: Path) -> Any:
        engine = self._runtime.deserialize_cuda_engine(file.read_bytes())
        self._check(engine is not None, f"to load from {file}")
        return engine

    def _check(self, fine: bool, what: str) -> None:
        if not fine:
            raise KvedgeError(f"{self._library} refused {what}", got="; ".join(self._log.errors) or "no reason")


def _can_record(context: Any, stream: int) -> bool:
    """TensorRT for RTX says whether it can; TensorRT has no such question, and its plugin only launches kernels."""
    asked: Callable[[int], bool] | None = getattr(context, "is_stream_capturable", None)
    return asked is None or asked(stream)


def _most_bytes(profile: Profile, pools: DevicePools) -> int:
    """Bytes of the largest step's small inputs, side by side."""
    small = {name: most.most for name, most in profile.items() if name not in pools.inputs}
    return sum(aligned(int(np.prod(shape)) * _itemsize(name)) for name, shape in small.items())


def _itemsize(name: str) -> int:
    return 8 if name in (names.INPUT_IDS, names.LOGITS_INDEX) else 4
