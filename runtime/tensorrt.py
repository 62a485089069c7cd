"""Engines of TensorRT and TensorRT for RTX: one of each artifact, with a profile for decoding and one for prompts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from numpy.typing import NDArray

from kvedge.plugins.cuda_device import Buffer, Graph
from kvedge.plugins.engine_package import make_log
from kvedge.plugins.feeds import Feeds
from kvedge.runtime.backend import StepOutput
from kvedge.runtime.device_step import DeviceStep
from kvedge.targets.errors import KvedgeError
from kvedge.targets.profiles import DECODE, PREFILL


class TensorRt:
    """A built engine with its pools. Not for several threads at once.

    Decoding steps are recorded once for each number of sessions (a CUDA graph) and then launched as a whole.

    Args:
        library: `tensorrt` or `tensorrt_rtx`.
        file: the engine.
        step: its memory.

    Raises:
        KvedgeError: the library cannot load or run the engine, with what it says.
    """

    def __init__(self, library: ModuleType, file: Path, step: DeviceStep) -> None:
        self._library, self._step = library.__name__, step
        self._log = make_log(library)
        self._runtime = library.Runtime(self._log)  # must live as long as its engine
        self._engine = self._loaded(file)
        self._scratch = Buffer(step.device, self._engine.device_memory_size_v2)
        self._contexts = {name: self._context(library, number) for number, name in enumerate((DECODE, PREFILL))}
        self._graphs: dict[tuple[int, ...], Graph] = {}
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
            self._decode()
        else:
            self._execute(PREFILL)
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

    def _decode(self) -> None:
        """A step of one token a session: as recorded, or for the first time and then recorded."""
        key = (self._step.batch, *self._step.pools.addresses().values())
        if graph := self._graphs.get(key):
            graph.launch()
            return
        self._execute(DECODE)
        if _can_record(self._contexts[DECODE], self._step.device.stream):
            with self._step.device.recording() as recorded:
                self._enqueue(DECODE)
            self._graphs[key] = recorded[0]

    def _execute(self, profile: str) -> None:
        context, step = self._contexts[profile], self._step
        for name, shape in (step.shapes | step.pools.inputs).items():
            self._check(context.set_input_shape(name, shape), f"{name} of shape {shape}")
        outputs = {name: address for name, (address, _, _) in step.outputs.items()}
        for name, address in (step.inputs | step.pools.addresses() | outputs).items():
            self._check(context.set_tensor_address(name, address), f"the address of {name}")
        self._enqueue(profile)

    def _enqueue(self, profile: str) -> None:
        self._check(self._contexts[profile].execute_async_v3(self._step.device.stream), f"a step of {profile}")

    def _context(self, library: ModuleType, number: int) -> Any:
        """A context for one profile; both use one scratch memory, since only one runs at a time."""
        context = self._engine.create_execution_context(library.ExecutionContextAllocationStrategy.USER_MANAGED)
        self._check(context is not None, "an execution context")
        context.set_device_memory(self._scratch.address, self._scratch.bytes)
        self._check(context.set_optimization_profile_async(number, self._step.device.stream), f"profile {number}")
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
