"""The Triton kernels in Triton's interpreter, which tests/conftest.py asks for before anything imports Triton."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="Triton is not installed: its kernels were not run (pip install triton)")

import triton.language as tl

from kvedge.plugins.cuda import codes, kernels

IN_FLOATS = kernels.TritonKernels(dot=tl.float32, pages_a_split=2)
"""Products in float32, so that only the order of sums differs from the reference; splits of few pages."""

IN_HALVES = kernels.TritonKernels(dot=tl.float16, pages_a_split=2)
"""Products as GPUs do them."""

__all__ = ["IN_FLOATS", "IN_HALVES", "codes"]
