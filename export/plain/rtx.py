"""Engines of TensorRT for RTX, built without a GPU for named compute capabilities (package tensorrt-rtx)."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from kvedge.targets.errors import KvedgeError, require
from kvedge.targets.profiles import Profile

CAPABILITIES = ("SM86", "SM89", "SM120")
"""Ampere, Ada and Blackwell cards for desktops."""
_ERRORS = 3
"""Of the builder's errors that many are told: the last ones."""


def build_engine(graph: Path, capability: str, profiles: dict[str, Profile]) -> bytes:
    """The engine of an .onnx file for GPUs of one compute capability.

    Types stay as the graph has them, and products of float32 are float32: with TF32's mantissa of 10 bits codes
    would come out otherwise than on other engines.

    Args:
        profiles: the engine's optimisation profiles, in this order; each has a range for every input of the graph.

    Raises:
        KvedgeError: no package tensorrt-rtx, an unknown capability, or what the parser or builder says.
    """
    trt = _package()
    target = getattr(trt.ComputeCapability, capability, None)
    require(target is not None, "compute capability", expected=f"one of {', '.join(CAPABILITIES)}", got=capability)
    log = _log(trt)
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    _parse(trt.OnnxParser(network, log), graph)
    config = builder.create_builder_config()
    config.clear_flag(trt.BuilderFlag.TF32)
    config.num_compute_capabilities = 1
    require(config.set_compute_capability(target, 0), f"TensorRT for RTX does not build for {capability}")
    for name, profile in profiles.items():
        _add_profile(builder.create_optimization_profile(), config, network, (name, profile))
    engine = builder.build_serialized_network(network, config)
    require(
        engine is not None,
        f"TensorRT for RTX did not build {graph} for {capability}",
        got="; ".join(log.errors[-_ERRORS:]) or "no reason",
    )
    return bytes(memoryview(engine))


def _package() -> ModuleType:
    try:
        import tensorrt_rtx
    except ImportError as error:
        raise KvedgeError("engines of TensorRT for RTX", expected="the package tensorrt-rtx", got="none") from error
    package: ModuleType = tensorrt_rtx
    return package


def _log(trt: Any) -> Any:
    """A logger that keeps errors, which name the layer, and prints nothing."""

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                self.errors.append(message)

    return Log()


def _parse(parser: Any, graph: Path) -> None:
    if not parser.parse_from_file(str(graph)):
        errors = [parser.get_error(number) for number in range(parser.num_errors)]
        got = "; ".join(f"{error.desc()} at {error.node_name()} ({error.node_operator()})" for error in errors)
        raise KvedgeError(f"TensorRT for RTX cannot read {graph}", expected="operators that it knows", got=got)


def _add_profile(made: Any, config: Any, network: Any, named: tuple[str, Profile]) -> None:
    name, ranges = named
    for number in range(network.num_inputs):
        given = network.get_input(number)
        require(given.name in ranges, f"profile {name}", expected=f"a range for the input {given.name}", got="none")
        found = ranges[given.name]
        made.set_shape(given.name, found.least, found.usual, found.most)
    require(config.add_optimization_profile(made) >= 0, f"TensorRT for RTX does not take the profile {name}")
