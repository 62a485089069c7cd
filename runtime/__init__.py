"""From an artifact to tokens: pages, sinks and tables are plain integers here, the bytes lie in the engine's arrays."""

from importlib import import_module

_HOME = {"Engine": "kvedge.runtime.engine", "Session": "kvedge.runtime.session", "Sampling": "kvedge.runtime.sample"}
__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    """Load a public name where it is first used: importing the package loads no engine."""
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
