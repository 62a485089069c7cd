"""Hand-written slices of ONNX Runtime's C API and of the CUDA driver's agree with official headers, where these are."""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PLUGINS = TESTS.parent.parent / "plugins"


def include_folders() -> list[Path]:
    """Where distributions and people put headers."""
    roots = [Path("/usr/include"), Path("/usr/local/include"), Path("/opt/onnxruntime/include")]
    return [root / part for root in roots for part in ("", "onnxruntime", "onnxruntime/core/session")]


def folders_of_cuda() -> list[Path]:
    """CUDA's toolkit, and Triton, which brings CUDA's headers along."""
    triton = importlib.util.find_spec("triton")
    inside = (
        [Path(path) / "backends/nvidia/include" for path in (triton.submodule_search_locations or [])] if triton else []
    )
    return [Path("/usr/local/cuda/include"), *inside]


def check(program: str, header: str, variable: str, folders: list[Path], remedy: str) -> None:
    """Compile a program of static assertions against each header found; `variable` names one more folder."""
    named = [Path(os.environ[variable])] if variable in os.environ else []
    found = [folder for folder in named + folders if (folder / header).is_file()]
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if not found:
        pytest.skip(f"{header} not found: {remedy} or set {variable}")
    if compiler is None:
        pytest.skip("no C++ compiler found (set CXX)")
    for folder in found:
        command = [compiler, "-std=c++17", "-fsyntax-only", "-w", f"-I{folder}", f"-I{PLUGINS}", str(TESTS / program)]
        result = subprocess.run(command, capture_output=True, text=True)
        assert result.returncode == 0, f"declarations differ from {folder / header}:\n{result.stderr}"


def test_onnx_runtime() -> None:
    remedy = "install it (Debian 13: libonnxruntime-dev)"
    check("check_ort_header.cc", "onnxruntime_c_api.h", "ORT_INCLUDE", include_folders(), remedy)


def test_cuda_driver() -> None:
    check("check_cuda_header.cc", "cuda.h", "CUDA_INCLUDE", folders_of_cuda(), "install triton or CUDA's toolkit")
