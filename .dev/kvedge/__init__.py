"""Long-running language models in a fixed, small amount of memory."""

from importlib import import_module

__version__ = "0.1.0"
__all__ = ["Engine", "Sampling", "Session"]


def __getattr__(name: str) -> object:
    """Load the runtime only when one of its names is asked for: `import kvedge` stays instant."""
    if name in __all__:
        return getattr(import_module("kvedge.runtime"), name)
    raise AttributeError(f"module 'kvedge' has no attribute {name!r}; it offers {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
