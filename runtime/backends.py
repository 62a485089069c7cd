"""The library that runs an artifact's graph, by the engine that the artifact was made for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvedge.plugins.cuda_device import Device
from kvedge.plugins.engine_package import import_engine
from kvedge.runtime.backend import Backend
from kvedge.runtime.device_step import DeviceStep
from kvedge.runtime.kernel_cache import KernelCache
from kvedge.targets import manifest as artifact
from kvedge.targets.devices import EngineKind
from kvedge.targets.engine_file import KERNEL_CACHE, Build, file_of, find_engine
from kvedge.targets.errors import KvedgeError
from kvedge.targets.hidden import Hidden
from kvedge.targets.manifest import Manifest
from kvedge.targets.plan import MemoryPlan
from kvedge.targets.profiles import StepLimits


@dataclass(frozen=True, kw_only=True)
class Load:
    """What to load.

    Args:
        folder: the artifact; manifest: what it says.
        plan: sizes of the pools; limits: of a step.
        threads: of the CPU, None for all cores.
    """

    folder: Path
    manifest: Manifest
    plan: MemoryPlan
    limits: StepLimits
    threads: int | None


def open_backend(load: Load) -> Backend:
    """Load the graph or the built engine, and allocate its pools.

    Raises:
        KvedgeError: no GPU, no package, or no engine for this machine.
        MemoryError: the pools do not fit.
    """
    if load.manifest.engine.is_built:
        return _built(load)
    try:
        return _ort_cpu(load) if load.manifest.engine is EngineKind.ORT_CPU else _ort_cuda(load)
    except ImportError as error:
        fix = "install it, with Python 3.11 or newer"
        raise KvedgeError(
            load.manifest.engine.label, expected="the package onnxruntime", got=str(error), fix=fix
        ) from None


def _ort_cpu(load: Load) -> Backend:
    from kvedge.runtime.ort_cpu import OrtCpu

    return OrtCpu(load.folder / artifact.GRAPH, load.plan, load.manifest.model.vocab_size, load.threads)


def _ort_cuda(load: Load) -> Backend:
    from kvedge.runtime.ort_cuda import OrtCuda

    return OrtCuda(load.folder, _step(Device(), load))


def _built(load: Load) -> Backend:
    from kvedge.runtime.tensorrt import TensorRt

    device, package = Device(), import_engine(load.manifest.engine)
    build = Build(engine=load.manifest.engine, version=package.__version__, sm=device.sm)
    engine = find_engine(load.folder, load.manifest, build)
    kernels = KernelCache(file_of(load.folder, build, KERNEL_CACHE))
    return TensorRt(package, engine.parts, kernels, _step(device, load, engine.hidden))


def _step(device: Device, load: Load, hidden: tuple[Hidden, ...] = ()) -> DeviceStep:
    return DeviceStep(
        device,
        plan=load.plan,
        copies=load.manifest.engine.pools,
        limits=load.limits,
        vocab_size=load.manifest.model.vocab_size,
        hidden=hidden,
    )
