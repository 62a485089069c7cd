"""Would the tests notice? Each row breaks one function of the numpy reference, and a named check must fail.

The checks are those that the ordinary tests use. Every one of them passes before its mutation is applied.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import checks
import numpy as np
import pytest
from checks import round_trip
from streams import REFERENCE

from kvedge.plugins.reference.attend import dequantize_page
from kvedge.plugins.reference.pages import PageCodes
from kvedge.plugins.reference.quantize import Codes, Floats, decode, encode, nearest, nearest_float, to_half
from kvedge.plugins.reference.rotation import rotate, unrotate
from kvedge.plugins.reference.seal import quantize_page
from kvedge.targets.codebook import LEVELS, Code
from kvedge.targets.kinds import Kind, ValueScale
from kvedge.targets.visibility import hot_slot, page_of, reads_packed, window_start

ROOT_2 = np.float32(2**0.5)


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """`target` of kvedge.plugins.reference becomes `broken`; then `check` fails, and says `fails`."""

    target: str
    broken: Callable[..., Any]
    check: Callable[[], None]
    fails: str


# ---- What breaks.


def decode_with_the_other_codebook(codes: Codes, code: Code) -> Floats:
    """4-bit codes through the 2-bit levels and the other way round."""
    other = np.array(LEVELS[6 - code.bits], np.float32)
    top = 1 << (code.bits - 1)
    level = other[np.minimum(codes & (top - 1), len(other) - 1)]
    return np.where(codes & top, -level, level)


def decode_as_two_bits(codes: Codes, code: Code) -> Floats:
    return decode(codes & 3, Code.NORMAL_2)


def cut_floats(magnitude: Floats) -> Codes:
    """Towards zero."""
    return nearest_float((magnitude.view(np.int32) & -(1 << 20)).view(np.float32))


def encode_without_scale(z: Floats, code: Code, scale: ValueScale) -> tuple[Codes, Floats]:
    codes, scales = encode(z, code, scale)
    return codes, np.ones_like(scales)


def forget_mean(codes: PageCodes, kind: Kind) -> tuple[Floats, Floats]:
    k, v = dequantize_page(codes, kind)
    return k - codes.k_mean.astype(np.float64), v


def subtract_mean_over_channels(k: Floats, v: Floats, kind: Kind) -> PageCodes:
    """One number a token instead of one a channel; what is stored and added back is the best that fits."""
    mean = k.mean(1, keepdims=True)
    k_codes, k_scales = encode(rotate(k - mean), kind.k_code, ValueScale.UNBIASED)
    k_mean = to_half(np.full(k.shape[1], mean.mean(), np.float32))
    return replace(quantize_page(k, v, kind), k_codes=k_codes, k_scales=k_scales, k_mean=k_mean)


def start_late(query: int, sinks: int, window: int | None) -> int:
    return min(query, window_start(query, sinks, window) + 1)


def start_early(query: int, sinks: int, window: int | None) -> int:
    return max(sinks, window_start(query, sinks, window) - 1)


def next_slot(order: int, sinks: int, page: int, ring: int) -> tuple[int, int]:
    return hot_slot(order + 1 if order >= sinks else order, sinks, page, ring)


def packed_one_page_late(query: int, key: int, sinks: int, page: int, recent: int) -> bool:
    return reads_packed(query, key, sinks, page, recent + page)


def packed_by_distance(query: int, key: int, sinks: int, page: int, recent: int) -> bool:
    """A rule of tokens instead of pages, among pages that are sealed."""
    return reads_packed(query, key, sinks, page, recent) and query - key > recent + page


def page_of_without_sinks(order: int, sinks: int, page: int) -> int:
    return page_of(order, 0, page)


# ---- What notices.


def distortion(kind: Kind, dim: int) -> Callable[[], None]:
    return lambda: checks.check_distortion(round_trip(kind, dim))


def inner_products(kind: Kind, dim: int) -> Callable[[], None]:
    return lambda: checks.check_inner_products(round_trip(kind, dim))


def outliers(kind: Kind, dim: int) -> Callable[[], None]:
    return lambda: checks.check_outliers(round_trip(kind, dim, outliers=True))


def same_pages(kind: Kind, dim: int) -> Callable[[], None]:
    return lambda: checks.check_same_pages(kind, head_dim=dim)


def chunks_of_the_reference() -> None:
    checks.check_chunks(REFERENCE, Kind.INT3)


def dequantized() -> None:
    checks.check_dequantized(REFERENCE, Kind.INT3, offset=1.0)


def matches_native() -> None:
    checks.check_matches_native(Kind.INT3)


MUTATIONS = {
    "codebooks of K and V swapped": Mutation(
        target="attend.decode",
        broken=decode_with_the_other_codebook,
        check=distortion(Kind.K4V2, 64),
        fails=checks.DISTORTION,
    ),
    "un-rotated without the transpose, head_dim 80": Mutation(
        target="attend.unrotate",
        broken=rotate,
        check=distortion(Kind.INT3, 80),
        fails=checks.DISTORTION,
    ),
    "rotated with the transpose, head_dim 24": Mutation(
        target="seal.rotate",
        broken=unrotate,
        check=same_pages(Kind.INT3, 24),
        fails=checks.SAME_PAGES,
    ),
    "rotation skipped": Mutation(
        target="rotation._butterfly",
        broken=lambda parts: parts,
        check=outliers(Kind.INT3, 64),
        fails=checks.OUTLIERS,
    ),
    "scale dropped": Mutation(
        target="seal.encode",
        broken=encode_without_scale,
        check=distortion(Kind.INT4, 64),
        fails=checks.DISTORTION,
    ),
    "sigma too small by the root of 2": Mutation(
        target="quantize.nearest",
        broken=lambda y, code: nearest(y * ROOT_2, code),
        check=distortion(Kind.INT4, 64),
        fails=checks.DISTORTION,
    ),
    "sigma too large by the root of 2": Mutation(
        target="quantize.nearest",
        broken=lambda y, code: nearest(y / ROOT_2, code),
        check=distortion(Kind.INT3, 64),
        fails=checks.DISTORTION,
    ),
    "floats of 8 bits cut, not rounded": Mutation(
        target="quantize.nearest_float",
        broken=cut_floats,
        check=same_pages(Kind.FP8, 64),
        fails=checks.SAME_PAGES,
    ),
    "3-bit data decoded as 2-bit": Mutation(
        target="attend.decode",
        broken=decode_as_two_bits,
        check=distortion(Kind.INT3, 64),
        fails=checks.DISTORTION,
    ),
    "mean not added back": Mutation(
        target="attend.dequantize_page",
        broken=forget_mean,
        check=dequantized,
        fails=checks.DEQUANTIZED,
    ),
    "mean over channels": Mutation(
        target="seal.quantize_page",
        broken=subtract_mean_over_channels,
        check=distortion(Kind.INT4, 64),
        fails=checks.DISTORTION,
    ),
    "keys with the scale of values": Mutation(
        target="seal.encode",
        broken=lambda z, code, scale: encode(z, code, ValueScale.LEAST_SQUARES),
        check=inner_products(Kind.INT3, 64),
        fails=checks.INNER_PRODUCTS,
    ),
    "values with the scale of keys": Mutation(
        target="seal.encode",
        broken=lambda z, code, scale: encode(z, code, ValueScale.UNBIASED),
        check=distortion(Kind.INT2, 64),
        fails=checks.DISTORTION,
    ),
    "window one key short": Mutation(
        target="attend.window_start",
        broken=start_late,
        check=checks.check_by_mask,
        fails=checks.BY_MASK,
    ),
    "window one key long": Mutation(
        target="attend.window_start",
        broken=start_early,
        check=checks.check_by_mask,
        fails=checks.BY_MASK,
    ),
    "sink shift dropped": Mutation(
        target="attend.turn_back",
        broken=lambda q, source, index, interleaved: q,
        check=checks.check_by_mask,
        fails=checks.BY_MASK,
    ),
    "ring slot off by one": Mutation(
        target="tokens.hot_slot",
        broken=next_slot,
        check=checks.check_by_mask,
        fails=checks.BY_MASK,
    ),
    "new tokens not rounded to fp16": Mutation(
        target="tokens.stored",
        broken=lambda x, dtype: x,
        check=chunks_of_the_reference,
        fails=checks.CHUNKS,
    ),
    "packed pages read one page late": Mutation(
        target="attend.reads_packed",
        broken=packed_one_page_late,
        check=dequantized,
        fails=checks.DEQUANTIZED,
    ),
    "packed by distance instead of pages": Mutation(
        target="attend.reads_packed",
        broken=packed_by_distance,
        check=matches_native,
        fails=checks.NATIVE_MATCH,
    ),
    "page borders that forget the sinks": Mutation(
        target="attend.page_of",
        broken=page_of_without_sinks,
        check=matches_native,
        fails=checks.NATIVE_MATCH,
    ),
}


def apply(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"kvedge.plugins.reference.{mutation.target}", mutation.broken)


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutation_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation = MUTATIONS[name]
    mutation.check()
    apply(mutation, monkeypatch)
    with pytest.raises(AssertionError, match=f"^{re.escape(mutation.fails)}: "):
        mutation.check()


TRANSPOSED = {
    "un-rotated without the transpose, head_dim 80": distortion(Kind.INT3, 64),
    "rotated with the transpose, head_dim 24": same_pages(Kind.INT3, 64),
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_a_symmetric_rotation_hides_the_transpose(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why the rows above need a head_dim that is no power of two."""
    apply(MUTATIONS[name], monkeypatch)
    TRANSPOSED[name]()
    with pytest.raises(AssertionError):
        MUTATIONS[name].check()


def test_gaussian_vectors_do_not_see_the_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why outliers are tested: on Gaussian vectors a dead rotation changes nothing."""
    apply(MUTATIONS["rotation skipped"], monkeypatch)
    checks.check_distortion(round_trip(Kind.INT3, 64))
