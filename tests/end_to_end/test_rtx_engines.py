"""SmolLM2-135M as engines of TensorRT for RTX: a true parser and builder, no GPU."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest
from rtx_engines import SMS, build_engine

from kvedge.export.plain.graph import make_plain
from kvedge.export.weights import store_half
from kvedge.targets import manifest
from kvedge.targets.kinds import Kind
from kvedge.targets.profiles import StepLimits, profiles

MakeArtifact = Callable[[Kind, int | None, int], Path]

LIMITS = StepLimits(context=2048, chunk=256, sessions=1)
WEIGHTS = 2 * 134_515_008
CODE = 0.25
"""Of the weights, at most, for everything else in an engine; measured: 0.14 with exact pages, 0.21 with int3."""


@pytest.mark.slow
@pytest.mark.parametrize("sm", SMS)
@pytest.mark.parametrize("kind", [Kind.FP16, Kind.INT8, Kind.INT3], ids=lambda kind: kind.value)
def test_one_engine_serves_decode_and_prefill(smollm2: MakeArtifact, tmp_path: Path, kind: Kind, sm: int) -> None:
    """With the weights in it once."""
    artifact = shutil.copytree(smollm2(kind, 2048, 64), tmp_path / "artifact")  # whose weights have one name: ir asks
    model, cache = ir.load(artifact / manifest.GRAPH), manifest.read(artifact).cache
    store_half(model)
    make_plain(model, cache, LIMITS)
    ir.save(model, tmp_path / "plain.onnx", external_data="plain.onnx.data")
    engine = build_engine(tmp_path / "plain.onnx", sm, profiles(cache, LIMITS))
    assert WEIGHTS < len(engine) < (1 + CODE) * WEIGHTS
