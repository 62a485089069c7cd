"""What check_gpu does on a GPU, as far as it goes without one: in Triton's interpreter, on small layers."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: its kernels were not run (pip install triton)")

from kvedge.plugins.cuda.agree import agreement, agreements
from kvedge.plugins.cuda.kernels import TritonKernels
from kvedge.plugins.cuda.pools import Problem, attention_over, packed_bytes
from kvedge.plugins.cuda.sized_layer import make_layer
from kvedge.plugins.reference.attend import Attended, attend
from kvedge.plugins.step import PagedStep
from kvedge.targets.kinds import Kind
from kvedge.targets.spec import LayerSpec


@pytest.mark.parametrize("kind", [Kind.INT3, Kind.FP16])
def test_kernels_agree(kind: Kind) -> None:
    result = agreement(make_layer(kind, 2, 1, 16, 16), "cpu", 241, (240, 1))
    assert result.holds, result.line
    assert "as the reference" in result.line and result.error > 0


def test_outputs_that_are_no_numbers_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(kernels: TritonKernels, layer: LayerSpec, step: PagedStep, *, interleaved: bool) -> Attended:
        return replace(attend(layer, step, interleaved=interleaved), out=np.full(1, np.nan, np.float32))

    monkeypatch.setattr(TritonKernels, "attend", broken)
    assert not agreement(make_layer(Kind.FP16, 2, 1, 16, 16), "cpu", 20, (19, 1)).holds


def test_what_a_chip_does_not_read_is_not_asked_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvedge.plugins.cuda.agree.agreement", lambda layer, device: (layer.kind, layer.head_dim))
    older, newer = ([*agreements("cuda", sm)] for sm in (86, 89))
    assert [each for each in newer if each not in older] == [(Kind.FP8, 128)] and len(newer) == len(Kind) + 4


def test_a_difference_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvedge.plugins.cuda.agree.TOLERANCE", 0.0)
    result = agreement(make_layer(Kind.INT3, 2, 1, 16, 16), "cpu", 20, (20,))
    assert not result.holds and "DIFFERS" in result.line


@pytest.mark.parametrize("kind", [Kind.INT3, Kind.K4V2, Kind.FP16])
def test_a_problem_can_be_attended(kind: Kind) -> None:
    problem = Problem(kind=kind, batch=2, tokens=600, heads=2, kv_heads=1, head_dim=16, device="cpu")
    attention = attention_over(problem, 0)
    attention.launch()
    assert torch.isfinite(attention.out).all() and attention.out.abs().max() > 0
    assert (attention.pages_read > 0).all() == (kind is not Kind.FP16)


def test_bytes_by_hand() -> None:
    """Packed pages of 3 bits with scales and a mean, and 256 exact tokens in float16."""
    problem = Problem(kind=Kind.INT3, batch=1, tokens=2400)
    page = 8 * (2 * 64 * 128 * 3 // 8 + 4 * 64 + 2 * 128)
    pages = problem.layer.rules.capacity(2401, 1).packed_pages
    assert packed_bytes(problem) == pages * page + (64 + 128 + 64) * 4 * 8 * 128


def test_without_a_gpu_it_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU: run python -m kvedge.plugins.cuda.check_gpu")
    command = [sys.executable, "-m", "kvedge.plugins.cuda.check_gpu"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 1
    assert run.stderr.startswith("error: GPU; expected one that torch can use; got none")
