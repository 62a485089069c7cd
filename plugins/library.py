"""Find the compiled CPU kernels and hand them to ONNX Runtime."""

import os
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Protocol

from kvedge.targets.errors import KvedgeError, require

LIBRARY_NAME = "libkvedge_cpu.so"
LIBRARY_VARIABLE = "KVEDGE_CPU_LIBRARY"
ISA_VARIABLE = "KVEDGE_CPU_ISA"
"""Environment variables: another build of the kernels, and an instruction set instead of the best one."""

PLUGIN_NAME = "libkvedge_tensorrt.so"
PLUGIN_VARIABLE = "KVEDGE_TENSORRT_PLUGIN"
"""Environment variable: another build of TensorRT's plugin."""

TOO_OLD = "kvedge: expected ONNX Runtime "
"""How the library begins to say that it cannot work with this ONNX Runtime."""


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
    if named := os.environ.get(LIBRARY_VARIABLE):
        path = Path(named)
        require(path.is_file(), LIBRARY_VARIABLE, expected="a library of kernels", got=named)
        return path
    resource = files("kvedge.plugins").joinpath(LIBRARY_NAME)
    if not resource.is_file():
        raise FileNotFoundError(
            f"the CPU kernels of kvedge: expected {LIBRARY_NAME} in the installed package kvedge.plugins, "
            "got none; build them with `pip install -e .` in the source folder (needs a C++17 compiler), "
            "or install a wheel of kvedge"
        )
    with as_file(resource) as path:
        return path


def tensorrt_plugin_path() -> Path:
    """Where the plugin for TensorRT is: installed with kvedge where TensorRT's headers were found, or as named.

    Raises:
        KvedgeError: it was not built.
    """
    named = os.environ.get(PLUGIN_VARIABLE)
    path = Path(named) if named else library_path().with_name(PLUGIN_NAME)
    fix = f"build it (plugins/tensorrt/README.md), and name it in {PLUGIN_VARIABLE}"
    require(path.is_file(), "kvedge's plugin for TensorRT", expected=f"a file {path}", got="none", fix=fix)
    return path


def register(session_options: SessionOptions) -> None:
    """Make the operator kvedge::PagedAttention known to sessions created with these options.

    Raises:
        KvedgeError: an environment variable names what is not there, or ONNX Runtime is too old.
    """
    try:
        session_options.register_custom_ops_library(str(library_path()))
    except Exception as error:  # ONNX Runtime's exceptions share no class of their own
        if TOO_OLD in str(error):
            expected, _, got = str(error).partition(TOO_OLD)[2].partition(", got ")
            fix = "pip install --upgrade onnxruntime"
            raise KvedgeError("onnxruntime", expected=expected, got=got.partition(";")[0], fix=fix) from None
        if ISA_VARIABLE in str(error):
            expected = str(error).partition("expected ")[2]  # the library knows its own
            raise KvedgeError(ISA_VARIABLE, expected=expected, got=os.environ.get(ISA_VARIABLE)) from None
        if os.environ.get(LIBRARY_VARIABLE):
            what = "a library of kernels that ONNX Runtime can load"
            raise KvedgeError(LIBRARY_VARIABLE, expected=what, got=f"{library_path()} ({error})") from None
        raise
