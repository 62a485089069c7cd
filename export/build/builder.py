"""TensorRT's builder: a graph and its profiles in, an engine out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from kvedge.plugins.engine_package import make_log
from kvedge.targets import manifest as artifact
from kvedge.targets.devices import EngineKind
from kvedge.targets.errors import KvedgeError, require
from kvedge.targets.profiles import Profile


@dataclass(frozen=True, kw_only=True)
class EngineJob:
    """What to build.

    Args:
        engine: whose engine; sm: compute capability x 10 of the chip that it is for.
        graph: bytes of the ONNX file; folder: where its weights lie.
        profiles: ranges of all inputs, in the order in which the engine numbers them.
        workspace: most bytes of scratch that a layer may ask for, None for the library's own limit.
        timing_cache: what an earlier build measured, or nothing.
    """

    engine: EngineKind
    sm: int
    graph: bytes
    folder: Path
    profiles: dict[str, Profile]
    workspace: int | None
    timing_cache: bytes


@dataclass(frozen=True)
class BuiltEngine:
    """The engine as the library keeps it, and what was measured for it."""

    engine: memoryview
    timing_cache: bytes


def build_engine(trt: ModuleType, job: EngineJob, monitor: Any) -> BuiltEngine:
    """Parse and build; `monitor` is an IProgressMonitor of the library.

    Types stay as the graph has them, and products of float32 are float32: with TF32's mantissa of 10 bits codes would
    come out otherwise than on other engines.

    Raises:
        KvedgeError: what the parser or the builder says, with the layer's name.
    """
    log = make_log(trt)
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    _parse(trt.OnnxParser(network, log), job, log)
    config = builder.create_builder_config()
    config.progress_monitor = monitor
    config.clear_flag(trt.BuilderFlag.TF32)
    _for_engine(trt, config, job)
    for name, profile in job.profiles.items():
        _add_profile(builder.create_optimization_profile(), config, network, (name, profile))
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        fix = "where memory ran out, use more --blocks, another --workspace or a larger board, or close other programs"
        raise KvedgeError(f"{job.engine.label} built no engine for SM{job.sm}", got=_said(log), fix=fix)
    return BuiltEngine(memoryview(engine), _measured(config, job))


def _for_engine(trt: ModuleType, config: Any, job: EngineJob) -> None:
    """What only one of the two has: RTX is told the chip and measures nothing, TensorRT measures the one it is on."""
    if job.engine is EngineKind.TENSORRT_RTX:
        target = getattr(trt.ComputeCapability, f"SM{job.sm}", None)
        require(target is not None, job.engine.label, expected="a chip that it builds for", got=f"SM{job.sm}")
        config.num_compute_capabilities = 1
        config.set_compute_capability(target, 0)
        # No memory of its own at run time, so that steps can be recorded.
        config.set_flag(trt.BuilderFlag.REQUIRE_USER_ALLOCATION)
    else:
        config.set_preview_feature(trt.PreviewFeature.ALIASED_PLUGIN_IO_10_03, True)
        _use_timing_cache(config, job.timing_cache)
    if job.workspace is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, job.workspace)


def _use_timing_cache(config: Any, measured: bytes) -> None:
    """Start from what was measured; from nothing where that is damaged or of another chip."""
    for data in (measured, b""):
        cache = config.create_timing_cache(data)
        if cache is not None and config.set_timing_cache(cache, False):
            return


def _measured(config: Any, job: EngineJob) -> bytes:
    if job.engine is EngineKind.TENSORRT_RTX:
        return b""
    return bytes(memoryview(config.get_timing_cache().serialize()))


def _parse(parser: Any, job: EngineJob, log: Any) -> None:
    if parser.parse(job.graph, str(job.folder / artifact.GRAPH)):
        return
    errors = [parser.get_error(number) for number in range(parser.num_errors)]
    got = "; ".join(f"{error.desc()} at {error.node_name()} ({error.node_operator()})" for error in errors)
    what = f"{job.engine.label} cannot read the graph in {job.folder}"
    raise KvedgeError(what, expected="operators that it knows", got=got or _said(log), fix="export it again")


def _add_profile(made: Any, config: Any, network: Any, named: tuple[str, Profile]) -> None:
    name, ranges = named
    for number in range(network.num_inputs):
        given = network.get_input(number)
        found = ranges.get(given.name)
        require(found is not None, f"profile {name}", expected=f"a range for the input {given.name}", got="none")
        assert found is not None
        try:
            made.set_shape(given.name, found.least, found.usual, found.most)
        except RuntimeError as error:
            raise KvedgeError(f"profile {name}, {given.name}", expected=f"{found}", got=str(error)) from None
    require(config.add_optimization_profile(made) >= 0, f"profile {name}", expected="one that the builder takes")


def _said(log: Any) -> str:
    return "; ".join(log.errors) or "no reason"
