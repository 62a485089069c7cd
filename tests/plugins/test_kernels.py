"""The C kernels against numpy, and both against attention by mask."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest
from kernel_cases import CASES
from streams import NATIVE, REFERENCE, Stream, against_reference, cuts_of, dense, make_layer

from kvedge.plugins.key_bias import key_bias
from kvedge.targets.kinds import Kind

RELATIVE = 2e-6
"""fp32 kernels against float64, relative to the largest output."""


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def close(got: np.ndarray, want: np.ndarray, tolerance: float = RELATIVE) -> None:
    assert np.abs(got - want).max() <= tolerance * np.abs(want).max()


@pytest.mark.parametrize("name", CASES)
def test_fp_is_attention_by_mask(name: str) -> None:
    stream = Stream(make_layer(Kind.FP, **CASES[name]), 100)
    close(stream.run(NATIVE, cuts_of(100, 13)), dense(stream))
    assert stream.pages_read == 0


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "kind", [Kind.FP16, Kind.INT8, Kind.FP8, Kind.K8V4, Kind.INT4, Kind.INT3, Kind.INT2, Kind.K4V2]
)
def test_packed_matches_the_reference(name: str, kind: Kind) -> None:
    against_reference(Stream(make_layer(kind, **CASES[name]), 100), NATIVE, 13, tolerance=RELATIVE)


@pytest.mark.parametrize("kind", [Kind.FP, Kind.INT3])
@pytest.mark.parametrize("sinks", [136, 200])
def test_sinks_of_many_pages(kind: Kind, sinks: int) -> None:
    """Queries among them stand in pages far below 0."""
    stream = Stream(make_layer(kind, sinks=sinks), 330)
    want = stream.run(REFERENCE, cuts_of(330, 60))
    for chunk in (60, 1):
        stream.allocate()
        close(stream.run(NATIVE, cuts_of(330, chunk)), want)


@pytest.mark.parametrize("kind", [Kind.FP, Kind.FP8, Kind.INT3])
@pytest.mark.parametrize("name", CASES)
def test_chunks_change_no_bit(name: str, kind: Kind) -> None:
    stream = Stream(make_layer(kind, **CASES[name]), 150)
    window = stream.layer.rules.window or 40
    want = stream.run(NATIVE, cuts_of(150, 1))
    for chunk in (7, window - 1, window, window + 1, 64):
        stream.allocate()
        assert np.array_equal(stream.run(NATIVE, cuts_of(150, chunk)), want), chunk


@pytest.mark.parametrize("kind", [Kind.FP, Kind.INT3])
def test_interleaved_rotary(kind: Kind) -> None:
    stream = Stream(make_layer(kind), 100, interleaved=True)
    want = stream.run(REFERENCE, cuts_of(100, 13))
    stream.allocate()
    close(stream.run(NATIVE, cuts_of(100, 13)), want)
    if kind is Kind.FP:
        close(want, dense(stream))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("kind", [Kind.INT4, Kind.INT3])
def test_key_bias_matches_the_reference(kind: Kind, interleaved: bool) -> None:
    stream = Stream(make_layer(kind, head_dim=32), 100, interleaved=interleaved, bias_norm=50.0)
    want = stream.run(REFERENCE, cuts_of(100, 13))
    packed = stream.packed
    stream.allocate()
    close(stream.run(NATIVE, cuts_of(100, 13)), want, 2e-5)
    assert np.array_equal(stream.packed, packed)
    chunked = stream.run(NATIVE, cuts_of(100, 13))
    stream.allocate()
    assert np.array_equal(stream.run(NATIVE, cuts_of(100, 1)), chunked)


def test_a_known_key_bias_costs_nothing() -> None:
    """Kept apart, a bias of norm 50 hardly matters; left in the codes it ruins them.

    What remains is the rounding of exact tokens to float16, which the bias makes larger, and the slow pairs.
    """
    layer = make_layer(Kind.INT3, head_dim=32, window=None)

    def error(norm: float, *, keep_apart: bool) -> float:
        errors = []
        for seed in range(6):
            stream = Stream(layer, 150, seed=seed, bias_norm=norm)
            stream.bias = stream.bias if keep_apart else None
            errors.append(np.abs(stream.run(NATIVE, cuts_of(150, 13)) - dense(stream))[60:].mean())
        return float(np.mean(errors))

    apart = error(50.0, keep_apart=True)
    assert apart < 1.6 * error(0.0, keep_apart=True)
    assert error(50.0, keep_apart=False) > 2 * apart


def test_a_zero_bias_changes_no_code() -> None:
    layer = make_layer(Kind.INT3, head_dim=32)
    plain, zero = Stream(layer, 100), Stream(layer, 100)
    zero.bias = key_bias(np.zeros((layer.kv_heads, layer.head_dim), np.float32), zero.rope, layer.rules.page)
    want = plain.run(NATIVE, cuts_of(100, 13))
    assert np.array_equal(zero.run(NATIVE, cuts_of(100, 13)), want)
    assert np.array_equal(zero.packed, plain.packed)


def test_codes_do_not_collapse() -> None:
    """The packed path is near the exact one, and not equal to it."""
    stream = Stream(make_layer(Kind.INT4, window=None, head_dim=64), 200)
    error = np.abs(stream.run(NATIVE, cuts_of(200, 13)) - dense(stream))[150:]
    assert 1e-4 < error.mean() < 0.1


@pytest.mark.parametrize("page", [8, 16, 24, 64])
@pytest.mark.parametrize("new", [1, 20])
def test_steps_keep_no_memory(page: int, new: int) -> None:
    """What a thread keeps between steps is found again, whatever the page size."""
    stream = Stream(make_layer(Kind.INT3, page=page, recent=page, window=None), 5 * page)
    stream.run(NATIVE, cuts_of(5 * page, 13))
    step = stream.step(5 * page - new, 5 * page)
    before = 0
    for n in range(400):
        NATIVE.attend(stream.layer, step, interleaved=False)
        if n == 20:
            before = resident_bytes()
    assert resident_bytes() - before < 1 << 20


def test_page_sizes_share_no_scratch() -> None:
    """A thread that has read small pages reads larger ones of the same head_dim as if it had not."""
    outputs = []
    for page in (64, 8, 16, 64):
        stream = Stream(make_layer(Kind.INT3, page=page, recent=page, window=None), 5 * page)
        outputs.append(stream.run(NATIVE, cuts_of(5 * page, 1)))
        stream.allocate()
        close(outputs[-1], stream.run(REFERENCE, cuts_of(5 * page, 64)))
    assert np.array_equal(outputs[0], outputs[-1])
