"""The TensorRT plugin compiled with stand-ins for TensorRT and the driver, and bundles without machine code."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is not installed: the TensorRT plugin was not tested (pip install triton)")

from kvedge.plugins.cuda.compile import Compiled, passed, write_bundle
from kvedge.plugins.cuda.signatures import signature
from kvedge.plugins.cuda.variants import LayerForm, variants

ROOT = Path(__file__).parent.parent.parent
PLUGINS, TESTS = ROOT / "plugins", ROOT / "tests" / "plugins"
SANITIZE = "-fsanitize=address,undefined"
SHARED = {"append": 0, "attend_prefill": 60 * 1024}
"""Bytes that a kernel asks for, where others than 4096: one more than a program gets without asking."""


def headers() -> tuple[Path, Path]:
    """Folders of NvInfer.h and cuda.h; skips where they are not."""
    tensorrt = Path(os.environ.get("TENSORRT_INCLUDE", f"/usr/include/{platform.machine()}-linux-gnu"))
    cuda = Path(os.environ.get("CUDA_INCLUDE", "/usr/local/cuda/include"))
    if not (tensorrt / "NvInfer.h").is_file():
        pytest.skip("NvInfer.h not found: the TensorRT plugin was not tested (set TENSORRT_INCLUDE)")
    if not (cuda / "cuda.h").is_file():
        pytest.skip("cuda.h not found: the TensorRT plugin was not tested (set CUDA_INCLUDE)")
    return tensorrt, cuda


def compiler() -> str:
    """A C++ compiler; skips where there is none."""
    found = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if found is None:
        pytest.skip("no C++ compiler found (set CXX)")
    return found


def build(folder: Path) -> tuple[Path, Path]:
    """The program with the driver's stand-in, and with the true way to the driver."""
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", SANITIZE, "-fno-sanitize-recover=all"]
    include = [f"-I{PLUGINS / 'tensorrt'}", f"-I{PLUGINS / 'include'}", f"-I{TESTS}"]
    system = [word for path in headers() for word in ("-isystem", str(path))]
    sources = [*(PLUGINS / "tensorrt").glob("*.cc"), *TESTS.glob("tensorrt_stand_in*.cc")]
    objects = {source.stem: str(folder / f"{source.stem}.o") for source in sources}

    def compile_one(source: Path) -> None:
        command = [compiler(), *flags, *include, *system, "-c", str(source), "-o", objects[source.stem]]
        subprocess.run(command, check=True)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, sources))
    programs = folder / "stand_in", folder / "true_driver"
    for program in programs:  # the stand-in's definitions are weak: the true ones win where both are linked
        linked = [path for stem, path in objects.items() if stem != "driver" or program.name == "true_driver"]
        subprocess.run([compiler(), SANITIZE, *linked, "-o", str(program), "-ldl"], check=True)
    return programs


def run(program: Path, *words: str) -> dict[str, Any]:
    """What it prints."""
    done = subprocess.run([str(program), *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def kernels_of(form: LayerForm) -> Iterator[Compiled]:
    """What compiling would make, without machine code."""
    for variant in variants(form):
        types = signature(variant.kernel, variant.constants, form.layer.kind.hot_dtype)
        yield Compiled(
            name=variant.name,
            sm=87,
            kind=form.layer.kind.value,
            symbol=f"{variant.name}_symbol",
            **passed(variant.constants, types),
            warps=variant.warps,
            registers=1,
            shared=SHARED.get(variant.name, 4096),
            spilled=0,
            code=b"\x7fELF" + variant.name.encode(),
        )


def bundle(form: LayerForm, path: Path) -> tuple[Path, dict[str, Compiled]]:
    """A bundle of a layer's kernels, and these by symbol."""
    kernels = list(kernels_of(form))
    write_bundle(kernels, form.layer, path)
    return path, {kernel.symbol: kernel for kernel in kernels}
