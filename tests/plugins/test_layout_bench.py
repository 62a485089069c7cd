"""The benchmark of bit layouts is not part of the libraries: that its sources still fit the kernels' headers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

PLUGINS = Path(__file__).parents[2] / "plugins"


@pytest.mark.parametrize("source", ["problem.cc", "layout_bench.cc"])
def test_sources_compile(source: str) -> None:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed: the benchmark was not compiled")
    folders = [f"-I{PLUGINS / name}" for name in ("include", "cpu", "bench")]
    command = [
        "g++",
        "-std=c++17",
        "-fsyntax-only",
        "-Wall",
        "-Wextra",
        "-Werror",
        *folders,
        PLUGINS / "bench" / source,
    ]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
