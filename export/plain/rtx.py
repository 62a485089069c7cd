"""Engines of TensorRT for RTX, built without a GPU for named compute capabilities (package tensorrt-rtx)."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from kvedge.targets.errors import KvedgeError, require

CAPABILITIES = ("SM86", "SM89", "SM120")
"""Ampere, Ada and Blackwell cards for desktops."""


def build_engine(graph: Path, capability: str) -> bytes:
    """The engine of an .onnx file of fixed shapes for GPUs of one compute capability.

    Types stay as the graph has them, and products of float32 are float32: with TF32's mantissa of 10 bits codes
    would come out otherwise than on other engines.

    Raises:
        KvedgeError: no package tensorrt-rtx, an unknown capability, or what the parser or builder says.
    """
    trt = _package()
    target = getattr(trt.ComputeCapability, capability, None)
    require(target is not None, "compute capability", expected=f"one of {', '.join(CAPABILITIES)}", got=capability)
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = _parsed(trt, builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)), graph)
    config = builder.create_builder_config()
    config.clear_flag(trt.BuilderFlag.TF32)
    config.num_compute_capabilities = 1
    require(config.set_compute_capability(target, 0), f"TensorRT for RTX does not build for {capability}")
    engine = builder.build_serialized_network(network, config)
    require(engine is not None, f"TensorRT for RTX did not build {graph} for {capability}", fix="see its log above")
    return bytes(memoryview(engine))


def _package() -> ModuleType:
    try:
        import tensorrt_rtx
    except ImportError as error:
        raise KvedgeError("engines of TensorRT for RTX", expected="the package tensorrt-rtx", got="none") from error
    package: ModuleType = tensorrt_rtx
    return package


def _parsed(trt: Any, network: Any, graph: Path) -> Any:
    parser = trt.OnnxParser(network, trt.Logger(trt.Logger.ERROR))
    if not parser.parse_from_file(str(graph)):
        errors = [parser.get_error(number) for number in range(parser.num_errors)]
        got = "; ".join(f"{error.desc()} at {error.node_name()} ({error.node_operator()})" for error in errors)
        raise KvedgeError(f"TensorRT for RTX cannot read {graph}", expected="operators that it knows", got=got)
    return network
