"""Kernels that TensorRT for RTX compiles where it runs, kept beside the engine: the next load does not compile them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from kvedge.targets.engine_file import replace_file


class KernelCache:
    """What the library calls a runtime cache, in a file.

    The library itself refuses one of another GPU, driver or version, and then starts with none.

    Args:
        file: where it is kept; there it need not be, nor need it be possible to write it.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._kept = file, b""
        self._cache: Any = None

    def give(self, config: Any) -> None:
        """Have the contexts of an IRuntimeConfig take kernels from it, and leave in it what they compile."""
        if self._cache is None:
            self._cache = config.create_runtime_cache()
            with suppress(OSError):
                self._kept = self._file.read_bytes()
            if self._kept and not self._cache.deserialize(self._kept):
                self._kept = b""
        config.set_runtime_cache(self._cache)

    def save(self) -> None:
        """Write the file, if there is anything new."""
        made = None if self._cache is None else self._cache.serialize()
        data = b"" if made is None else bytes(memoryview(made))
        if not data or data == self._kept:
            return
        with suppress(OSError):
            replace_file(self._file, data)
        self._kept = data
