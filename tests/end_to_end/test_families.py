"""P3 and P7 for each family: native windows, NoPE layers, rope per layer, softcap, partial and interleaved rotary."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tiny_families import FAMILIES, SLIDING_FIRST, VOCAB, Family, oracle_logits, tiny_model
from tiny_models import stream_logits, write_artifact

from kvedge.export.trace import trace
from kvedge.runtime.engine import Engine
from kvedge.targets.kinds import Kind
from kvedge.targets.settings import CacheSettings

LENGTH = 300  # past the models' 256 positions
P3_TOLERANCE = 1e-4
P7_TOLERANCE = 2e-3
MODELS = {**FAMILIES, "gemma2": Family({**SLIDING_FIRST, "head_dim": 32, "attn_logit_softcapping": 20.0})}


@cache
def traced(name: str):  # type: ignore[no-untyped-def]
    loaded = tiny_model(name, **MODELS[name].changes)
    return loaded, trace(loaded)


def load(name: str, kind: Kind, window: int | None, folder: Path) -> Engine:
    settings = CacheSettings(kind=kind, window=window, sinks=4, recent=16, page=8)
    return Engine.load(write_artifact(*traced(name), settings, folder / "artifact"), chunk=64)


def cuts_of(chunk: int, length: int) -> list[int]:
    return [*range(chunk, length, chunk), length]


def error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.abs(got - want).max() / want.std())


def tokens(length: int) -> np.ndarray:
    return np.random.default_rng(1).integers(3, VOCAB, length)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("window", "length"), [(37, LENGTH), (None, 200)])
def test_every_step_equals_the_original(name: str, window: int | None, length: int, tmp_path: Path) -> None:
    engine, ids = load(name, Kind.FP, window, tmp_path), tokens(length)
    want = oracle_logits(traced(name)[0], engine.manifest.cache, ids)
    for chunk in (1, 13, 64):
        got, _ = stream_logits(engine, ids, cuts_of(chunk, length))
        assert error(got, want) <= P3_TOLERANCE, f"chunk {chunk}"


@pytest.mark.parametrize("name", MODELS)
def test_cuts_change_nothing_when_packed(name: str, tmp_path: Path) -> None:
    engine, ids = load(name, Kind.INT3, 37, tmp_path), tokens(LENGTH)
    want, pages = stream_logits(engine, ids, cuts_of(1, LENGTH))
    assert (pages > 0) == any(layer.rules.packs for layer in engine.manifest.cache.layers)
    for chunk in (7, 37, 64):
        got, _ = stream_logits(engine, ids, cuts_of(chunk, LENGTH))
        assert error(got, want) <= P7_TOLERANCE, f"chunk {chunk}"
