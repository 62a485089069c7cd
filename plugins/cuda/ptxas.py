"""Which ptxas makes a chip's machine code: the oldest at hand that knows the chip, since no driver loads newer code."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

ORIN = 87
JETPACK_6 = (12, 6)
"""CUDA of JetPack 6, the oldest that Orin's kernels shall run on."""

PACKAGE, RELEASE = "nvidia-cuda-nvcc-cu12", "12.6.85"
PATH_VARIABLE, BLACKWELL_VARIABLE = "TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"
"""Environment variables of Triton's, for chips before SM90 and from there on; they win."""

KNOWN_TO_CUDA_12 = (90, 100, 120)
"""Chips that Triton has its ptxas of CUDA 13 for, whose code no driver of CUDA 12 loads; that of 12.9 does as well."""


@contextmanager
def ptxas_for(sm: int) -> Iterator[str]:
    """Have Triton use the right ptxas inside; its CUDA version, such as "12.6".

    For Orin that of JetPack 6, from the package on PyPI; where a newer one makes the code, a warning says so. For all
    other chips Triton's of CUDA 12.9, but for those that only CUDA 13 knows.
    """
    from triton import knobs
    from triton.backends.nvidia.compiler import get_ptxas

    with knobs.nvidia.scope():
        path = jetpack_6_ptxas()
        if sm == ORIN and path is not None and PATH_VARIABLE not in os.environ:
            knobs.nvidia.ptxas = str(path)
        if sm in KNOWN_TO_CUDA_12 and BLACKWELL_VARIABLE not in os.environ:
            knobs.nvidia.ptxas_blackwell = knobs.nvidia.ptxas.path
        version = str(get_ptxas(sm).version)
        if sm == ORIN and _number(version) > JETPACK_6:
            warnings.warn(
                f"kernels for sm_{ORIN}: expected ptxas of CUDA 12.6, which JetPack 6 has, got {version}; "
                f"pip install {PACKAGE}=={RELEASE}, or run them on JetPack 7 only",
                stacklevel=3,
            )
        yield version


def jetpack_6_ptxas() -> Path | None:
    """That of the package, if it is installed in a version that JetPack 6 can follow."""
    try:
        package = distribution(PACKAGE)
    except PackageNotFoundError:
        return None
    path = Path(str(package.locate_file("nvidia/cuda_nvcc/bin/ptxas")))
    return path if _number(package.version) <= JETPACK_6 and path.is_file() else None


def _number(version: str) -> tuple[int, int]:
    major, minor, *_ = version.split(".")
    return int(major), int(minor)
