"""Graphs without plugins whose weights are in blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from gpu_graphs import BatchTrial, load
from gpu_models import LLAMA, write
from tiny_models import VOCAB

from kvedge.export.plain.graph import make_plain
from kvedge.targets.kinds import Kind
from kvedge.targets.profiles import StepLimits, profiles
from kvedge.targets.settings import WeightType

LENGTH = 60
LIMITS = StepLimits(context=LENGTH, chunk=8, sessions=1)
EXACT, HALF = 2e-5, 0.02
"""Of the standard deviation of the logits; HALF where inputs of the products come in float16."""


@pytest.mark.parametrize(("weights", "tolerance"), [(WeightType.INT4, EXACT), (WeightType.INT8, HALF)])
def test_logits_are_those_of_the_floats(weights: WeightType, tolerance: float, tmp_path: Path) -> None:
    """The CPU provider multiplies 4-bit weights in float32; 8-bit ones are two planes, joined in float16."""
    cache = write(LLAMA, Kind.FP, WeightType.FP32, tmp_path / "floats")
    write(LLAMA, Kind.FP, weights, tmp_path / "weights")
    plain = load(tmp_path / "weights")
    make_plain(plain, cache, LIMITS)
    assert {node.domain for node in plain.graph} == {""} and dict(plain.opset_imports) == {"": 21}
    models = {"floats": load(tmp_path / "floats"), "weights": plain}
    want, got = (
        BatchTrial(m, tmp_path / n, cache, batch=1, context=LENGTH, chunk=LIMITS.chunk) for n, m in models.items()
    )
    for token in np.random.default_rng(0).integers(3, VOCAB, LENGTH).tolist():
        a, b = want.step([[token]]), got.step([[token]])
        assert np.abs(a - b).max() <= tolerance * a.std()


@pytest.mark.parametrize(
    ("weights", "sm"),
    [
        (WeightType.INT4, 89),
        *(pytest.param(WeightType.INT8, sm, marks=pytest.mark.slow) for sm in (86, 120)),
    ],
    ids=str,
)
def test_engines_are_built(weights: WeightType, sm: int, tmp_path: Path) -> None:
    from rtx_engines import build_engine  # skips where its package is absent

    cache = write(LLAMA, Kind.INT4, weights, tmp_path)
    model = load(tmp_path)
    make_plain(model, cache, LIMITS)
    ir.save(model, tmp_path / "plain.onnx", external_data="plain.onnx.data")
    assert build_engine(tmp_path / "plain.onnx", sm, profiles(cache, LIMITS))
