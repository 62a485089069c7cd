"""One file of an engine of TensorRT or TensorRT for RTX: the whole model, or a block of its layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from mmap import ACCESS_READ, mmap
from pathlib import Path
from types import ModuleType
from typing import Any

from kvedge.plugins.cuda_device import Buffer
from kvedge.targets.errors import KvedgeError
from kvedge.targets.profiles import DECODE, PREFILL


class Library:
    """A package with its log.

    Args:
        package: `tensorrt` or `tensorrt_rtx`; log: what it logs to.
    """

    def __init__(self, package: ModuleType, log: Any) -> None:
        self.package, self._log = package, log
        self.runtime = package.Runtime(log)  # must live as long as its engines

    def check(self, fine: bool, what: str) -> None:
        """Pass on what the library says of a thing that it refused."""
        if not fine:
            got = "; ".join(self._log.errors) or "no reason"
            raise KvedgeError(f"{self.package.__name__} refused {what}", got=got)


class Part:
    """A loaded engine with a context for each profile.

    Raises:
        KvedgeError: the library cannot load it.
    """

    def __init__(self, library: Library, file: Path) -> None:
        self._library = library
        with (
            file.open("rb") as stored,
            mmap(stored.fileno(), 0, access=ACCESS_READ) as data,
        ):  # no second copy in memory
            self._engine = library.runtime.deserialize_cuda_engine(data)
        library.check(self._engine is not None, f"to load from {file}")
        names = [self._engine.get_tensor_name(number) for number in range(self._engine.num_io_tensors)]
        is_input = library.package.TensorIOMode.INPUT
        self._names, self._inputs = names, [name for name in names if self._engine.get_tensor_mode(name) == is_input]
        self._contexts: dict[str, Any] = {}

    @property
    def scratch_bytes(self) -> int:
        """Memory that it needs while it runs."""
        return int(self._engine.device_memory_size_v2)

    def prepare(self, scratch: Buffer, stream: int) -> None:
        """Make a context for each profile; all use one scratch memory, since only one runs at a time."""
        strategy = self._library.package.ExecutionContextAllocationStrategy.USER_MANAGED
        for number, name in enumerate((DECODE, PREFILL)):
            context = self._engine.create_execution_context(strategy)
            self._check(context is not None, "an execution context")
            context.set_device_memory(scratch.address, scratch.bytes)
            self._check(context.set_optimization_profile_async(number, stream), f"profile {number}")
            self._contexts[name] = context

    def bind(self, profile: str, shapes: Mapping[str, tuple[int, ...]], addresses: Mapping[str, int]) -> None:
        """Say how large inputs are, and where they and outputs lie; others than its own are left out."""
        context = self._contexts[profile]
        for name in self._inputs:
            self._check(context.set_input_shape(name, shapes[name]), f"{name} of shape {shapes[name]}")
        for name in self._names:
            self._check(context.set_tensor_address(name, addresses[name]), f"the address of {name}")

    def enqueue(self, profile: str, stream: int) -> None:
        """Give a step to a stream."""
        self._check(self._contexts[profile].execute_async_v3(stream), f"a step of {profile}")

    def can_record(self, profile: str, stream: int) -> bool:
        """TensorRT for RTX says whether it can; TensorRT has no such question, and its plugin only launches kernels."""
        asked: Callable[[int], bool] | None = getattr(self._contexts[profile], "is_stream_capturable", None)
        return asked is None or asked(stream)

    def _check(self, fine: bool, what: str) -> None:
        self._library.check(fine, what)
