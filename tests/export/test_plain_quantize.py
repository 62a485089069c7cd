"""Sealing in plain operators against the reference: equal, but for what lies within rounding of a boundary."""

from __future__ import annotations

import math

import numpy as np
import pytest
from plain_layers import run_formula
from streams import make_layer, make_rope

from kvedge.export.plain.key_bias import PlainBias
from kvedge.export.plain.key_bias import bias_at as plain_bias_at
from kvedge.export.plain.quantize import page_words
from kvedge.export.standard.expr import Expr
from kvedge.plugins.key_bias import bias_at, key_bias
from kvedge.plugins.reference.pages import PageCodes, head_words, unpack
from kvedge.plugins.reference.quantize import decode
from kvedge.plugins.reference.rotation import rotate
from kvedge.plugins.reference.seal import quantize_page
from kvedge.targets.codebook import UNIFORM_LAST, UNIFORM_STEPS, Code
from kvedge.targets.kinds import Kind
from kvedge.targets.spec import LayerSpec

CLOSE = 1e-6
PAGES = 3
KINDS = (Kind.INT2, Kind.INT3, Kind.INT4, Kind.INT8, Kind.K4V2)


def random_vectors(shape: tuple[int, ...]) -> np.ndarray:
    """Vectors as the ring holds them, some of them zero, some tiny, some large."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=shape) * rng.choice([1e-5, 0.1, 1.0, 100.0], (*shape[:-1], 1))
    x[:, 0, 3] = 0
    return x.astype(np.float16).astype(np.float32)


def sealed(layer: LayerSpec, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    return run_formula(lambda a, b: page_words(layer, a, b), k, v)[0]


def spread(z: np.ndarray, code: Code) -> np.ndarray:
    """What is compared with the boundaries."""
    if code is Code.UNIFORM:
        most = np.abs(z).max(-1, keepdims=True)
        return z * np.divide(UNIFORM_LAST / UNIFORM_STEPS, most, out=np.zeros_like(most), where=most > 0)
    norm = np.linalg.norm(z, axis=-1, keepdims=True)
    return z * np.divide(math.sqrt(z.shape[-1]), norm, out=np.zeros_like(norm), where=norm > 0)


def check_codes(got: np.ndarray, want: np.ndarray, z: np.ndarray, code: Code) -> np.ndarray:
    """Where codes differ, the middle between their levels is the value. Returns the vectors that are equal."""
    middle = (decode(got, code) + decode(want, code)) / 2
    other = got != want
    assert np.abs(middle - spread(z, code))[other].max(initial=0) <= CLOSE
    return ~other.any(-1)


def check_scales(got: np.ndarray, want: np.ndarray, same: np.ndarray) -> None:
    """By at most the last bit, and seldom, where the codes are equal."""
    steps = np.abs(got.view(np.int16).astype(int) - want.view(np.int16).astype(int))[same]
    assert steps.max(initial=0) <= 1
    assert steps.mean() <= 0.02


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_pages_are_the_references(kind: Kind, head_dim: int) -> None:
    layer = make_layer(kind, head_dim=head_dim, page=64, recent=64)
    shape = (PAGES, layer.kv_heads, 64, head_dim)
    k, v = random_vectors(shape) + 1, random_vectors(shape)
    for page, words in enumerate(sealed(layer, k, v)):
        for head in range(layer.kv_heads):
            got = unpack(head_words(words, head, layer.packed_layout), layer.packed_layout)
            _check_page(layer, got, quantize_page(k[page, head], v[page, head], kind), (k[page, head], v[page, head]))


def _check_page(layer: LayerSpec, got: PageCodes, want: PageCodes, tokens: tuple[np.ndarray, np.ndarray]) -> None:
    k, v = tokens
    assert np.array_equal(got.k_mean, want.k_mean)
    k_code, v_code = layer.kind.k_code, layer.kind.v_code
    same = check_codes(got.k_codes, want.k_codes, rotate(k - want.k_mean.astype(np.float32)), k_code)
    check_scales(got.k_scales, want.k_scales, same)
    check_scales(got.v_scales, want.v_scales, check_codes(got.v_codes, want.v_codes, rotate(v), v_code))


def test_a_key_bias_is_turned_to_far_pages() -> None:
    """Angles of hundreds of millions of tokens, of which float32 knows nothing any more."""
    layer = make_layer(Kind.INT3, head_dim=64, page=64, recent=64, sinks=4)
    rope = make_rope(64)
    bias = key_bias(np.random.default_rng(3).normal(size=(layer.kv_heads, 64)).astype(np.float32), rope, 64)
    pages = np.array([0, 1, 255, 256, 257, 65535, 65536, 8_000_000, (1 << 24) - 1, -1], np.int32)

    def formula(table: Expr, numbers: Expr) -> Expr:
        return plain_bias_at(PlainBias(page=table, freqs=bias.freqs, channels=bias.channels), layer.rules, numbers)

    got = run_formula(formula, bias.page, pages)[0]
    for found, page in zip(got[:-1], pages.tolist(), strict=False):
        assert np.abs(found - bias_at(bias, 4 + 64 * page)).max() <= 2e-6


def test_a_page_of_zeros_has_no_scale() -> None:
    layer = make_layer(Kind.INT3, head_dim=64, page=64, recent=64)
    zeros = np.zeros((PAGES, layer.kv_heads, 64, 64), np.float32)
    assert not sealed(layer, zeros, zeros).any()
