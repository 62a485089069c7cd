"""TensorRT's Python packages: found, with kvedge's plugin in them, and what they log."""

from __future__ import annotations

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
    loaded = registry.load_library(str(path)) is not None and registry.get_creator(*_PLUGIN) is not None
    expected = f"one for TensorRT {package.__version__}"
    fix = "build it against this TensorRT's headers (plugins/tensorrt/README.md)"
    require(loaded, f"plugin {path}", expected=expected, got="one that it does not load", fix=fix)


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
