"""Which layers share their kernels."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from streams import make_layer, make_rope

pytest.importorskip("triton", reason="Triton is not installed: forms were not compared with kernels")

from kvedge.plugins.cuda.compile import Compiled
from kvedge.plugins.cuda.forms import Form, form_of, layer_forms
from kvedge.plugins.cuda.variants import LayerForm, options, variants
from kvedge.targets.kinds import Kind
from kvedge.targets.spec import CacheSpec, LayerSpec

LAYER = make_layer()
ROPES = (make_rope(16), make_rope(8), replace(make_rope(16), interleaved=True))


def rules(layer: LayerSpec, **changes: object) -> LayerSpec:
    return replace(layer, rules=replace(layer.rules, **changes))  # type: ignore[arg-type]


ALIKE = [
    LAYER,
    rules(LAYER, window=80),
    rules(LAYER, sinks=9),
    rules(LAYER, recent=16),
    replace(LAYER, scale=0.3),
]
"""What differs here, kernels take as arguments."""

DIFFERENT = [
    LAYER,
    make_layer(heads=8),
    make_layer(heads=2),
    make_layer(head_dim=24),
    make_layer(page=16, recent=16),
    make_layer(softcap=2.0),
    make_layer(Kind.INT4),
    make_layer(Kind.K3V2),
    make_layer(Kind.FP),
    make_layer(window=9),
    make_layer(window=None),
    replace(LAYER, rope=1),
    replace(LAYER, rope=2),
]


def cache_of(layers: list[LayerSpec]) -> CacheSpec:
    numbered = tuple(replace(layer, index=index) for index, layer in enumerate(layers))
    return CacheSpec(max_positions=1024, layers=numbered, ropes=ROPES)


def constants(cache: CacheSpec, layer: LayerSpec, bias_pairs: int) -> list[object]:
    """All that a layer's kernels are compiled for."""
    form = form_of(cache, layer, bias_pairs)
    of_layer = LayerForm(
        layer=layer, rotary_pairs=form.rotary_pairs, interleaved=form.interleaved, bias_pairs=form.bias_pairs
    )
    return [(v.name, v.constants, options(v.kernel), layer.kind.hot_dtype) for v in variants(of_layer)]


def test_layers_of_one_form_have_equal_kernels() -> None:
    cache = cache_of(ALIKE)
    assert set(layer_forms(cache, {}).values()) == {0}
    assert all(constants(cache, layer, 0) == constants(cache, cache.layers[0], 0) for layer in cache.layers)


def test_other_kernels_are_of_another_form() -> None:
    cache = cache_of(DIFFERENT)
    forms = layer_forms(cache, {})
    assert list(forms.values()) == list(range(len(DIFFERENT)))
    for one, other in combinations(cache.layers, 2):
        assert constants(cache, one, 0) != constants(cache, other, 0), (one, other)


def test_key_biases_make_forms() -> None:
    cache = cache_of([LAYER, LAYER, LAYER, LAYER])
    assert layer_forms(cache, {1: 3, 2: 3, 3: 5}) == {0: 0, 1: 1, 2: 1, 3: 2}
    assert constants(cache, cache.layers[0], 0) != constants(cache, cache.layers[1], 3)


def test_all_of_a_form_reaches_the_kernels() -> None:
    """A field that no kernel is compiled for would split forms for nothing."""
    base = form_of(cache_of([LAYER]), LAYER, 0)
    changed = [form_of(cache_of(DIFFERENT), layer, 0) for layer in cache_of(DIFFERENT).layers]
    varied = {name for name in vars(base) for form in changed if getattr(form, name) != getattr(base, name)}
    assert varied | {"bias_pairs", "kv_heads"} == set(Form.__dataclass_fields__)
    assert Compiled.__dataclass_fields__.keys() >= {"kind"}  # the bundle names it, so it is part of the form
