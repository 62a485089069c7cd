"""The Triton kernels in Triton's interpreter, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kernel_cases import CASES
from streams import REFERENCE, Stream, against_reference, cuts_of, make_layer
from triton_kernels import IN_FLOATS, IN_HALVES, codes

from kvedge.plugins.cuda.constants import padded
from kvedge.plugins.cuda.kernels import TritonKernels
from kvedge.plugins.reference.pages import pack_codes
from kvedge.plugins.reference.quantize import decode
from kvedge.plugins.step import PagedStep
from kvedge.targets.codebook import Code
from kvedge.targets.kinds import Kind

LENGTH, CHUNK = 40, 20
"""Packed pages are read from token 36 on in every case."""
QUANTIZED = [kind for kind in Kind if not kind.is_exact]


def check(stream: Stream, *, chunk: int = CHUNK, kernels: TritonKernels = IN_FLOATS, tolerance: float = 2e-6) -> None:
    """Outputs close to the reference's, pools and pages read the same."""
    against_reference(stream, kernels, chunk, tolerance=tolerance)


@pytest.mark.parametrize("code", [code for code in Code if code is not Code.NONE])
@pytest.mark.parametrize(("depth", "lanes"), [(64, 64), (8, 16), (24, 8), (40, 16), (80, 64), (96, 16), (16, 24)])
def test_words_to_levels_and_back(code: Code, depth: int, lanes: int) -> None:
    """Every bit of every word is used, the sign of the int32 too."""
    bits = code.bits
    wanted = np.random.default_rng(bits).integers(0, 1 << bits, (depth, lanes)).astype(np.uint8)
    if code is Code.E4M3:
        wanted[wanted & 127 == 127] = 0  # no number
    words = pack_codes(wanted, bits)
    assert depth < 16 or (words < 0).any()
    sizes = (depth, lanes, padded(depth), padded(lanes))
    levels, written = torch.zeros(padded(depth), padded(lanes)), torch.full((len(words) + 8,), -7, dtype=torch.int32)
    signed = wanted.view(np.int8) if code is Code.UNIFORM else wanted
    codes.round_trip[(1,)](
        torch.from_numpy(words),
        torch.from_numpy(signed.astype(np.int32)),
        levels,
        written,
        bits,
        code is Code.E4M3,
        *sizes,
        codes.POSITIVE_LEVELS[bits],
    )
    assert np.array_equal(levels.numpy()[:depth, :lanes], decode(wanted, code))
    assert np.array_equal(written.numpy()[: len(words)], words)
    assert (written.numpy()[len(words) :] == -7).all()


@pytest.mark.parametrize("name", CASES)
def test_every_case(name: str) -> None:
    check(Stream(make_layer(Kind.INT3, **CASES[name]), LENGTH, chunk=CHUNK))


@pytest.mark.parametrize("kind", QUANTIZED)
def test_every_kind(kind: Kind) -> None:
    check(Stream(make_layer(kind, window=None), LENGTH))


@pytest.mark.slow
@pytest.mark.parametrize("kind", QUANTIZED)
@pytest.mark.parametrize("name", CASES)
def test_every_case_of_every_kind(name: str, kind: Kind) -> None:
    check(Stream(make_layer(kind, **CASES[name]), LENGTH, chunk=CHUNK))


@pytest.mark.parametrize("name", ["base", "no window", "seven heads a group", "softcap"])
@pytest.mark.parametrize("kind", [Kind.FP, Kind.FP16])
def test_exact_pages(name: str, kind: Kind) -> None:
    check(Stream(make_layer(kind, **CASES[name]), LENGTH))


REAL_SIZES = [(64, Kind.INT3), (128, Kind.FP8), (128, Kind.K4V2), (256, Kind.INT3)]


@pytest.mark.parametrize(("head_dim", "kind"), REAL_SIZES)
def test_real_heads_and_pages(head_dim: int, kind: Kind) -> None:
    """Pages of 64 tokens, packed ones read and sealed in the second step."""
    check_real(head_dim, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", QUANTIZED)
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_real_heads_and_pages_of_every_kind(head_dim: int, kind: Kind) -> None:
    check_real(head_dim, kind)


def check_real(head_dim: int, kind: Kind) -> None:
    layer = make_layer(kind, head_dim=head_dim, page=64, recent=64, sinks=4, window=None)
    stream = Stream(layer, 200)
    check(stream, chunk=196)
    assert stream.pages_read > 0


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", [Kind.FP, Kind.FP16, Kind.INT3])
def test_what_is_no_number_stays_none(kind: Kind) -> None:
    """A key that is not a number spoils what the reference says that it does: a broken model is noticed."""
    bad = []
    for kernels in (REFERENCE, IN_FLOATS):
        stream = Stream(make_layer(kind, window=None), LENGTH)
        stream.k[0, 6] = np.nan
        bad.append(~np.isfinite(stream.run(kernels, cuts_of(LENGTH, CHUNK))).all((1, 2)))
    assert bad[0].any() and np.array_equal(*bad)


def test_token_by_token() -> None:
    """Every step is one token: splits of two pages each, merged."""
    check(Stream(make_layer(Kind.INT3, window=None), 40), chunk=1)


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_key_bias(interleaved: bool) -> None:
    stream = Stream(make_layer(Kind.INT3, head_dim=32), LENGTH, interleaved=interleaved, bias_norm=50.0)
    check(stream, tolerance=2e-5)


def test_products_of_halves() -> None:
    """Operands rounded to float16, sums in float32."""
    check(Stream(make_layer(Kind.INT3, window=None), LENGTH), kernels=IN_HALVES, tolerance=2e-3)


def test_rows_of_other_lengths() -> None:
    """A batch of two rows: each is what it is alone, and padding is 0."""
    layer = make_layer(Kind.INT3, window=None)
    alone = [Stream(layer, 40, seed=seed) for seed in (1, 2)]
    for stream in alone:
        stream.run(REFERENCE, [33])
    steps = [alone[0].step(33, 40), alone[1].step(33, 36)]
    for step in steps:
        REFERENCE.seal(layer, step)
    outputs = [REFERENCE.attend(layer, step, interleaved=False).out for step in steps]
    result = IN_FLOATS.attend(layer, _batch(steps, 7), interleaved=False)
    for row, (want, step) in enumerate(zip(outputs, steps, strict=True)):
        new = int(step.num_new[0])
        assert np.abs(result.out[row, :new] - want[0]).max() <= 2e-6 * np.abs(want).max()
        assert not result.out[row, new:].any()


def _batch(steps: list[PagedStep], width: int) -> PagedStep:
    """Steps of one row each as one step; the second row's pages come after the first's."""

    def padded_to(x: np.ndarray, axis: int) -> np.ndarray:
        room = [(0, width - x.shape[axis] if at == axis else 0) for at in range(x.ndim)]
        return np.pad(x, room, constant_values=3.0)

    first = steps[0]
    assert first.packed is not None and first.packed_table is not None
    tables = {
        "hot_table": np.concatenate([s.hot_table + i * len(first.hot) for i, s in enumerate(steps)]),
        "packed_table": np.concatenate([s.packed_table + i * len(first.packed) for i, s in enumerate(steps)]),
    }
    new = {name: np.concatenate([padded_to(getattr(s, name), 2) for s in steps]) for name in ("q", "k", "v")}
    turns = {
        name: np.concatenate([padded_to(getattr(s, name), 1) for s in steps]).astype(np.float32)
        for name in ("sink_cos", "sink_sin")
    }
    whole = {
        name: np.concatenate([getattr(s, name) for s in steps]) for name in ("hot", "packed", "context", "num_new")
    }
    return PagedStep(**new, **turns, **whole, **tables)
