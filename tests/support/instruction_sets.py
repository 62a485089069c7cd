"""Instruction sets that the kernels are built for, and what a CPU must have for each."""

from __future__ import annotations

import shutil
from pathlib import Path

from kvedge.plugins.library import library_path

NEEDS = {
    "baseline": set(),
    "avx2": {"avx2", "fma", "f16c", "bmi2", "movbe"},
    "avx512": {"avx2", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "avx512vnni": {"avx2", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni"},
}


def cpu_flags() -> set[str]:
    """What the kernel says about this CPU; none where it does not say so in x86's words."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return set(next((line.split(":")[1].split() for line in lines if line.startswith("flags")), []))


def copied(folder: Path) -> Path:
    """Another copy of the library makes its own choice."""
    return Path(shutil.copy(library_path(), folder))
