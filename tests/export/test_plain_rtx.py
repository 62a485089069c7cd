"""Real engines of TensorRT for RTX: the parser and the builder are its own, no GPU is needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
import pytest
from rtx_engines import SMS, build_engine
from streams import make_layer, make_rope

from kvedge.export.plain.graph import make_plain
from kvedge.export.plain.model import layer_model
from kvedge.export.plain.places import GraphSize
from kvedge.export.weights import store_half
from kvedge.targets import manifest
from kvedge.targets.errors import KvedgeError
from kvedge.targets.kinds import Kind
from kvedge.targets.profiles import Profile, Range, StepLimits, profiles

if TYPE_CHECKING:
    from conftest import Tiny

LAYER = {"heads": 9, "kv_heads": 3, "head_dim": 64, "page": 64, "sinks": 64, "recent": 128, "window": 1024}


CHUNK = 128


def write_layer(folder: Path, kind: Kind) -> tuple[Path, dict[str, Profile]]:
    """A graph of one layer, and its profiles for steps of one token and of a chunk."""
    layer = make_layer(kind, **LAYER)
    pages = layer.rules.capacity(0, CHUNK)
    size = GraphSize(
        chunk=CHUNK,
        hot_pages=pages.hot_pages,
        hot_slots=pages.hot_pages,
        packed_pages=pages.packed_pages,
        packed_slots=pages.packed_pages,
    )
    model = layer_model(layer, size, make_rope(layer.head_dim))
    ir.save(model, folder / "layer.onnx")
    return folder / "layer.onnx", {"decode": ranges(model, 1, 1), "prefill": ranges(model, 1, CHUNK)}


def ranges(model: ir.Model, least: int, most: int) -> Profile:
    """A profile for steps of that many tokens."""

    def shape(value: ir.Value, new: int) -> tuple[int, ...]:
        return tuple(dim if isinstance(dim, int) else new for dim in value.shape)

    return {
        value.name: Range(least=shape(value, least), usual=shape(value, most), most=shape(value, most))
        for value in model.graph.inputs
    }


@pytest.mark.parametrize("sm", SMS)
@pytest.mark.parametrize("kind", [Kind.FP, Kind.INT3], ids=lambda kind: kind.value)
def test_layers_build(tmp_path: Path, kind: Kind, sm: int) -> None:
    graph, found = write_layer(tmp_path, kind)
    assert build_engine(graph, sm, found)


@pytest.mark.slow
@pytest.mark.parametrize("sm", SMS)
@pytest.mark.parametrize("kind", [Kind.FP16, Kind.INT8, Kind.INT4, Kind.K4V2, Kind.INT2], ids=lambda kind: kind.value)
def test_other_layers_build(tmp_path: Path, kind: Kind, sm: int) -> None:
    graph, found = write_layer(tmp_path, kind)
    assert build_engine(graph, sm, found)


def write_model(artifact: Path, folder: Path, limits: StepLimits) -> tuple[Path, dict[str, Profile]]:
    """An artifact's graph with weights of float16, as a GPU wants them, and its profiles."""
    model, cache = ir.load(artifact / manifest.GRAPH), manifest.read(artifact).cache
    store_half(model)
    make_plain(model, cache, limits)
    ir.save(model, folder / "plain.onnx")
    return folder / "plain.onnx", profiles(cache, limits)


@pytest.mark.slow
@pytest.mark.parametrize("sm", SMS)
@pytest.mark.parametrize("name", ["fp", "int3"])
def test_whole_models_build(tiny: Tiny, tmp_path: Path, name: str, sm: int) -> None:
    graph, found = write_model(getattr(tiny, name), tmp_path, StepLimits(context=100, chunk=40, sessions=1))
    assert build_engine(graph, sm, found)


def test_what_the_builder_refuses_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """By the name of a node, without a word on the screen, and for every engine anew."""
    graph, _ = write_layer(tmp_path, Kind.FP)
    model = ir.load(graph)
    for _ in range(2):
        with pytest.raises(KvedgeError, match=r"built no engine for SM86; got .*plain.Where.*conformable"):
            build_engine(graph, 86, {"prefill": ranges(model, CHUNK + 1, CHUNK + 1)})
    assert capfd.readouterr() == ("", "")


def test_profiles_without_an_input_are_refused(tmp_path: Path) -> None:
    graph, found = write_layer(tmp_path, Kind.FP)
    del found["prefill"]["q"]
    with pytest.raises(KvedgeError, match="profile prefill; expected a range for the input q; got none"):
        build_engine(graph, 86, found)


def test_what_the_parser_refuses_is_said(tmp_path: Path) -> None:
    x, y = (ir.Value(name=name, type=ir.TensorType(ir.DataType.INT32), shape=ir.Shape((4,))) for name in "xy")
    node = ir.node("BitwiseAnd", [x, x], outputs=[y], name="bits")
    graph = ir.Graph([x], [y], nodes=[node], opset_imports={"": 20}, name="bits")
    ir.save(ir.Model(graph, ir_version=10), tmp_path / "bits.onnx")
    with pytest.raises(
        KvedgeError, match=r"cannot read the graph in .*; expected operators that it knows; got .*Bitwise"
    ):
        build_engine(tmp_path / "bits.onnx", 86, {})


def test_unknown_chips_are_refused(tmp_path: Path) -> None:
    graph, found = write_layer(tmp_path, Kind.FP)
    with pytest.raises(KvedgeError, match="TensorRT for RTX; expected a chip that it builds for; got SM42"):
        build_engine(graph, 42, found)


def test_weights_lie_in_the_engine_once(tiny: Tiny, tmp_path: Path) -> None:
    """Decode and prefill read the same: no product keeps a second layout of its weights for one of them."""
    graph, found = write_model(tiny.fp, tmp_path, StepLimits(context=100, chunk=40, sessions=1))
    engine = build_engine(graph, 86, found)
    for name, value in ir.load(graph).graph.initializers.items():
        if name.endswith("proj.weight.half"):
            weights = value.const_value.numpy()
            lie = [engine.count(each[:1].tobytes()) for each in (weights, np.ascontiguousarray(weights.T))]
            assert sum(lie) == 1, name
