"""ONNX Runtime on the CPU: the graph's session, and the page pools bound to it in place."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from kvedge.plugins import library
from kvedge.plugins.feeds import Feeds
from kvedge.runtime.arena import PoolArena
from kvedge.runtime.backend import StepOutput
from kvedge.targets import names
from kvedge.targets.plan import LayerPlan, MemoryPlan


class OrtCpu:
    """One loaded graph with its pools. Not for several threads at once.

    Args:
        graph: the .onnx file.
        plan: sizes of the pools, allocated here once.
        vocab_size: width of the logits.
        threads: threads of ONNX Runtime; None for all cores.
    """

    def __init__(self, graph: Path, plan: MemoryPlan, vocab_size: int, threads: int | None) -> None:
        self._vocab_size = vocab_size
        self._session = ort.InferenceSession(str(graph), _options(threads), providers=["CPUExecutionProvider"])
        self._binding = self._session.io_binding()
        self._pools: dict[str, NDArray[Any]] = {}
        self._logits_buffer = np.empty(0, np.float32)
        self._logits = np.empty((0, 0, 0), np.float32)
        self._pages_read = np.empty((0, 0), np.int32)
        self._arena = PoolArena(plan)
        self._layers = [layer.layer.index for layer in plan.layers]
        for layer in plan.layers:
            self._bind_pools(layer)

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the pools as they are."""
        return sum(pool.nbytes for pool in self._pools.values())

    def bind(self, feeds: Feeds) -> None:
        """Bind the inputs of the next step where they lie."""
        for name, array in feeds.items():
            self._bind_input(name, array)
        self._bind_results((len(feeds[names.CONTEXT]), len(feeds[names.LOGITS_INDEX]), self._vocab_size))

    def run(self) -> StepOutput:
        """One step: logits that are valid until the next, and the packed pages that were read."""
        self._session.run_with_iobinding(self._binding)
        return StepOutput(self._logits, int(self._pages_read.sum()))

    def swap(self) -> None:
        """Nothing: pools are written in place."""

    def read_pool(self, name: str) -> NDArray[Any]:
        """The pool itself."""
        return self._pools[name]

    def write_pool(self, name: str, pool: NDArray[Any]) -> None:
        """Fill a pool, unless it is the pool itself."""
        if pool is not self._pools[name]:
            self._pools[name][...] = pool

    def _bind_results(self, shape: tuple[int, int, int]) -> None:
        """Outputs stay bound as long as steps are alike; one buffer for the logits, as large as the largest so far."""
        if self._logits.shape == shape:
            return
        size, batch = math.prod(shape), shape[0]
        if self._logits_buffer.size < size:
            self._logits_buffer = np.empty(size, np.float32)
        self._logits = self._logits_buffer[:size].reshape(shape)
        self._bind_output(names.LOGITS, self._logits)
        if self._pages_read.shape[1] != batch:
            self._pages_read = np.zeros((len(self._layers), batch), np.int32)
            for layer, counts in zip(self._layers, self._pages_read, strict=True):
                self._bind_output(names.pages_read(layer), counts)

    def _bind_pools(self, plan: LayerPlan) -> None:
        layer, index = plan.layer, plan.layer.index
        hot = self._arena.take(layer.hot_shape(plan.hot_pages), np.dtype(layer.kind.hot_dtype.value))
        self._bind_in_place(names.hot(index), names.hot_out(index), hot)
        if layer.rules.packs:
            packed = self._arena.take(layer.packed_shape(plan.packed_pages), np.dtype(np.int32))
            self._bind_in_place(names.packed(index), names.packed_out(index), packed)

    def _bind_in_place(self, source: str, target: str, pool: NDArray[Any]) -> None:
        pool.fill(0)  # touch every page now, not in the middle of a stream
        self._pools[source] = pool
        self._bind_input(source, pool)
        self._bind_output(target, pool)

    def _bind_input(self, name: str, array: NDArray[Any]) -> None:
        self._binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

    def _bind_output(self, name: str, array: NDArray[Any]) -> None:
        self._binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


def _options(threads: int | None) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads or len(os.sched_getaffinity(0))
    options.enable_mem_pattern = False  # it keeps one memory plan per input shape, and prompts have many
    options.log_severity_level = 3
    library.register(options)
    return options
