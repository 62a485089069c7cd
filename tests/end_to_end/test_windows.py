"""The whole path on scaled tiny models: P3 (equal to the original), P7 (however a stream is cut)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tiny_models import VOCAB, original_logits, stream_logits, tiny_llama, write_artifact

from kvedge.export.settings import CacheSettings
from kvedge.export.trace import trace
from kvedge.runtime.engine import Engine
from kvedge.targets.kinds import Kind

LENGTH = 300  # beyond the model's 128 positions: the tiny windows wrap up to twenty times
P3_TOLERANCE = 1e-4
P7_FP = 2e-5
P7_INT3 = 2e-3
"""A value next to a code boundary may fall to either side when the products before it are summed in another order."""

WINDOWS = (13, 16, 37, 48, 100)
SHAPES = {"GQA": (4, 2), "MQA": (4, 1), "MHA": (2, 2)}


@cache
def traced(shape: str):  # type: ignore[no-untyped-def]
    loaded = tiny_llama(heads=SHAPES[shape][0], kv_heads=SHAPES[shape][1])
    return loaded, trace(loaded)


def tokens(length: int = LENGTH) -> np.ndarray:
    return np.random.default_rng(1).integers(0, VOCAB, length)


def load(shape: str, settings: CacheSettings, folder: Path, chunk: int = 128) -> Engine:
    return Engine.load(write_artifact(*traced(shape), settings, folder / "artifact"), chunk=chunk)


def cuts_of(chunk: int, length: int = LENGTH) -> list[int]:
    return [*range(chunk, length, chunk), length]


def error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.abs(got - want).max() / want.std())


def settings_of(kind: Kind, window: int | None, sinks: int) -> CacheSettings:
    return CacheSettings(kind=kind, window=window, sinks=sinks, recent=16, page=8)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sinks", [4, 0])
@pytest.mark.parametrize("window", WINDOWS)
def test_every_step_equals_the_original(shape: str, window: int, sinks: int, tmp_path: Path) -> None:
    engine, ids = load(shape, settings_of(Kind.FP, window, sinks), tmp_path), tokens()
    want = original_logits(traced(shape)[0], ids, sinks, window)
    for chunk in (1, 7, window - 1, window, window + 1, 128):
        got, _ = stream_logits(engine, ids, cuts_of(chunk))
        assert error(got, want) <= P3_TOLERANCE, f"chunk {chunk}"


def test_without_a_window(tmp_path: Path) -> None:
    engine, ids = load("GQA", settings_of(Kind.FP, None, 4), tmp_path), tokens(128)
    want = original_logits(traced("GQA")[0], ids, 0, None)
    for chunk in (1, 7, 64, 128):
        got, _ = stream_logits(engine, ids, cuts_of(chunk, 128))
        assert error(got, want) <= P3_TOLERANCE, f"chunk {chunk}"


def test_the_oracle_is_the_original() -> None:
    """Without window and sinks the oracle is plain attention."""
    import torch

    loaded, ids = traced("GQA")[0], tokens(100)
    with torch.no_grad():
        eager = loaded.model(input_ids=torch.from_numpy(ids)[None]).logits[0].numpy()
    assert error(eager, original_logits(loaded, ids, 0, None)) <= P3_TOLERANCE


@pytest.mark.parametrize("mistake", [(13, 5), (14, 4), (12, 4), (13, 0)])
def test_an_error_of_one_shows(mistake: tuple[int, int], tmp_path: Path) -> None:
    """Window or sinks off by one are a thousand times the tolerance."""
    engine, ids = load("GQA", settings_of(Kind.FP, 13, 4), tmp_path), tokens()
    got, _ = stream_logits(engine, ids, cuts_of(7))
    window, sinks = mistake
    assert error(got, original_logits(traced("GQA")[0], ids, sinks, window)) > 0.1


@pytest.mark.parametrize("kind", [Kind.FP, Kind.INT3])
@pytest.mark.parametrize(("window", "sinks"), [(13, 4), (37, 4), (37, 0), (48, 4), (100, 4)])
def test_cuts_change_nothing(kind: Kind, window: int, sinks: int, tmp_path: Path) -> None:
    engine, ids = load("GQA", settings_of(kind, window, sinks), tmp_path), tokens()
    want, pages = stream_logits(engine, ids, cuts_of(1))
    assert (pages > 0) == (kind is Kind.INT3 and window > 17)
    rng = np.random.default_rng(2)
    odd = np.unique(rng.integers(1, LENGTH, 40)).tolist() + [LENGTH]
    tolerance = P7_FP if kind is Kind.FP else P7_INT3
    for cuts in (cuts_of(7), cuts_of(window - 1), cuts_of(window), cuts_of(window + 1), cuts_of(128), odd):
        got, _ = stream_logits(engine, ids, cuts)
        assert error(got, want) <= tolerance, cuts
