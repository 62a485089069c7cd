"""Find the compiled CPU kernels and hand them to ONNX Runtime."""

import os
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Protocol

LIBRARY_NAME = "libkvedge_cpu.so"


class SessionOptions(Protocol):
    """The one method needed of onnxruntime.SessionOptions, so that importing this loads no engine."""

    def register_custom_ops_library(self, path: str) -> None: ...


@cache
def library_path() -> Path:
    """Where the CPU kernels are.

    Not next to this file: an editable install keeps what it compiled apart from the sources, and only
    the package's resources know both places. The environment variable KVEDGE_CPU_LIBRARY names another
    build, as one with sanitizers.
    """
    if named := os.environ.get("KVEDGE_CPU_LIBRARY"):
        return Path(named)
    resource = files("kvedge.plugins").joinpath(LIBRARY_NAME)
    if not resource.is_file():
        raise FileNotFoundError(
            f"the CPU kernels of kvedge: expected {LIBRARY_NAME} in the installed package kvedge.plugins, "
            "got none; build them with `pip install -e .` in the source folder (needs a C++17 compiler), "
            "or install a wheel of kvedge"
        )
    with as_file(resource) as path:
        return path


def register(session_options: SessionOptions) -> None:
    """Make the operator kvedge::PagedAttention known to sessions created with these options."""
    session_options.register_custom_ops_library(str(library_path()))
