"""The quantizer in numbers: codebook, rotation, codes, scales, distortion, inner products, bits."""

from __future__ import annotations

import ctypes
import itertools
import math
from fractions import Fraction
from functools import cache

import checks
import ml_dtypes
import numpy as np
import pytest
from checks import RoundTrip
from numpy.typing import NDArray
from streams import NATIVE, REFERENCE, make_layer

from kvedge.plugins.reference.pages import PageCodes, pack, unpack
from kvedge.plugins.reference.quantize import decode, encode, nearest
from kvedge.plugins.reference.rotation import rotate, unrotate
from kvedge.targets.codebook import BYTE_LEVELS, BYTE_STEPS, LEVELS, Code, boundaries
from kvedge.targets.kinds import Kind, ValueScale
from kvedge.targets.packing import LAYOUT_VERSION, PackedLayout, bit_place, lane_words

BITS = (2, 3, 4)
NORMAL = {code.bits: code for code in (Code.NORMAL_2, Code.NORMAL_3, Code.NORMAL_4)}
PACKED_KINDS = [kind for kind in Kind if not kind.is_exact]
EQUAL_KINDS = (Kind.INT2, Kind.INT3, Kind.INT4)
DIMS = (8, 16, 24, 40, 64, 80, 96, 112, 128, 256)
MODEL_DIMS = (64, 80, 96, 128, 256)

kinds = pytest.mark.parametrize("kind", PACKED_KINDS, ids=lambda kind: kind.value)
equal_kinds = pytest.mark.parametrize("kind", EQUAL_KINDS, ids=lambda kind: kind.value)


@cache
def trip(kind: Kind, dim: int, *, outliers: bool = False) -> RoundTrip:
    """One round trip serves several tests."""
    return checks.round_trip(kind, dim, outliers=outliers)


# ---- 1. The codebook.

PINNED = {
    2: (0.4527800, 1.5104176),
    3: (0.2450942, 0.7560053, 1.3439093, 2.1519457),
    4: (0.1283950, 0.3880483, 0.6567591, 0.9423405, 1.2562312, 1.6180464, 2.0690172, 2.7325896),
}
PINNED_EDGES = {
    2: (0.9815988,),
    3: (0.5005497, 1.0499573, 1.7479275),
    4: (0.2582217, 0.5224037, 0.7995498, 1.0992858, 1.4371388, 1.8435318, 2.4008034),
}
CODEBOOK_ERROR = {2: 0.1174818, 3: 0.0345478, 4: 0.0095010}


def density(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def tail(x: float) -> float:
    """Probability above x."""
    return math.erfc(x / math.sqrt(2)) / 2


def cells(bits: int) -> list[tuple[float, float, float]]:
    """(lower edge, level, upper edge) of the positive half."""
    edges = (0.0, *boundaries(bits), math.inf)
    return list(zip(edges[:-1], LEVELS[bits], edges[1:], strict=True))


@pytest.mark.parametrize("bits", BITS)
def test_codebook_is_the_published_one(bits: int) -> None:
    assert LEVELS[bits] == pytest.approx(PINNED[bits], abs=1e-6)
    assert boundaries(bits) == pytest.approx(PINNED_EDGES[bits], abs=1e-6)


@pytest.mark.parametrize("bits", BITS)
def test_levels_are_the_means_of_their_cells(bits: int) -> None:
    for low, level, high in cells(bits):
        mean = (density(low) - density(high)) / (tail(low) - tail(high))
        assert abs(level - mean) < 1e-7


@pytest.mark.parametrize("bits", BITS)
def test_boundaries_are_midpoints(bits: int) -> None:
    levels = np.array(LEVELS[bits])
    assert len(levels) == 2 ** (bits - 1)
    assert boundaries(bits) == pytest.approx((levels[:-1] + levels[1:]) / 2, abs=1e-15)


@pytest.mark.parametrize("bits", BITS)
def test_error_of_the_codebook(bits: int) -> None:
    """E[(x - level)**2] over the unit normal, by parts."""
    error = 1.0
    for low, level, high in cells(bits):
        error += 2 * level**2 * (tail(low) - tail(high)) - 4 * level * (density(low) - density(high))
    assert error == pytest.approx(CODEBOOK_ERROR[bits], abs=1e-7)


@pytest.mark.parametrize("bits", BITS)
def test_cpp_has_the_same_codebook(bits: int) -> None:
    count = 2 ** (bits - 1)
    levels, edges = np.full(count + 1, -1, np.float32), np.full(count, -1, np.float32)
    pointers = (ctypes.c_void_p(array.ctypes.data) for array in (levels, edges))
    NATIVE.library.kvedge_codebook(ctypes.c_int32(bits), *pointers)
    assert levels.tolist() == [*np.array(LEVELS[bits], np.float32), -1]
    assert edges.tolist() == [*np.array(boundaries(bits), np.float32), -1]


@pytest.mark.parametrize("bits", BITS)
def test_cpp_has_the_same_bytes(bits: int) -> None:
    levels = np.zeros(2 ** (bits - 1), np.int8)
    step = NATIVE.library.kvedge_byte_codebook(ctypes.c_int32(bits), ctypes.c_void_p(levels.ctypes.data))
    assert tuple(levels.tolist()) == BYTE_LEVELS[bits] and np.float32(BYTE_STEPS[bits]) == np.float32(step)


@pytest.mark.parametrize(("bits", "most"), [(2, 3e-4), (3, 1.1e-3), (4, 4.2e-3)])
def test_bytes_are_close_to_the_levels(bits: int, most: float) -> None:
    error = np.array(BYTE_LEVELS[bits]) * BYTE_STEPS[bits] - np.array(LEVELS[bits])
    assert np.sqrt(np.mean(error**2)) < most


@pytest.mark.parametrize("bits", BITS)
def test_nearest_level_and_ties(bits: int) -> None:
    """A tie goes to the smaller magnitude; the sign is the top bit; zeros are positive."""
    top = 1 << (bits - 1)
    edges = np.array(boundaries(bits), np.float32)
    below, above = np.arange(len(edges)), np.arange(len(edges)) + 1
    rows: list[tuple[NDArray[np.float32], NDArray[np.int64]]] = [
        (edges, below),
        (np.nextafter(edges, np.float32(9)), above),
        (-edges, below | top),
        (-np.nextafter(edges, np.float32(9)), above | top),
        (np.array([0.0, -0.0, 1e9, -1e9], np.float32), np.array([0, 0, top - 1, 2 * top - 1])),
    ]
    for values, codes in rows:
        assert nearest(values, NORMAL[bits]).tolist() == codes.tolist()


@pytest.mark.parametrize("bits", BITS)
def test_codes_decode_to_signed_levels(bits: int) -> None:
    levels = np.array(LEVELS[bits], np.float32)
    assert decode(np.arange(1 << bits, dtype=np.uint8), NORMAL[bits]).tolist() == [*levels, *-levels]


def test_floats_are_those_of_8_bits() -> None:
    """All numbers of e4m3, everything between two of them and the ties, beside another implementation's."""
    codes = np.array([code for code in range(256) if code & 127 != 127], np.uint8)
    floats = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert np.array_equal(decode(codes, Code.E4M3) * 256, floats)
    positive = np.unique(np.abs(floats))
    ties = (positive[:-1] + positive[1:]) / 2
    near = [np.nextafter(ties, np.float32(side)) for side in (0, 999)]
    many = np.float32(2) ** np.random.default_rng(0).uniform(-30, 8.8, 200_000).astype(np.float32)
    values = np.minimum(np.concatenate([positive, ties, *near, many]), np.float32(448))
    wanted = values.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    assert np.array_equal(nearest(values / 256, Code.E4M3), wanted)
    assert np.array_equal(nearest(-values / 256, Code.E4M3), wanted | (values > 0) * np.uint8(128))
    assert nearest(np.array([1.751, 9.0, -9.0, -0.0], np.float32), Code.E4M3).tolist() == [126, 126, 254, 0]


@pytest.mark.parametrize(("code", "rms"), [(Code.UNIFORM, 0.0065), (Code.E4M3, 0.0257)])
def test_error_of_8_bits(code: Code, rms: float) -> None:
    """On normal vectors of 128 channels: what the message that refuses fp8 says."""
    x = np.random.default_rng(0).normal(size=(4096, 128)).astype(np.float32)
    codes, scales = encode(x, code, ValueScale.LEAST_SQUARES)
    back = decode(codes, code) * scales.astype(np.float32)[:, None]
    assert math.sqrt(checks.relative_error(x - back, x)) == pytest.approx(rms, rel=0.02)


# ---- 2. Rotation and codes.


@pytest.mark.parametrize("dim", DIMS)
def test_rotation_is_orthonormal(dim: int) -> None:
    matrix = rotate(np.eye(dim, dtype=np.float32)).T.astype(np.float64)
    assert np.abs(matrix @ matrix.T - np.eye(dim)).max() < 1e-6
    assert np.abs(matrix - checks.rotation_matrix(dim)).max() < 1e-6


@pytest.mark.parametrize("dim", DIMS)
def test_the_transpose_unrotates(dim: int) -> None:
    identity = np.eye(dim, dtype=np.float32)
    forth, back = rotate(identity), unrotate(identity)
    assert np.abs(back - forth.T).max() < 1e-6
    is_power_of_two = dim & (dim - 1) == 0
    assert (np.abs(forth - forth.T).max() < 1e-6) == is_power_of_two
    x = np.random.default_rng(0).normal(size=(3, 5, dim)).astype(np.float32)
    assert np.abs(unrotate(rotate(x)) - x).max() < 2e-6


@pytest.mark.parametrize("scale", ValueScale)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dim", (64, 80))
def test_codes_of_decoded_codes_are_the_same(dim: int, bits: int, scale: ValueScale) -> None:
    codes, scales = encode(rotate(checks.gaussian_page(dim, 0)), NORMAL[bits], scale)
    back = unrotate(decode(codes, NORMAL[bits]) * scales.astype(np.float32)[:, None])
    again, _ = encode(rotate(back), NORMAL[bits], scale)
    assert np.array_equal(again, codes)
    assert len(np.unique(codes)) == 1 << bits


@pytest.mark.parametrize(("page", "kv_heads"), [(8, 3), (16, 1), (64, 1)])
@pytest.mark.parametrize("dim", DIMS)
@kinds
def test_numpy_and_cpp_seal_the_same_bits(kind: Kind, dim: int, page: int, kv_heads: int) -> None:
    checks.check_same_pages(kind, head_dim=dim, page=page, kv_heads=kv_heads)


def test_pages_of_every_case_are_sound() -> None:
    """Scales are finite and 0 for zero vectors only; so the comparison above is of real pages."""
    layer = make_layer(Kind.INT3, sinks=0, window=None, kv_heads=1, head_dim=24)
    cases = checks.page_cases(layer)
    pages = np.concatenate(list(cases.values()), 1)
    sealed = checks.sealed_pages_of(NATIVE, layer, pages, pages)
    scales = {}
    for name, words in zip(cases, sealed, strict=True):
        codes = unpack(words, layer.packed_layout)
        assert np.isfinite([*codes.k_scales, *codes.v_scales, *codes.k_mean]).all(), name
        scales[name] = bool(codes.k_scales.all()), bool(codes.v_scales.all())
    silent = {"zero": (False, False), "negative zero": (False, False), "one value": (True, False)}
    steady = dict.fromkeys(("constant", "alternating signs"), (False, True))
    assert scales == dict.fromkeys(cases, (True, True)) | silent | steady


@pytest.mark.parametrize(("dim", "page"), [(24, 16), (64, 64), (80, 24), (40, 8), (128, 64)])
@kinds
def test_pages_keep_codes_bit_by_bit(kind: Kind, dim: int, page: int) -> None:
    """pack and unpack against the layout as it is written down."""
    layout = PackedLayout(kv_heads=1, head_dim=dim, page=page, k_bits=kind.k_bits, v_bits=kind.v_bits)
    rng = np.random.default_rng(0)
    k_codes, v_codes = (rng.integers(0, 1 << bits, (page, dim), np.uint8) for bits in (kind.k_bits, kind.v_bits))
    k_scales, v_scales, k_mean = (rng.normal(size=n).astype(np.float16) for n in (page, page, dim))
    codes = PageCodes(k_codes=k_codes, v_codes=v_codes, k_scales=k_scales, v_scales=v_scales, k_mean=k_mean)
    words = pack(codes, layout)
    assert words.dtype == np.int32 and words.shape == (layout.head_words,)
    got = checks.read_codes(words[: layout.v_codes], kind.k_bits, dim).T
    assert np.array_equal(got, k_codes)
    got = checks.read_codes(words[layout.v_codes : layout.k_scales], kind.v_bits, page)
    assert np.array_equal(got, v_codes)
    back = unpack(words, layout)
    for name, want in vars(codes).items():
        assert np.array_equal(getattr(back, name), want), name


# ---- 3. Distortion.

NORM_SCALE_ERROR = [
    (3, 64, 0.03339),
    (3, 80, 0.03362),
    (3, 96, 0.03377),
    (2, 128, 0.11601),
    (3, 128, 0.03398),
    (4, 128, 0.00933),
    (3, 256, 0.03426),
]


@pytest.mark.parametrize("dim", MODEL_DIMS)
@equal_kinds
def test_distortion_of_gaussian_vectors(kind: Kind, dim: int) -> None:
    checks.check_distortion(trip(kind, dim))


@pytest.mark.parametrize("kind", (Kind.K4V3, Kind.K4V2, Kind.K3V2), ids=lambda kind: kind.value)
def test_distortion_with_different_bits(kind: Kind) -> None:
    checks.check_distortion(trip(kind, 64))
    checks.check_inner_products(trip(kind, 64))


@pytest.mark.parametrize(("bits", "dim", "want"), NORM_SCALE_ERROR)
def test_distortion_of_the_codes_alone(bits: int, dim: int, want: float) -> None:
    """With the norm as scale, codes are compared with the codebook and nothing else."""
    one = trip(EQUAL_KINDS[bits - 2], dim)
    norms = np.linalg.norm(one.v, axis=1, keepdims=True) / math.sqrt(dim)
    back = checks.levels_of(one.codes.v_codes.astype(np.int64), NORMAL[bits]) * norms
    error = checks.relative_error(one.v @ checks.rotation_matrix(dim).T - back, one.v)
    assert error == pytest.approx(want, rel=0.02)


# ---- 4. Outliers.


@pytest.mark.parametrize("dim", (64, 80, 128))
@equal_kinds
def test_outliers_cost_nothing(kind: Kind, dim: int) -> None:
    checks.check_outliers(trip(kind, dim, outliers=True))


OUTLIER_ERROR = [(2, 0.067), (3, 0.0293), (4, 0.0080)]


@pytest.mark.parametrize(("bits", "want"), OUTLIER_ERROR)
def test_without_rotation_outliers_ruin_the_rest(bits: int, want: float) -> None:
    one = trip(EQUAL_KINDS[bits - 2], 128, outliers=True)
    assert one.v_error == pytest.approx(want, rel=0.02)
    codes, scales = encode(one.v, NORMAL[bits], ValueScale.LEAST_SQUARES)
    back = decode(codes, NORMAL[bits]) * scales.astype(np.float32)[:, None]
    assert checks.relative_error(one.v - back, one.v) > 8 * one.v_error


# ---- 5. Inner products: slope, and dim * variance.

VARIANCE = {2: (0.1315, 0.116), 3: (0.0349, 0.0338), 4: (0.0093, 0.0092)}
"""Keys (unbiased) and values (least squares) at head_dim 128."""


@pytest.mark.parametrize("dim", MODEL_DIMS)
@equal_kinds
def test_slope_of_inner_products(kind: Kind, dim: int) -> None:
    checks.check_inner_products(trip(kind, dim))


@pytest.mark.parametrize("bits", BITS)
def test_variance_of_inner_products(bits: int) -> None:
    one = trip(EQUAL_KINDS[bits - 2], 128)
    _, keys = checks.inner_products(one.k_centred, one.k_back - one.k_mean)
    _, values = checks.inner_products(one.v.astype(np.float64), one.v_back)
    assert (keys, values) == pytest.approx(VARIANCE[bits], rel=0.05)


# ---- 7. Bits. (6, exact attention over pages, is in test_kernels.py.)


@pytest.mark.parametrize("page", (8, 16, 64))
@pytest.mark.parametrize("dim", DIMS)
@kinds
def test_bits_per_value(kind: Kind, dim: int, page: int) -> None:
    """Codes, a half per vector, and a half per channel and page of keys: nothing else."""
    for kv_heads in (1, 2, 3, 8):
        layer = make_layer(kind, heads=kv_heads, kv_heads=kv_heads, head_dim=dim, page=page, recent=page)
        layout, bits = layer.packed_layout, (kind.k_bits, kind.v_bits)
        codes = [Fraction(32 * lane_words(b, depth), depth) for b, depth in zip(bits, (dim, page), strict=True)]
        documented = sum(codes) / 2 + Fraction(16, dim) + Fraction(8, page)
        assert codes == list(bits) or dim % 32 or page % 32
        pool = np.zeros(layer.packed_shape(5), np.int32)
        assert Fraction(8 * pool.nbytes, 5 * 2 * kv_heads * dim * page) == documented
        assert layout.bits_per_value == float(documented)
        assert layout.page_bytes * 5 == pool.nbytes
        words = NATIVE.library.kvedge_page_words(*(ctypes.c_int32(n) for n in (kv_heads, dim, page, *bits)))
        assert words == layout.page_words


@pytest.mark.parametrize("window", (None, 3, 40))
@pytest.mark.parametrize("kind", (Kind.FP, *PACKED_KINDS), ids=lambda kind: kind.value)
def test_planned_bytes_are_allocated_bytes(kind: Kind, window: int | None) -> None:
    layer = make_layer(kind, kv_heads=2, head_dim=24, window=window)
    capacity = layer.rules.capacity(200, 16)
    hot = np.zeros(layer.hot_shape(capacity.hot_pages), layer.kind.hot_dtype.value)
    packed = np.zeros(layer.packed_shape(capacity.packed_pages), np.int32)
    assert layer.cache_bytes(capacity) == hot.nbytes + packed.nbytes
    assert (packed.nbytes > 0) == layer.rules.packs


def test_cpp_has_the_same_layout() -> None:
    """Version, and the place of every bit of every group."""
    assert NATIVE.library.kvedge_layout_version() == LAYOUT_VERSION
    got = (ctypes.c_int32 * 2)()
    for bits, octets in itertools.product((*BITS, 8), (1, 2, 3, 4)):
        for element, bit in itertools.product(range(8 * octets), range(bits)):
            NATIVE.library.kvedge_bit_place(*(ctypes.c_int32(n) for n in (bits, octets, element, bit)), got)
            assert tuple(got) == bit_place(bits, octets, element, bit)


# ---- The mean is exact.


@pytest.mark.parametrize("offset", (0.0, 1.0, 10.0))
@pytest.mark.parametrize("dim", (16, 24, 64, 80, 128))
@pytest.mark.parametrize("kind", (Kind.INT8, Kind.FP8, Kind.INT4, Kind.INT2, Kind.K4V2), ids=lambda kind: kind.value)
def test_packed_attention_is_attention_over_dequantized_keys(kind: Kind, dim: int, offset: float) -> None:
    checks.check_dequantized(NATIVE, kind, offset=offset, head_dim=dim)


@pytest.mark.parametrize("dim", (24, 64))
def test_the_reference_reads_dequantized_keys(dim: int) -> None:
    checks.check_dequantized(REFERENCE, Kind.INT3, offset=10.0, head_dim=dim)
