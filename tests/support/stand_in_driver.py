"""A stand-in of the CUDA driver that writes down what it is asked, and bundles of kernels without machine code."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "triton", reason="Triton is not installed: what launches kernels was not tested (pip install triton)"
)

from kvedge.plugins.cuda.compile import Compiled, passed, write_bundle
from kvedge.plugins.cuda.signatures import signature
from kvedge.plugins.cuda.variants import LayerForm, options, variants

ROOT = Path(__file__).parent.parent.parent
PLUGINS, TESTS = ROOT / "plugins", ROOT / "tests" / "plugins"
SHARED = {"append": 0, "attend_prefill": 60 * 1024}
"""Bytes that a kernel asks for, where others than 4096: one more than a program gets without asking."""

DRIVER_NAME = "libcuda.so.1"

Call = dict[str, Any]


def compiler() -> str:
    """A C++ compiler; skips where there is none."""
    found = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if found is None:
        pytest.skip("no C++ compiler found (set CXX)")
    return found


def build_library(source: Path, library: Path) -> None:
    """Compile one file of tests into a shared library."""
    library.parent.mkdir(parents=True, exist_ok=True)
    flags = [
        "-std=c++17",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-shared",
        "-fPIC",
        f"-I{PLUGINS}",
        f"-I{PLUGINS / 'include'}",
    ]
    subprocess.run([compiler(), *flags, str(source), "-o", str(library), "-ldl"], check=True)


class StandInDriver:
    """The library in a folder, and the files through which it is told how to behave and says what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.options = folder, folder / "options"
        build_library(TESTS / "stand_in_driver.cc", folder / DRIVER_NAME)

    def told(self, words: Iterable[str]) -> dict[str, str]:
        """Environment of a process that finds it and is told these name=value words; calls begin anew."""
        self.options.write_text("".join(f"{word}\n" for word in words))
        self.calls_path.unlink(missing_ok=True)
        return os.environ | {"LD_LIBRARY_PATH": str(self.folder), "KVEDGE_STAND_IN": str(self.options)}

    @property
    def calls_path(self) -> Path:
        """One JSON document a line."""
        return Path(f"{self.options}.calls")

    def calls(self) -> list[Call]:
        """What it was asked since `told`."""
        lines = self.calls_path.read_text().splitlines() if self.calls_path.exists() else []
        return [json.loads(line) for line in lines]


def only(calls: list[Call], name: str) -> list[Call]:
    """Calls of one kind."""
    return [call for call in calls if name in call]


def kernels_of(form: LayerForm) -> Iterator[Compiled]:
    """What compiling would make, without machine code."""
    for variant in variants(form):
        types = signature(variant.kernel, variant.constants, form.layer.kind.hot_dtype)
        yield Compiled(
            name=variant.name,
            sm=87,
            kind=form.layer.kind.value,
            cuda="12.6",
            symbol=f"{variant.name}_symbol",
            **passed(variant.constants, types),
            warps=int(options(variant.kernel)["num_warps"]),
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


def types_of(kernels: dict[str, Compiled]) -> list[str]:
    """Words that tell the driver's stand-in what each kernel's parameters are."""
    return [f"types.{symbol}={','.join(kernel.types)}" for symbol, kernel in kernels.items()]
