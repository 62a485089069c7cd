"""Graphs cut into blocks of layers, against the whole graphs on ONNX Runtime's CPU provider."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from chains import cut_graph, cut_model
from gpu_graphs import BatchTrial, gpu_model, load, stand_in_cpu_op
from gpu_models import KEY_BIAS, LLAMA, MODELS, write
from plain_graphs import PlainTrial
from tiny_models import VOCAB

from kvedge.export.build.blocks import cut
from kvedge.export.build.cuts import Cutter
from kvedge.export.build.flow import SMALL, Flow, find_flow
from kvedge.export.plain.graph import make_plain
from kvedge.targets import names
from kvedge.targets.errors import KvedgeError
from kvedge.targets.hidden import Hidden
from kvedge.targets.kinds import Kind
from kvedge.targets.profiles import StepLimits
from kvedge.targets.settings import WeightType
from kvedge.targets.spec import CacheSpec

STEPS = [(40, 23), (1, 1), (7, 30), (1, 3)]
"""New tokens of two sequences: prompts, decoding, and both at once."""
LIMITS = StepLimits(context=100, chunk=60, sessions=1)
AT_ONCE = [(LLAMA, Kind.INT4), ("gemma2", Kind.K4V2), (KEY_BIAS, Kind.INT3)]
"""Two groups of layers and key biases among them."""
SLOW = [(name, kind) for name in MODELS for kind in (Kind.FP, Kind.INT4)]


@pytest.mark.parametrize(
    ("name", "kind"), [*AT_ONCE, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)], ids=str
)
def test_gpu_blocks_give_the_same_bits(name: str, kind: Kind, tmp_path: Path) -> None:
    """The CPU op stands in for the plugin."""
    cache = write(name, kind, WeightType.INT4, tmp_path)
    whole, blocks = (cut_model(gpu_model(tmp_path, cache), cache, count) for count in (1, 2))
    trials = [
        BatchTrial([stand_in_cpu_op(each) for each in models], tmp_path, cache, batch=2, context=100)
        for models in (whole, blocks)
    ]
    rng = np.random.default_rng(0)
    for lengths in STEPS:
        ids = [rng.integers(3, VOCAB, length).tolist() for length in lengths]
        want, got = (trial.step(ids) for trial in trials)
        assert np.array_equal(want, got)
    assert trials[0].pages_read == trials[1].pages_read
    packed = [rules for rules in cache.groups if rules.packs]
    sees_them = any(rules.window is None or rules.window > rules.recent + rules.page for rules in packed)
    assert (trials[0].pages_read > 0) == sees_them
    assert sees_them == (kind is not Kind.FP and name != "mistral")  # whose tiny window is within the recent tokens


@pytest.mark.parametrize("kind", [Kind.FP, Kind.INT4])
def test_plain_blocks_give_the_same_bits(kind: Kind, tmp_path: Path) -> None:
    cache = write(LLAMA, kind, WeightType.FP16, tmp_path)
    whole, blocks = (PlainTrial(tmp_path, cache, LIMITS, count) for count in (1, 2))
    ids = np.random.default_rng(0).integers(3, VOCAB, 100).tolist()
    for first, last in itertools.pairwise((0, 50, 51, 52, 90, 100)):
        want, got = (trial.step(ids[first:last], [last - first - 1]) for trial in (whole, blocks))
        assert np.array_equal(want, got)
    assert whole.packed_pages_read == blocks.packed_pages_read
    assert (whole.packed_pages_read > 0) == (kind is not Kind.FP)


@pytest.fixture(scope="module", params=["gpu", "plain"])
def graph(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[onnx.ModelProto, CacheSpec]:
    """Either flavour of a llama, with weights of 4 bits or 16."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "gpu":
        cache = write(LLAMA, Kind.INT4, WeightType.INT4, folder)
        return ir.to_proto(gpu_model(folder, cache)), cache
    cache = write(LLAMA, Kind.INT4, WeightType.FP16, folder)
    model = load(folder)
    make_plain(model, cache, LIMITS)
    return ir.to_proto(model), cache


def test_a_weight_is_in_one_block(graph: tuple[onnx.ModelProto, CacheSpec]) -> None:
    """And stays where it lies."""
    model, cache = graph
    first, second = ({each.name: each for each in part.graph.initializer} for part in cut_graph(model, cache, 2).graphs)
    stored = {each.name: each for each in model.graph.initializer}
    assert stored == first | second
    both = set(first) & set(second)
    assert both and not any(is_large(stored[name]) for name in both)
    assert sum(map(is_large, stored.values())) >= 6  # embedding, head, and at least two of a layer


def is_large(weight: onnx.TensorProto) -> bool:
    lengths = [int(entry.value) for entry in weight.external_data if entry.key == "length"]
    return max([weight.ByteSize(), *lengths]) > SMALL


def test_blocks_keep_what_they_need(graph: tuple[onnx.ModelProto, CacheSpec]) -> None:
    model, cache = graph
    blocks = cut_graph(model, cache, 2)
    assert blocks.hidden == (Hidden(name=names.hidden(0, 0), dtype="float32", widths=(64,)),)
    inputs, outputs = ([{v.name for v in values(part.graph)} for part in blocks.graphs] for values in (ins, outs))
    assert names.LOGITS_INDEX not in inputs[0] and names.LOGITS not in outputs[0]
    for layer, (given, made) in enumerate(zip(inputs, outputs, strict=True)):
        assert {name for name in given if name.startswith(("hot.", "packed."))} == {f"hot.{layer}", f"packed.{layer}"}
        assert {names.hot_out(layer), names.packed_out(layer), names.pages_read(layer)} <= made
    assert outputs[0] & inputs[1] == {names.hidden(0, 0)}
    assert inputs[0] | inputs[1] == {v.name for v in model.graph.input} | {names.hidden(0, 0)}
    assert outputs[0] | outputs[1] == {v.name for v in model.graph.output} | {names.hidden(0, 0)}
    assert not outputs[0] & outputs[1]


def ins(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    return list(graph.input)


def outs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    return list(graph.output)


def test_blocks_are_sound_graphs(graph: tuple[onnx.ModelProto, CacheSpec]) -> None:
    """In order, and hidden states with the dimensions of the tokens."""
    model, cache = graph
    (ids,) = (value for value in model.graph.input if value.name == names.INPUT_IDS)
    for part in cut_graph(model, cache, 2).graphs:
        known = {value.name for value in (*part.graph.input, *part.graph.initializer)} | {""}
        for node in part.graph.node:
            assert known.issuperset(node.input)
            known.update(node.output)
        assert known.issuperset(value.name for value in (*part.graph.output, *part.graph.value_info))
        assert (part.ir_version, list(part.opset_import)) == (model.ir_version, list(model.opset_import))
        for value in (*part.graph.input, *part.graph.output):
            if value.name == names.hidden(0, 0):
                assert list(value.type.tensor_type.shape.dim)[:2] == list(ids.type.tensor_type.shape.dim)


def test_more_blocks_than_layers(graph: tuple[onnx.ModelProto, CacheSpec]) -> None:
    model, cache = graph
    with pytest.raises(KvedgeError, match="blocks of layers; expected 1 to 2, a layer in each at least; got 3"):
        cut_graph(model, cache, 3)
    with pytest.raises(KvedgeError, match="blocks of layers; expected 1 to 2, .* got 0"):
        cut_graph(model, cache, 0)


def test_pages_that_know_no_tokens_are_refused(graph: tuple[onnx.ModelProto, CacheSpec]) -> None:
    with pytest.raises(KvedgeError, match=r"expected pages that depend on the tokens; got hot_out.7 do not"):
        find_flow(graph[0].graph, [0, 7])


def test_what_crosses_must_be_hidden_states(graph: tuple[onnx.ModelProto, CacheSpec]) -> None:
    """A place inside attention: heads cross."""
    model, cache = graph
    flow = find_flow(model.graph, [0, 1])
    bad = replace(flow, ends=[flow.made[names.hot_out(0)], flow.ends[1]])
    cuts = Cutter(bad).cuts(2)
    with pytest.raises(KvedgeError, match=r"between two blocks; expected (floats \[batch, new, width\]|a known shape)"):
        cut(model, bad, cuts, [0, 1])


@pytest.mark.parametrize(
    ("sizes", "count", "layers"),
    [
        ([1, 1, 1, 1], 2, (2, 4)),
        ([5, 1, 1, 1, 1, 5], 2, (3, 6)),
        ([9, 1, 1, 1, 1, 9], 3, (1, 5, 6)),
        ([1, 2, 3, 4, 5], 2, (3, 5)),
        ([3, 1, 1], 3, (1, 2, 3)),
        ([1, 1, 1, 1, 1, 1, 1], 3, (2, 4, 7)),
    ],
)
def test_blocks_are_about_equal(sizes: list[int], count: int, layers: tuple[int, ...]) -> None:
    flow = Flow(
        nodes=[], made={}, read={}, ends=[10 * n for n in range(1, 8)][: len(sizes)], sizes=sizes, stored=sum(sizes)
    )
    cuts = Cutter(flow).cuts(count)
    parts = [sum(sizes[a:b]) for a, b in itertools.pairwise((0, *cuts.layers))]
    assert max(parts) == max(sum(sizes[a:b]) for a, b in itertools.pairwise((0, *layers)))
    assert len(parts) == count and min(parts) > 0 and cuts.share == max(parts) / sum(sizes)
    assert cuts.ends == tuple(10 * layer for layer in cuts.layers)
