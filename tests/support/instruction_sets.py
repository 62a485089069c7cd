"""Instruction sets that the kernels are built for, and what a CPU must have for each."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from functools import cache
from pathlib import Path

from kvedge.plugins.library import ISA_VARIABLE, library_path
from kvedge.plugins.native import NativeKernels, load, native

ARM = platform.machine() == "aarch64"
WIDEST_FLOATS = "baseline" if ARM else "avx512"

ON_X86: dict[str, set[str]] = {
    "baseline": set(),
    "avx2": {"avx2", "fma", "f16c", "bmi2", "movbe"},
    "avx512": {"avx2", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "avx512vnni": {"avx2", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni"},
    "avx512amx": {
        *("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16"),
        *("amx_tile", "amx_int8", "amx_bf16"),
    },
}
ON_ARM: dict[str, set[str]] = {"baseline": set(), "neondot": {"asimddp"}}
NEEDS = ON_ARM if ARM else ON_X86


def cpu_flags() -> set[str]:
    """What Linux says about this CPU."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return set(next((line.split(":")[1].split() for line in lines if line.startswith(("flags", "Features"))), []))


def copied(folder: Path) -> Path:
    """Another copy of the library makes its own choice."""
    return Path(shutil.copy(library_path(), folder))


@cache
def float_kernels() -> NativeKernels:
    """The best kernels that read packed pages in floats, where differences mean mistakes and not roundings."""
    if not native().reads_integers:
        return native()
    before = os.environ.get(ISA_VARIABLE)
    os.environ[ISA_VARIABLE] = WIDEST_FLOATS
    try:
        with tempfile.TemporaryDirectory() as folder:
            kernels = load(copied(Path(folder)))
            assert kernels.cpu_isa == WIDEST_FLOATS, "chosen at the first call"
            return kernels
    finally:
        del os.environ[ISA_VARIABLE]
        if before is not None:
            os.environ[ISA_VARIABLE] = before
