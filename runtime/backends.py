"""The library that runs an artifact's graph, by the engine that the artifact was made for."""

from __future__ import annotations

from pathlib import Path

from kvedge.plugins.engine_package import import_engine
from kvedge.runtime.backend import Backend
from kvedge.targets import manifest as artifact
from kvedge.targets.engine_file import Build, find_engine
from kvedge.targets.errors import KvedgeError
from kvedge.targets.manifest import Manifest
from kvedge.targets.plan import MemoryPlan


def open_backend(folder: Path, manifest: Manifest, plan: MemoryPlan, threads: int | None) -> Backend:
    """Load the graph or the built engine, and allocate its pools.

    Raises:
        KvedgeError: no GPU, no package, or no engine for this machine.
        MemoryError: the pools do not fit.
    """
    if manifest.engine.is_built:
        return _built(folder, manifest, plan)
    try:
        from kvedge.runtime.ort_cpu import OrtCpu
    except ImportError as error:
        fix = "install it, with Python 3.11 or newer"
        raise KvedgeError(manifest.engine.label, expected="the package onnxruntime", got=str(error), fix=fix) from None

    return OrtCpu(folder / artifact.GRAPH, plan, manifest.model.vocab_size, threads)


def _built(folder: Path, manifest: Manifest, plan: MemoryPlan) -> Backend:
    from kvedge.plugins.cuda_device import Device
    from kvedge.runtime.tensorrt import TensorRt

    device, package = Device(), import_engine(manifest.engine)
    build = Build(engine=manifest.engine, version=package.__version__, sm=device.sm)
    assert manifest.limits is not None
    return TensorRt(
        package,
        device,
        find_engine(folder, manifest, build),
        plan=plan,
        copies=manifest.engine.pools,
        limits=manifest.limits,
        vocab_size=manifest.model.vocab_size,
    )
