"""A whole model in standard operators against the graph that it was made of."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from instruction_sets import WIDEST_FLOATS, copied
from plain_graphs import PlainTrial
from tiny_models import VOCAB, tiny_llama, write_artifact

from kvedge.export.plain.graph import make_plain
from kvedge.export.settings import CacheSettings
from kvedge.export.source import LoadedModel
from kvedge.export.standard.expr import Recorder
from kvedge.export.standard.operators import use_standard_operators
from kvedge.export.trace import TracedModel, trace
from kvedge.export.trial import Trial
from kvedge.export.weights import store_half
from kvedge.plugins import library, schema
from kvedge.plugins.native import native
from kvedge.targets import manifest, names
from kvedge.targets.devices import find_target
from kvedge.targets.errors import KvedgeError
from kvedge.targets.kinds import Kind
from kvedge.targets.plan import plan_memory
from kvedge.targets.profiles import Profile, StepLimits, profiles
from kvedge.targets.spec import CacheSpec

LENGTH = 100
LIMITS = StepLimits(context=LENGTH, chunk=60, sessions=1)
Traced = tuple[LoadedModel, TracedModel]


@pytest.fixture(scope="module")
def traced() -> Traced:
    loaded = tiny_llama()
    return loaded, trace(loaded)


def pool_names(layer: int) -> tuple[str, ...]:
    return names.hot(layer), names.packed(layer), names.hot_out(layer), names.packed_out(layer)


def load(folder: Path) -> tuple[ir.Model, CacheSpec]:
    return ir.load(folder / manifest.GRAPH), manifest.read(folder).cache


def write(traced: Traced, kind: Kind, window: int | None, folder: Path) -> Path:
    loaded, model = traced
    copy = TracedModel(model.model.clone(), model.ropes, model.layer_rope, model.layers, model.key_biases)
    return write_artifact(loaded, copy, CacheSettings(kind=kind, window=window, sinks=4, recent=16, page=8), folder)


EXACT, PACKED = 2e-5, 1e-3
"""Of the standard deviation of the logits; measured: at most 2e-6 and 8e-5."""


@pytest.fixture
def float_op(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The op reads packed pages in floats, where differences mean mistakes and not roundings."""
    path = copied(tmp_path)
    monkeypatch.setattr(library, "library_path", lambda: path)
    if native().reads_integers:
        monkeypatch.setenv(library.ISA_VARIABLE, WIDEST_FLOATS)


CUTS = (1, 2, 9, 60, 61, 62, 79, 100)
"""Ends of steps: one token, a few, a whole page and more, a chunk that no ring holds, an odd tail."""


@pytest.mark.parametrize("kind", [Kind.FP, Kind.INT4, Kind.K4V2])
@pytest.mark.parametrize("window", [37, None])
@pytest.mark.usefixtures("float_op")
def test_logits_are_those_of_the_op(traced: Traced, tmp_path: Path, kind: Kind, window: int | None) -> None:
    """One session for steps of all lengths."""
    compare(write(traced, kind, window, tmp_path / "artifact"), EXACT if kind is Kind.FP else PACKED)


@pytest.mark.usefixtures("float_op")
def test_key_biases_are_kept_apart(traced: Traced, tmp_path: Path) -> None:
    loaded, model = traced
    layer = model.layers[1]
    bias = np.random.default_rng(2).normal(size=(layer.kv_heads, layer.head_dim)).astype(np.float32)
    biased = TracedModel(model.model, model.ropes, model.layer_rope, model.layers, {1: bias})
    folder = write((loaded, biased), Kind.INT4, 37, tmp_path / "artifact")
    nodes = [node for node in load(folder)[0].graph if node.op_type == schema.NAME]
    assert [len(node.inputs) > schema.INPUTS.index("bias_page") for node in nodes] == [True, True]
    assert [node.inputs[schema.INPUTS.index("bias_page")] is None for node in nodes] == [True, False]
    compare(folder, PACKED)


def compare(folder: Path, tolerance: float) -> None:
    """Feed the same to an artifact's graph and to its plain form."""
    cache = manifest.read(folder).cache
    plain = PlainTrial(folder, cache, LIMITS)
    trial = Trial(ir.load(folder / manifest.GRAPH), folder, cache, context=LENGTH)
    ids = np.random.default_rng(0).integers(0, VOCAB, LENGTH).tolist()
    for first, last in itertools.pairwise((0, *CUTS)):
        rows = range(last - first)[-3:]
        want, got = (each.step(ids[first:last], rows) for each in (trial, plain))
        assert np.abs(got - want).max() <= tolerance * want.std()
    assert plain.packed_pages_read == trial.packed_pages_read
    assert (plain.packed_pages_read > 0) == any(rules.packs for rules in cache.groups)


def test_half_weights_make_half_products(traced: Traced, tmp_path: Path) -> None:
    model, cache = load(write(traced, Kind.INT4, 37, tmp_path / "artifact"))
    store_half(model)
    make_plain(model, cache, LIMITS)
    half = [node for node in model.graph if node.op_type == "MatMul" and node.inputs[0].dtype == ir.DataType.FLOAT16]
    assert len(half) == 2 * 4 + 1  # a layer: joined q, k and v, then o, joined gate and up, down; the head
    assert {node.op_type for node in half[0].outputs[0].consumers()} == {"Cast"}
    table = next(node for node in model.graph if node.op_type == "Gather" and "input_ids" in map(_name, node.inputs))
    assert table.inputs[0].dtype == ir.DataType.FLOAT16


def _name(value: ir.Value | None) -> str | None:
    return value.name if value is not None else None


def test_what_is_fixed_and_what_stays(traced: Traced, tmp_path: Path) -> None:
    model, cache = load(write(traced, Kind.INT4, 37, tmp_path / "artifact"))
    before = [[value.name for value in values] for values in (model.graph.inputs, model.graph.outputs)]
    make_plain(model, cache, LIMITS)
    assert [[value.name for value in values] for values in (model.graph.inputs, model.graph.outputs)] == before
    values = {value.name: value.shape for value in (*model.graph.inputs, *model.graph.outputs)}
    dims = {str(dim) for shape in values.values() for dim in shape if not isinstance(dim, int)}
    assert dims == {"new", "rows"}
    assert values[names.INPUT_IDS] == (1, "new")
    assert values[names.LOGITS] == (1, "rows", VOCAB)
    assert set(model.opset_imports) == {""}


def test_more_sessions_are_refused(traced: Traced, tmp_path: Path) -> None:
    model, cache = load(write(traced, Kind.FP, 37, tmp_path / "artifact"))
    with pytest.raises(KvedgeError, match="sessions of a graph in standard operators; expected 1; got 2"):
        make_plain(model, cache, StepLimits(context=LENGTH, chunk=8, sessions=2))


def test_codes_that_are_floats_are_refused(traced: Traced, tmp_path: Path) -> None:
    model, cache = load(write(traced, Kind.FP8, 37, tmp_path / "artifact"))
    with pytest.raises(KvedgeError, match="codes in standard operators; expected integers; got fp8; choose int8"):
        make_plain(model, cache, LIMITS)


@pytest.mark.parametrize("window", [37, None])
@pytest.mark.parametrize("kind", [Kind.FP, Kind.INT4])
def test_profiles_have_all_inputs(traced: Traced, tmp_path: Path, kind: Kind, window: int | None) -> None:
    """Of the graph with the op, for several sessions, and of this one: names, ranks, and equal dims by equal names."""
    model, cache = load(write(traced, kind, window, tmp_path / "artifact"))
    check_profiles(model, profiles(cache, StepLimits(context=LENGTH, chunk=60, sessions=3)))
    make_plain(model, cache, LIMITS)
    check_profiles(model, profiles(cache, LIMITS))


def check_profiles(model: ir.Model, found: dict[str, Profile]) -> None:
    assert list(found) == ["decode", "prefill"]
    for ranges in found.values():
        assert set(ranges) == {value.name for value in model.graph.inputs}
        dims: dict[str, set[tuple[int, ...]]] = {}
        for value in model.graph.inputs:
            range_ = ranges[value.name]
            for dim, *sizes in zip(value.shape, range_.least, range_.usual, range_.most, strict=True):
                dims.setdefault(str(dim), set()).add(tuple(sizes))
        for dim, sizes in dims.items():
            assert len(sizes) == 1, dim
            assert not dim.isdigit() or sizes == {(int(dim),) * 3}


@pytest.mark.parametrize("kind", [Kind.FP, Kind.INT4])
def test_pools_take_what_the_plan_says(traced: Traced, tmp_path: Path, kind: Kind) -> None:
    """Each pool twice, as an input and as an output."""
    model, cache = load(write(traced, kind, 37, tmp_path / "artifact"))
    make_plain(model, cache, LIMITS)
    planned = plan_memory(cache, context=LIMITS.context, chunk=LIMITS.chunk)
    pools = {name for layer in cache.layers for name in pool_names(layer.index)}
    found = [value for value in (*model.graph.inputs, *model.graph.outputs) if value.name in pools]
    total = sum(math.prod(value.shape) * value.dtype.itemsize for value in found)
    assert total == find_target("rtx").engine.pools * planned.kv_bytes


def test_operators_without_a_standard_form_are_refused() -> None:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape((1, 4)))
    node = ir.node("QuickGelu", [x], domain="com.microsoft")
    graph = ir.Graph([x], node.outputs, nodes=[node], opset_imports={"": 20, "com.microsoft": 1}, name="gelu")
    with pytest.raises(KvedgeError, match="com.microsoft.QuickGelu in the graph; .*; report this model"):
        use_standard_operators(graph, Recorder())
