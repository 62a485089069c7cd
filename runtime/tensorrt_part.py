"""One file of an engine of TensorRT or TensorRT for RTX: the whole model, or a block of its layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from mmap import ACCESS_READ, mmap
from pathlib import Path
from types import ModuleType
from typing import Any

from kvedge.plugins.cuda_device import Buffer
from kvedge.runtime.kernel_cache import KernelCache
from kvedge.targets.errors import KvedgeError
from kvedge.targets.profiles import DECODE, PREFILL, PROFILES


class Library:
    """A package with its log.

    Args:
        package: `tensorrt` or `tensorrt_rtx`; log: what it logs to.
        kernels: those that the second compiles where it runs.
    """

    def __init__(self, package: ModuleType, log: Any, kernels: KernelCache) -> None:
        self.package, self._log, self.kernels = package, log, kernels
        self.runtime = package.Runtime(log)  # must live as long as its engines

    def check(self, fine: bool, what: str) -> None:
        """Pass on what the library says of a thing that it refused."""
        if not fine:
            raise self.refusal(what)

    def refusal(self, what: str) -> KvedgeError:
        """The error of a refused thing, with what the log has of it."""
        got = "; ".join(self._log.errors) or "no reason"
        return KvedgeError(f"{self.package.__name__} refused {what}", got=got)


Key = tuple[int, ...]
"""What a context is for: nothing at all for prompts; for decoding the batch, and which copies of the pools are read."""
PROMPTS: Key = ()


class Part:
    """A loaded engine. Each recorded step has a context of its own, as a graph keeps parts of its state.

    Args:
        library: with its log; file: the engine.

    Raises:
        KvedgeError: the library cannot load it.
    """

    def __init__(self, library: Library, file: Path) -> None:
        self._contexts: dict[Key, Any] = {}  # given back first, then the engine
        with (
            file.open("rb") as stored,
            mmap(stored.fileno(), 0, access=ACCESS_READ) as data,
        ):  # no second copy in memory
            self._engine = library.runtime.deserialize_cuda_engine(data)
        self._library = library
        library.check(self._engine is not None, f"to load from {file}")
        names = [self._engine.get_tensor_name(number) for number in range(self._engine.num_io_tensors)]
        is_input = library.package.TensorIOMode.INPUT
        self._names, self._inputs = names, [name for name in names if self._engine.get_tensor_mode(name) == is_input]

    @property
    def scratch_bytes(self) -> int:
        """Memory that it needs while it runs."""
        return int(self._engine.device_memory_size_v2)

    def prepare(self, key: Key, scratch: Buffer, stream: int) -> bool:
        """Make a context, unless it is there; whether it was made.

        Args:
            key: what for; scratch: memory that all contexts share, since only one runs at a time.
        """
        if key in self._contexts:
            return False
        context = self._new_context(key)
        self._check(context is not None, "an execution context")
        context.set_device_memory(scratch.address, scratch.bytes)
        number = PROFILES.index(PREFILL if key == PROMPTS else DECODE)
        try:
            fine = context.set_optimization_profile_async(number, stream)
        except RuntimeError:
            fine = False
        self._check(fine, f"profile {number}")
        self._contexts[key] = context
        return True

    def bind(self, key: Key, shapes: Mapping[str, tuple[int, ...]], addresses: Mapping[str, int]) -> None:
        """Say how large inputs are, and where they and outputs lie; others than its own are left out."""
        context = self._contexts[key]
        for name in self._inputs:
            self._check(context.set_input_shape(name, shapes[name]), f"{name} of shape {shapes[name]}")
        for name in self._names:
            self._check(context.set_tensor_address(name, addresses[name]), f"the address of {name}")

    def enqueue(self, key: Key, stream: int) -> bool:
        """Give a step to a stream; whether it was taken."""
        return bool(self._contexts[key].execute_async_v3(stream))

    def run(self, key: Key, stream: int) -> None:
        """The same, and an error where it was not."""
        self._check(self.enqueue(key, stream), "a step")

    def can_record(self, key: Key, stream: int) -> bool:
        """TensorRT for RTX says whether it can; TensorRT has no such question: it is tried."""
        asked: Callable[[int], bool] | None = getattr(self._contexts[key], "is_stream_capturable", None)
        return asked is None or asked(stream)

    def _new_context(self, key: Key) -> Any:
        """With memory of ours.

        RTX compiles kernels for decoding within the first step, not beside it while slower ones run; for prompts, whose
        lengths differ, in the background.
        """
        package = self._library.package
        strategy = package.ExecutionContextAllocationStrategy.USER_MANAGED
        when = getattr(package, "DynamicShapesKernelSpecializationStrategy", None)  # of RTX alone
        if when is None:
            return self._engine.create_execution_context(strategy)
        config = self._engine.create_runtime_config()
        config.set_execution_context_allocation_strategy(strategy)
        config.dynamic_shapes_kernel_specialization_strategy = when.LAZY if key == PROMPTS else when.EAGER
        self._library.kernels.give(config)
        return self._engine.create_execution_context(config)

    def _check(self, fine: bool, what: str) -> None:
        self._library.check(fine, what)
