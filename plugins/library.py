"""Find the compiled operators and hand them to ONNX Runtime."""

import os
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Protocol

from kvedge.targets.errors import KvedgeError, require

LIBRARY_NAME = "libkvedge_cpu.so"
CUDA_LIBRARY_NAME = "libkvedge_cuda.so"
LIBRARY_VARIABLE = "KVEDGE_CPU_LIBRARY"
CUDA_LIBRARY_VARIABLE = "KVEDGE_CUDA_LIBRARY"
ISA_VARIABLE = "KVEDGE_CPU_ISA"
"""Environment variables: other builds of the libraries, and an instruction set instead of the best one."""

KERNELS_KEY = "kvedge.kernels"
"""Entry of a session's configuration: the folder of the compiled kernels for GPUs."""

PLUGIN_NAME = "libkvedge_tensorrt.so"
PLUGIN_VARIABLE = "KVEDGE_TENSORRT_PLUGIN"
"""Environment variable: another build of TensorRT's plugin."""

TOO_OLD = "kvedge: expected ONNX Runtime "
"""How a library begins to say that it cannot work with this ONNX Runtime."""


class SessionOptions(Protocol):
    """What is needed of onnxruntime.SessionOptions, so that importing this loads no engine."""

    def register_custom_ops_library(self, path: str) -> None: ...

    def add_session_config_entry(self, key: str, value: str) -> None: ...


@cache
def library_path() -> Path:
    """Where the CPU kernels are. The environment variable KVEDGE_CPU_LIBRARY names another build, as one with
    sanitizers."""
    return _find(LIBRARY_NAME, LIBRARY_VARIABLE)


@cache
def cuda_library_path() -> Path:
    """Where the operator for ONNX Runtime's CUDA provider is; KVEDGE_CUDA_LIBRARY names another build."""
    return _find(CUDA_LIBRARY_NAME, CUDA_LIBRARY_VARIABLE)


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
    """Make the operators of the domain kvedge known to sessions on the CPU created with these options.

    Raises:
        KvedgeError: an environment variable names what is not there, or ONNX Runtime is too old.
    """
    _register(session_options, library_path(), LIBRARY_VARIABLE)


def register_cuda(session_options: SessionOptions, kernels: Path) -> None:
    """Make kvedge::PagedAttention known to sessions on the CUDA provider created with these options.

    In place of `register`: one session cannot have both, as their operators have the same name.

    Args:
        kernels: folder of the compiled kernels, named as kvedge.targets.names says.

    Raises:
        KvedgeError: there is no such folder, an environment variable names what is not there, or ONNX Runtime is too
            old.
    """
    require(kernels.is_dir(), "kernels", expected="a folder of compiled kernels", got=str(kernels))
    session_options.add_session_config_entry(KERNELS_KEY, str(kernels.resolve()))
    _register(session_options, cuda_library_path(), CUDA_LIBRARY_VARIABLE)


def _find(name: str, variable: str) -> Path:
    """Not next to this file: an editable install keeps what it compiled apart from the sources, and only the package's
    resources know both places."""
    if named := os.environ.get(variable):
        path = Path(named)
        require(path.is_file(), variable, expected="a library of kernels", got=named)
        return path
    resource = files("kvedge.plugins").joinpath(name)
    if not resource.is_file():
        raise FileNotFoundError(
            f"the operators of kvedge: expected {name} in the installed package kvedge.plugins, "
            "got none; build them with `pip install -e .` in the source folder (needs a C++17 compiler), "
            "or install a wheel of kvedge"
        )
    with as_file(resource) as path:
        return path


def _register(session_options: SessionOptions, path: Path, variable: str) -> None:
    try:
        session_options.register_custom_ops_library(str(path))
    except Exception as error:  # ONNX Runtime's exceptions share no class of their own
        if TOO_OLD in str(error):
            expected, _, got = str(error).partition(TOO_OLD)[2].partition(", got ")
            fix = "pip install --upgrade onnxruntime"
            raise KvedgeError("onnxruntime", expected=expected, got=got.partition(";")[0], fix=fix) from None
        if ISA_VARIABLE in str(error):
            expected = str(error).partition("expected ")[2]  # the library knows its own
            raise KvedgeError(ISA_VARIABLE, expected=expected, got=os.environ.get(ISA_VARIABLE)) from None
        if os.environ.get(variable):
            what = "a library of kernels that ONNX Runtime can load"
            raise KvedgeError(variable, expected=what, got=f"{path} ({error})") from None
        raise
