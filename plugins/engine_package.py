"""TensorRT's Python packages: found, with kvedge's plugin in them, and what they log."""

from __future__ import annotations

import ctypes
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from kvedge.plugins import library, schema
from kvedge.targets.devices import EngineKind
from kvedge.targets.errors import KvedgeError, require

_PLUGIN = (schema.NAME, "1", "")
"""Name, version and namespace, as plugins/tensorrt has them."""
_PACKAGES = {
    EngineKind.TENSORRT: ("tensorrt", "it comes with JetPack; on a desktop `pip install tensorrt`"),
    EngineKind.TENSORRT_RTX: ("tensorrt_rtx", "pip install tensorrt-rtx"),
}


def import_engine(engine: EngineKind) -> ModuleType:
    """The Python package of an engine that is built; TensorRT knows kvedge's plugin then.

    Raises:
        KvedgeError: it is not installed, or the plugin is not.
    """
    name, fix = _PACKAGES[engine]
    try:
        package = import_module(name)
    except ImportError as error:
        raise KvedgeError(engine.label, expected=f"the package {name}", got=str(error), fix=fix) from None
    if engine is EngineKind.TENSORRT:
        _load_plugin(package, library.tensorrt_plugin_path())
    return package


def _load_plugin(package: ModuleType, path: Path) -> None:
    """Once in a process: a second time is an error to TensorRT."""
    registry = package.get_plugin_registry()
    if registry.get_creator(*_PLUGIN) is not None:
        return
    version = ".".join(package.__version__.split(".")[:2])
    expected = f"one built against TensorRT {version}, or an older one with the same first number"
    built, fix = _built_against(path), "build it against this TensorRT's headers (plugins/tensorrt/README.md)"
    require(_serves(built, version), f"plugin {path}", expected=expected, got=built or "another library", fix=fix)
    loaded = registry.load_library(str(path)) is not None and registry.get_creator(*_PLUGIN) is not None
    require(loaded, f"plugin {path}", expected=expected, got="one that TensorRT does not load", fix=fix)


def _built_against(path: Path) -> str | None:
    """Version of TensorRT's headers that a plugin was built against, such as 10.3; None if it is none of kvedge's."""
    try:
        number = ctypes.CDLL(str(path)).kvedge_tensorrt_version()
    except (OSError, AttributeError):
        return None
    return f"{number // 10000}.{number // 100 % 100}"


def _serves(built: str | None, version: str) -> bool:
    """NVIDIA keeps what plugins are called by from one minor version to the next, not from one major to another."""
    if built is None:
        return False
    (major, minor), (ours, at_most) = (map(int, each.split(".")) for each in (built, version))
    return major == ours and minor <= at_most


def make_log(package: ModuleType) -> Any:
    """A logger of the package that keeps the newest errors and prints nothing."""

    class Log(package.ILogger):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (package.ILogger.ERROR, package.ILogger.INTERNAL_ERROR):
                self.errors = [*self.errors[-4:], message]

    return Log()
