"""Named checks of the quantizer and of attention over it.

Ordinary tests require that they hold; mutation tests require that the right one fails when the numpy
reference is broken on purpose. So the reference is always called through its modules, and every failure
starts with the name of the check.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from streams import NATIVE, REFERENCE, Kernels, Stream, cuts_of, dense, make_layer

from kvedge.plugins.reference import attend, seal
from kvedge.plugins.reference.pages import PageCodes
from kvedge.plugins.step import PagedStep
from kvedge.targets.codebook import LEVELS, Code
from kvedge.targets.kinds import Kind, ValueScale
from kvedge.targets.packing import PackedLayout
from kvedge.targets.spec import LayerSpec

DISTORTION = "distortion in bounds"
OUTLIERS = "outliers cost nothing"
INNER_PRODUCTS = "inner products come out right"
SAME_PAGES = "numpy and C++ seal the same bits"
NATIVE_MATCH = "numpy and C++ agree"
BY_MASK = "attention by mask"
CHUNKS = "chunks change nothing"
DEQUANTIZED = "packed attention is q.k with dequantized keys"

Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]

VECTORS = 8000
GAUSSIAN_ERROR = {
    2: {64: 0.1126, 128: 0.1150, 256: 0.1164},
    3: {64: 0.0323, 128: 0.0336, 256: 0.0341},
    4: {64: 0.0088, 128: 0.0092, 256: 0.0093},
}
"""Relative squared error of Gaussian vectors with the least-squares scale, by bits and head_dim."""


def gaussian_error(bits: int, dim: int) -> float:
    """The figure for any head_dim: nearly linear in 1 / dim."""
    known = sorted((1 / d, error) for d, error in GAUSSIAN_ERROR[bits].items())
    return float(np.interp(1 / dim, *np.transpose(known)))


def expect(holds: object, check: str, detail: str) -> None:
    """Fail with the name of the check."""
    assert bool(holds), f"{check}: {detail}"


# ---- One big page of random vectors through the quantizer and back.


@dataclass(frozen=True, kw_only=True)
class RoundTrip:
    """Keys and values [VECTORS, dim], their codes, and what the codes stand for."""

    kind: Kind
    k: Floats
    v: Floats
    codes: PageCodes
    k_back: Doubles
    v_back: Doubles

    @property
    def dim(self) -> int:
        return self.k.shape[1]

    @cached_property
    def k_mean(self) -> Doubles:
        """Not the one that the page stores: errors are measured against what is right."""
        return self.k.astype(np.float64).mean(0)

    @cached_property
    def k_centred(self) -> Doubles:
        """Keys without their mean over tokens."""
        return self.k - self.k_mean

    @cached_property
    def k_error(self) -> float:
        return relative_error(self.k - self.k_back, self.k_centred)

    @cached_property
    def v_error(self) -> float:
        return relative_error(self.v - self.v_back, self.v)


def relative_error(error: NDArray[np.floating], of: NDArray[np.floating]) -> float:
    """Mean over vectors of |error|**2 / |of|**2."""
    return float(np.mean((error.astype(np.float64) ** 2).sum(1) / (of.astype(np.float64) ** 2).sum(1)))


def gaussian_page(dim: int, seed: int) -> Floats:
    """Gaussian vectors of very different lengths."""
    rng = np.random.default_rng([seed, dim])
    return (rng.normal(size=(VECTORS, dim)) * np.exp(rng.uniform(-2, 2, (VECTORS, 1)))).astype(np.float32)


def round_trip(kind: Kind, dim: int, *, outliers: bool = False) -> RoundTrip:
    """Quantize one page: keys with an offset, as real ones have; `outliers` makes two value channels loud."""
    k, v = gaussian_page(dim, 1), gaussian_page(dim, 2)
    k += 20 * np.random.default_rng(3).normal(size=dim).astype(np.float32)
    if outliers:
        v = np.random.default_rng(4).normal(size=v.shape).astype(np.float32)
        v[:, 3] += 30
        v[:, dim // 2 + 1] -= 20
    codes = seal.quantize_page(k, v, kind)
    k_back, v_back = attend.dequantize_page(codes, kind)
    return RoundTrip(kind=kind, k=k, v=v, codes=codes, k_back=k_back, v_back=v_back)


def check_distortion(trip: RoundTrip) -> None:
    """The errors are the known ones within 2 %, and no better than theory allows."""
    kind = trip.kind
    parts = (
        ("keys", kind.k_bits, ValueScale.UNBIASED, trip.k_error),
        ("values", kind.v_bits, kind.value_scale, trip.v_error),
    )
    for name, bits, scale, error in parts:
        least = gaussian_error(bits, trip.dim)
        want = least / (1 - least) if scale is ValueScale.UNBIASED else least
        detail = f"{name} at {bits} bits: expected {want:.5f}, got {error:.5f}"
        expect(abs(error / want - 1) < 0.02, DISTORTION, detail)
        expect(4.0**-bits < error < math.sqrt(3) * math.pi / 2 * 4.0**-bits, DISTORTION, detail)


def check_outliers(trip: RoundTrip) -> None:
    """Two loud channels out of many do not make the relative error larger than on Gaussian vectors."""
    limit = gaussian_error(trip.kind.v_bits, trip.dim)
    expect(trip.v_error <= limit, OUTLIERS, f"expected at most {limit:.5f}, got {trip.v_error:.5f}")


def inner_products(x: Doubles, back: Doubles) -> tuple[float, float]:
    """Slope of <q, back> over <q, x>, and dim * variance of the difference, for unit x and random unit q."""
    length = np.linalg.norm(x, axis=1, keepdims=True)
    q = np.random.default_rng(5).normal(size=(x.shape[1], 64))
    q /= np.linalg.norm(q, axis=0)
    true, got = x / length @ q, back / length @ q
    return float((true * got).sum() / (true**2).sum()), float(x.shape[1] * np.var(got - true))


def check_inner_products(trip: RoundTrip) -> None:
    """Unbiased scales give slope 1, least squares 1 minus the error."""
    k_slope, _ = inner_products(trip.k_centred, trip.k_back - trip.k_mean)
    expect(abs(k_slope - 1) < 0.006, INNER_PRODUCTS, f"keys: expected slope 1, got {k_slope:.4f}")
    unbiased = trip.kind.value_scale is ValueScale.UNBIASED
    want = 1.0 if unbiased else 1 - gaussian_error(trip.kind.v_bits, trip.dim)
    v_slope, _ = inner_products(trip.v.astype(np.float64), trip.v_back)
    detail = f"values: expected slope {want:.4f}, got {v_slope:.4f}"
    expect(abs(v_slope - want) < 0.006, INNER_PRODUCTS, detail)


# ---- Whole sealed pages.


def page_cases(layer: LayerSpec) -> dict[str, Floats]:
    """Pages [H, T, D] of ordinary and nasty values, by name."""
    rng = np.random.default_rng(6)
    shape = layer.kv_heads, layer.rules.page, layer.head_dim
    normal = rng.normal(size=shape)
    loud, lonely = normal.copy(), np.zeros(shape)
    loud[..., 0] += 30
    loud[..., -1] -= 20
    lonely[:, -1, 1] = 1.5
    huge = 60000 * np.sign(normal)
    cases = {
        "Gaussian": normal,
        "with an offset": normal + 5 * rng.normal(size=(layer.kv_heads, 1, layer.head_dim)),
        "zero": np.zeros(shape),
        "negative zero": np.full(shape, -0.0),
        "constant": np.full(shape, 0.1),
        "one value": lonely,
        "loud channels": loud,
        "largest halves": huge,
        "smallest halves": 1e-7 * normal,
        "large and small": np.where(normal > 0, huge, 1e-7 * normal),
        "beyond a half": 1e6 * normal,
        "alternating signs": np.broadcast_to((-1.0) ** np.arange(layer.head_dim), shape),
    }
    return {name: page.astype(np.float32) for name, page in cases.items()}


def sealed_pages_of(kernels: Kernels, layer: LayerSpec, k: Floats, v: Floats) -> NDArray[np.int32]:
    """Packed pages [pages, words] of keys and values [H, pages * T, D], sealed in one step."""
    page = layer.rules.page
    count = k.shape[1] // page
    more = ((0, 0), (0, page + 1), (0, 0))  # the recent page, and the token that makes the others old
    k, v = (np.ascontiguousarray(np.pad(x, more)[None]) for x in (k, v))
    packed = np.full(layer.packed_shape(count), -1, np.int32)
    step = PagedStep(
        q=np.zeros((1, layer.heads, *k.shape[2:]), np.float32),
        k=k,
        v=v,
        hot=np.zeros(layer.hot_shape(1), np.float16),
        packed=packed,
        hot_table=np.zeros((1, 1), np.int32),
        packed_table=np.arange(count, dtype=np.int32)[None],
        context=np.zeros(1, np.int32),
        num_new=np.array([k.shape[2]], np.int32),
    )
    kernels.seal(layer, step)
    return packed


def check_same_pages(kind: Kind, *, head_dim: int, page: int = 8, kv_heads: int = 1) -> None:
    """Every case as keys, another one as values of the same page."""
    sizes = {"heads": kv_heads, "kv_heads": kv_heads, "head_dim": head_dim, "page": page, "recent": page}
    layer = make_layer(kind, sinks=0, window=None, **sizes)
    cases = page_cases(layer)
    names, pages = list(cases), list(cases.values())
    k, v = np.concatenate(pages, 1), np.concatenate(pages[1:] + pages[:1], 1)
    want, got = (sealed_pages_of(kernels, layer, k, v) for kernels in (REFERENCE, NATIVE))
    pairs = zip(names, names[1:] + names[:1], strict=True)
    different = [pair for pair, a, b in zip(pairs, want, got, strict=True) if not np.array_equal(a, b)]
    expect(not different, SAME_PAGES, f"different pages of (keys, values): {different}")


# ---- Streams through a layer.


def expect_close(got: Doubles, want: Doubles, tolerance: float, check: str) -> None:
    """Largest difference, relative to the largest output."""
    error = np.abs(got - want).max() / np.abs(want).max()
    expect(error <= tolerance, check, f"expected a relative error of {tolerance:.0e}, got {error:.1e}")


def check_matches_native(kind: Kind, **sizes: int | None) -> None:
    """Outputs within float32 rounding, pools to the bit."""
    stream = Stream(make_layer(kind, **sizes), 90)
    want = stream.run(NATIVE, cuts_of(90, 13))
    packed, hot, read = stream.packed, stream.hot, stream.pages_read
    stream.allocate()
    got = stream.run(REFERENCE, cuts_of(90, 13))
    expect(packed is not None and np.array_equal(stream.packed, packed), NATIVE_MATCH, "packed pools differ")
    expect(np.array_equal(stream.hot, hot), NATIVE_MATCH, "hot pools differ")
    detail = f"expected {read} pages read, got {stream.pages_read}"
    expect(stream.pages_read == read > 0, NATIVE_MATCH, detail)
    expect_close(got, want, 2e-6, NATIVE_MATCH)


def check_by_mask(**sizes: int | None) -> None:
    """The reference, exact kind."""
    stream = Stream(make_layer(Kind.FP, **sizes), 90)
    expect_close(stream.run(REFERENCE, cuts_of(90, 13)), dense(stream), 1e-6, BY_MASK)


def check_chunks(kernels: Kernels, kind: Kind, **sizes: int | None) -> None:
    """One token at a time gives the same bits as chunks of any size."""
    stream = Stream(make_layer(kind, **sizes), 90)
    want = stream.run(kernels, cuts_of(90, 1))
    expect(stream.pages_read > 0, CHUNKS, "nothing was read packed")
    for chunk in (5, 8, 31):
        stream.allocate()
        same = np.array_equal(stream.run(kernels, cuts_of(90, chunk)), want)
        expect(same, CHUNKS, f"chunks of {chunk} differ from single tokens")


# ---- A packed page by its definition, sharing no code with the kernels.


def rotation_matrix(dim: int) -> Doubles:
    """Hadamard (x) DCT-II, orthonormal, from their definitions."""
    power = dim & -dim
    odd = dim // power
    hadamard = [[(-1) ** (i & j).bit_count() / math.sqrt(power) for j in range(power)] for i in range(power)]
    rows, columns = np.mgrid[:odd, :odd]
    dct = np.sqrt(np.where(rows == 0, 1, 2) / odd) * np.cos(math.pi * (columns + 0.5) * rows / odd)
    return np.kron(np.array(hadamard), dct)


def read_codes(words: NDArray[np.int32], bits: int, depth: int) -> NDArray[np.int64]:
    """Codes [depth, lanes] of words [group][word][lane]: octet c = i // 8, nibble n = 2 * (i % 4) + i // 4 % 2."""
    per_lane = [{2: (o + 1) // 2, 3: (o + 1) // 2 + 1, 4: o, 8: 2 * o}[bits] for o in _octets(depth)]
    by_lane = words.view(np.uint32).astype(np.int64).reshape(sum(per_lane), -1)
    codes = np.empty((depth, by_lane.shape[1]), np.int64)
    for element in range(depth):
        group, i = divmod(element, 32)
        own = by_lane[sum(per_lane[:group]) :][: per_lane[group]]
        octet, nibble = i // 8, 2 * (i % 4) + i // 4 % 2
        if bits == 8:
            codes[element] = own[i // 4] >> 8 * (i % 4) & 255
        elif bits == 4:
            codes[element] = own[octet] >> 4 * nibble & 15
        else:
            codes[element] = own[octet // 2] >> 4 * nibble + 2 * (octet % 2) & 3
        if bits == 3:
            sign = 4 * nibble + (2 if octet in (0, 2) else 0) + (1 if octet in (2, 3) else 0)
            codes[element] |= (own[-1] >> sign & 1) << 2
    return codes


def _octets(depth: int) -> list[int]:
    return [4] * (depth // 32) + [depth % 32 // 8] * (depth % 32 > 0)


def levels_of(codes: NDArray[np.int64], code: Code) -> Doubles:
    """Sign in the top bit, magnitude below; or integers in two's complement; or floats."""
    if code is Code.UNIFORM:
        return codes.astype(np.uint8).view(np.int8) / 32
    if code is Code.E4M3:
        return codes.astype(np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64) / 256
    top = 1 << (code.bits - 1)
    return np.where(codes & top, -1, 1) * np.array(LEVELS[code.bits])[codes & (top - 1)]


def read_head(words: NDArray[np.int32], layout: PackedLayout, kind: Kind) -> tuple[Doubles, Doubles]:
    """Keys and values [T, D] of one head of a packed page."""
    tokens, dim = layout.page, layout.head_dim
    ends = np.cumsum([layout.v_codes, layout.k_scales - layout.v_codes, tokens // 2, tokens // 2])
    k_words, v_words, *halves = np.split(words, ends)
    k_scales, v_scales, mean = (part.view(np.float16).astype(np.float64) for part in halves)
    k = levels_of(read_codes(k_words, layout.k_bits, dim), kind.k_code).T
    v = levels_of(read_codes(v_words, layout.v_bits, tokens), kind.v_code)
    matrix = rotation_matrix(dim)
    return k * k_scales[:, None] @ matrix + mean, v * v_scales[:, None] @ matrix


def read_pool(stream: Stream) -> tuple[Doubles, Doubles]:
    """Keys and values [H, pages * T, D] of all packed pages of a stream, in order."""
    assert stream.packed is not None and stream.packed_table is not None
    layout, kind = stream.layer.packed_layout, stream.layer.kind
    heads = [
        [read_head(words, layout, kind) for words in np.split(stream.packed[number], layout.kv_heads)]
        for number in stream.packed_table[0]
    ]
    k, v = (np.concatenate([[head[part] for head in page] for page in heads], 1) for part in (0, 1))
    return k, v


def dense_over_pages(stream: Stream) -> Doubles:
    """Attention of all tokens, without a window: packed where the rule says so, else rounded to fp16."""
    layer, rules = stream.layer, stream.layer.rules
    exact = [x.astype(np.float16).astype(np.float64) for x in (stream.k, stream.v)]
    packed = read_pool(stream)
    out = np.zeros((stream.length, layer.heads, layer.head_dim))
    for order in range(stream.length):
        pages = (order - rules.sinks) // rules.page - rules.recent // rules.page
        end = rules.sinks + max(0, pages) * rules.page
        parts = [
            np.concatenate([x[:, : rules.sinks], p[:, : end - rules.sinks], x[:, end:]], 1)[:, : order + 1]
            for x, p in zip(exact, packed, strict=True)
        ]
        k, v = (np.repeat(part, layer.heads // layer.kv_heads, 0) for part in parts)
        scores = np.einsum("hd,hkd->hk", stream.q[:, order].astype(np.float64), k) * layer.scale
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out[order] = np.einsum("hk,hkd->hd", weights / weights.sum(-1, keepdims=True), v)
    return out


def check_dequantized(kernels: Kernels, kind: Kind, *, offset: float, **sizes: int | None) -> None:
    """Keys with an offset: q.mean, once per page, must give what adding the mean to every key gives."""
    stream = Stream(make_layer(kind, window=None, **sizes), 90)
    direction = np.random.default_rng(7).normal(size=stream.layer.head_dim)
    stream.k += (offset * direction).astype(np.float32)
    got = stream.run(kernels, cuts_of(90, 13))
    expect(stream.pages_read > 0, DEQUANTIZED, "nothing was read packed")
    expect_close(got, dense_over_pages(stream), 1e-5, DEQUANTIZED)
