"""ONNX Runtime's CUDA provider: the graph's session, and all that a step reads and writes bound where it lies."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from kvedge.plugins import library
from kvedge.plugins.feeds import Feeds
from kvedge.runtime.backend import StepOutput
from kvedge.runtime.device_step import DeviceStep
from kvedge.targets import manifest as artifact
from kvedge.targets import names
from kvedge.targets.errors import KvedgeError, require

PROVIDER, DEVICE = "CUDAExecutionProvider", "cuda"


class OrtCuda:
    """One loaded graph with its pools on the first GPU. Not for several threads at once.

    Args:
        folder: the artifact, with the kernels of its layers.
        step: its memory.

    Raises:
        KvedgeError: this ONNX Runtime has no CUDA provider, or that does not load.
    """

    def __init__(self, folder: Path, step: DeviceStep) -> None:
        session = _session(folder, step.device.stream)
        self._binding = session.io_binding()
        self._session = session
        self._step = step  # last, so that it is given back last: the session works on its stream
        self._results: tuple[int, ...] = ()
        self._bind_pools()
        self._run_options = ort.RunOptions()
        self._run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")  # `take` waits

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the pools."""
        return self._step.pools.allocated_bytes

    def bind(self, feeds: Feeds) -> None:
        """Send the inputs of a step to the device."""
        self._step.bind(feeds)
        for name, array in feeds.items():
            self._bind_input(name, array.dtype, array.shape, self._step.inputs[name])
        results = self._step.outputs[names.LOGITS][1]
        if results != self._results:  # they stay bound as long as steps are alike
            self._results = results
            for name, (address, shape, dtype) in self._step.outputs.items():
                self._bind_output(name, dtype, shape, address)

    def run(self) -> StepOutput:
        """One step: logits that are valid until the next, and the packed pages that were read."""
        self._session.run_with_iobinding(self._binding, self._run_options)
        return self._step.take()

    def swap(self) -> None:
        """Nothing: pools are written in place."""

    def read_pool(self, name: str) -> NDArray[Any]:
        """A copy of a pool."""
        return self._step.read_pool(name)

    def write_pool(self, name: str, pool: NDArray[Any]) -> None:
        """Fill a pool."""
        self._step.write_pool(name, pool)

    def _bind_pools(self) -> None:
        """Once: they are written in place."""
        addresses = self._step.pools.addresses()
        for pool in self._step.pools.all:
            self._bind_input(pool.source, pool.dtype, pool.shape, addresses[pool.source])
            self._bind_output(pool.target, pool.dtype, pool.shape, addresses[pool.target])

    def _bind_input(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], address: int) -> None:
        self._binding.bind_input(name, DEVICE, 0, dtype, shape, address)

    def _bind_output(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], address: int) -> None:
        self._binding.bind_output(name, DEVICE, 0, dtype, shape, address)


def _session(folder: Path, stream: int) -> ort.InferenceSession:
    got, fix = ", ".join(ort.get_available_providers()), "pip install onnxruntime-gpu in the place of onnxruntime"
    require(PROVIDER in ort.get_available_providers(), "onnxruntime", expected=PROVIDER, got=got, fix=fix)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.enable_mem_pattern = False  # it keeps one memory plan per input shape, and prompts have many
    library.register_cuda(options, folder)
    settings = {
        "user_compute_stream": str(stream),  # so that copies and kernels are in one order
        "use_tf32": "0",  # float32 products are meant
        "arena_extend_strategy": "kSameAsRequested",  # not by powers of two, of which half may stay unused
    }
    said = io.StringIO()
    with redirect_stdout(said):
        ort.preload_dlls()  # those that pip installed; it prints which it does not find
    try:
        session = ort.InferenceSession(
            str(folder / artifact.GRAPH), options, providers=[PROVIDER], provider_options=[settings]
        )
    except Exception as error:  # without the provider, the graph's own operators have no implementation
        raise _not_loaded(str(error), said) from error
    if PROVIDER not in session.get_providers():
        raise _not_loaded(f"{', '.join(session.get_providers())} alone", said)
    return session


def _not_loaded(got: str, said: io.StringIO) -> KvedgeError:
    fix = "if CUDA's libraries or cuDNN are missing, pip install 'onnxruntime-gpu[cuda,cudnn]'"
    return KvedgeError(f"the graph on {PROVIDER}", got=" ".join(f"{got} {said.getvalue()}".split()), fix=fix)
