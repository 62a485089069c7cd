"""Every instruction set that this CPU has, forced one by one, against the reference."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnxruntime as ort
import pytest
from instruction_sets import NEEDS, copied, cpu_flags
from streams import REFERENCE, Stream, cuts_of, make_layer

from kvedge.plugins.native import NativeKernels, load
from kvedge.plugins.reference.integers import attend_in_integers
from kvedge.targets.kinds import Kind

SHAPES = {
    "eight channels": {"head_dim": 8},
    "24 channels": {"head_dim": 24, "page": 24, "recent": 24},
    "32 channels": {"head_dim": 32},
    "40 channels, MHA": {"head_dim": 40, "heads": 2},
    "64 channels, a real page": {"head_dim": 64, "page": 64, "recent": 64, "window": None, "heads": 6},
    "whole pages, and a window inside them": {"head_dim": 64, "page": 64, "recent": 64, "window": 150, "heads": 6},
    "72 channels": {"head_dim": 72, "heads": 6},
    "80 channels": {"head_dim": 80, "heads": 8},
    "112 channels, seven heads a group": {"head_dim": 112, "heads": 7, "kv_heads": 1},
    "128 channels, sixteen heads a group": {"head_dim": 128, "heads": 16, "kv_heads": 1},
    "256 channels": {"head_dim": 256, "page": 16, "recent": 16},
}
LENGTH = 160
LONG = 400
"""Tokens where pages are of 64."""

shapes = pytest.mark.parametrize("shape", SHAPES)
every_kind = pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.value)


INTEGERS = SimpleNamespace(seal=REFERENCE.seal, attend=attend_in_integers, append=REFERENCE.append)


def stream_of(kind: Kind, shape: str) -> Stream:
    return Stream(make_layer(kind, **SHAPES[shape]), LONG if SHAPES[shape].get("page") == 64 else LENGTH)


@cache
def expected(kind: Kind, shape: str, *, integers: bool) -> tuple[np.ndarray, np.ndarray | None, int]:
    stream = stream_of(kind, shape)
    out = stream.run(INTEGERS if integers else REFERENCE, cuts_of(stream.length, 29))
    return out, stream.packed, stream.pages_read


@shapes
@every_kind
def test_as_the_reference(forced: NativeKernels, kind: Kind, shape: str) -> None:
    """Pages to the bit, outputs within float32 rounding, by single tokens and by chunks of many rows.

    In integers a rounding may now and then go the other way: by a step in a few outputs, no more.
    """
    integers = forced.reads_integers and not kind.is_exact and not kind.has_floats
    want, packed, read = expected(kind, shape, integers=integers)
    stream = stream_of(kind, shape)
    outputs = []
    for chunk in (29, 1):
        stream.allocate()
        outputs.append(stream.run(forced, cuts_of(stream.length, chunk)))
        error = np.abs(outputs[-1] - want) / np.abs(want).max()
        assert error.max() <= (3e-3 if integers else 3e-6)
        assert np.quantile(error, 0.9) <= 3e-6
    assert np.array_equal(*outputs)
    assert read == 0 if kind.is_exact else read > 0
    assert packed is None or np.array_equal(stream.packed, packed)


@pytest.mark.parametrize("kind", [kind for kind in Kind if not kind.has_floats], ids=lambda kind: kind.value)
def test_integers_cost_little(kind: Kind) -> None:
    """Of the reference's outputs, relative to their size; codes of 3 bits alone cost 0.2."""
    out, want = (expected(kind, "64 channels, a real page", integers=integers)[0] for integers in (True, False))
    assert np.sqrt(np.mean((out - want) ** 2) / np.mean(want**2)) < 8e-3


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("array", ["q", "k"])
@pytest.mark.parametrize("kind", [Kind.FP, Kind.INT3])
@pytest.mark.parametrize("token", [6, 100])
def test_what_is_no_number_stays_none(forced: NativeKernels, token: int, kind: Kind, array: str, value: float) -> None:
    """As in the reference, token for token and in any chunks: an overflow in the model is noticed.

    But for what fp16 takes for its largest number. Token 6 is alone in the first page that is packed.
    """
    bad = []
    for kernels, chunk in ((REFERENCE, 29), (forced, 29), (forced, 1)):
        stream = Stream(make_layer(kind, window=None), 130)
        getattr(stream, array)[0, token] = value
        bad.append(~np.isfinite(stream.run(kernels, cuts_of(130, chunk))).all((1, 2)))
    saturates = kind is Kind.INT3 and array == "k" and value == np.inf
    assert bad[0].any() != saturates and not bad[0][:token].any()
    assert np.array_equal(bad[0], bad[1]) and np.array_equal(bad[0], bad[2])


def test_reading(forced: NativeKernels) -> None:
    words = np.random.default_rng(0).integers(-(2**31), 2**31, 64 * 37, np.int32)
    assert forced.read(words) == np.bitwise_xor.reduce(words)


def test_the_best_one_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVEDGE_CPU_ISA", raising=False)
    assert load(copied(tmp_path)).cpu_isa == [name for name, flags in NEEDS.items() if flags <= cpu_flags()][-1]


def test_an_unknown_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVEDGE_CPU_ISA", "sse9")
    with pytest.raises(Exception, match="KVEDGE_CPU_ISA; expected baseline"):
        ort.SessionOptions().register_custom_ops_library(str(copied(tmp_path)))
