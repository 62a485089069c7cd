"""The hand-written slice of ONNX Runtime's C API agrees with the official header, where that is installed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HEADER = "onnxruntime_c_api.h"
CHECK = Path(__file__).with_name("check_ort_header.cc")


def header_folders() -> list[Path]:
    """Where distributions and people put the header; ORT_INCLUDE names one more place."""
    named = [Path(os.environ["ORT_INCLUDE"])] if "ORT_INCLUDE" in os.environ else []
    roots = [Path("/usr/include"), Path("/usr/local/include"), Path("/opt/onnxruntime/include")]
    places = [root / part for root in roots for part in ("", "onnxruntime", "onnxruntime/core/session")]
    return [folder for folder in named + places if (folder / HEADER).is_file()]


def test_own_declarations_match_the_official_header():
    folders = header_folders()
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if not folders:
        pytest.skip(f"{HEADER} not found: install it (Debian 13: libonnxruntime-dev) or set ORT_INCLUDE")
    if compiler is None:
        pytest.skip("no C++ compiler found (set CXX)")
    for folder in folders:
        command = [compiler, "-std=c++17", "-fsyntax-only", "-w", f"-I{folder}", str(CHECK)]
        result = subprocess.run(command, capture_output=True, text=True)
        assert result.returncode == 0, f"ort_api.h differs from {folder / HEADER}:\n{result.stderr}"
