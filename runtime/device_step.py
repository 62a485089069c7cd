"""All memory of a step on a GPU: page pools, room for the inputs, and for what comes back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvedge.plugins.cuda_device import Device
from kvedge.plugins.feeds import Feeds
from kvedge.runtime.backend import StepOutput
from kvedge.runtime.device_pools import DevicePools
from kvedge.runtime.exchange import Inbox, Outbox, aligned
from kvedge.targets import names
from kvedge.targets.plan import MemoryPlan
from kvedge.targets.profiles import PREFILL, Profile, StepLimits, profiles

FLOAT32, INT32 = np.dtype(np.float32), np.dtype(np.int32)


class DeviceStep:
    """What the graph reads and writes, allocated once.

    Args:
        device: the GPU.
        plan: sizes of the pools; copies: of each of them.
        limits: the largest step; vocab_size: width of the logits.
    """

    def __init__(self, device: Device, *, plan: MemoryPlan, copies: int, limits: StepLimits, vocab_size: int) -> None:
        self.device = device
        self.pools = DevicePools(device, plan, copies)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._vocab_size = vocab_size
        self._layers = [layer.layer.index for layer in plan.layers]
        self._inbox = Inbox(device, _most_bytes(profiles(plan.cache, limits)[PREFILL], self.pools))
        self._logits = Outbox(device, limits.sessions * limits.rows * vocab_size * FLOAT32.itemsize)
        self._counts = Outbox(device, len(self._layers) * aligned(limits.sessions * INT32.itemsize))
        self._inputs: dict[str, int] = {}

    @property
    def batch(self) -> int:
        """Rows of the step that was bound."""
        return self.shapes[names.INPUT_IDS][0]

    @property
    def is_decode(self) -> bool:
        """Whether it has one token a row."""
        return self.shapes[names.INPUT_IDS][1] == 1 == self.shapes[names.LOGITS_INDEX][0]

    def bind(self, feeds: Feeds) -> None:
        """Send the inputs of a step to the device."""
        self.device.use()
        self.shapes = {name: array.shape for name, array in feeds.items()}
        self._inputs = self._inbox.put(feeds)

    @property
    def inputs(self) -> dict[str, int]:
        """Where the inputs lie, pools apart."""
        return self._inputs

    @property
    def outputs(self) -> dict[str, tuple[int, tuple[int, ...], np.dtype[Any]]]:
        """Where the outputs go, pools apart, with their shapes and types."""
        rows = self.shapes[names.LOGITS_INDEX][0]
        found: dict[str, tuple[int, tuple[int, ...], np.dtype[Any]]] = {
            names.LOGITS: (self._logits.address, (self.batch, rows, self._vocab_size), FLOAT32)
        }
        step = aligned(self.batch * INT32.itemsize)
        for number, layer in enumerate(self._layers):
            found[names.pages_read(layer)] = (self._counts.address + number * step, (self.batch,), INT32)
        return found

    def take(self) -> StepOutput:
        """Wait for the step; what it wrote, valid until the next."""
        logits = self._logits.ask(self.outputs[names.LOGITS][1], FLOAT32)
        width = aligned(self.batch * INT32.itemsize) // INT32.itemsize
        counts = self._counts.ask((len(self._layers), width), INT32)
        self.device.synchronize()
        return StepOutput(logits, int(counts[:, : self.batch].sum()))

    def read_pool(self, name: str) -> NDArray[Any]:
        """A copy of a pool."""
        self.device.use()
        return self.pools.read(name)

    def write_pool(self, name: str, pool: NDArray[Any]) -> None:
        """Fill a pool."""
        self.device.use()
        self.pools.write(name, pool)


def _most_bytes(profile: Profile, pools: DevicePools) -> int:
    """Bytes of the largest step's small inputs, side by side."""
    small = {name: most.most for name, most in profile.items() if name not in pools.inputs}
    return sum(aligned(int(np.prod(shape)) * _itemsize(name)) for name, shape in small.items())


def _itemsize(name: str) -> int:
    return 8 if name in (names.INPUT_IDS, names.LOGITS_INDEX) else 4
