"""Real engines of TensorRT for RTX: the parser and the builder are its own, no GPU is needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir
import pytest
from streams import make_layer, make_rope

from kvedge.export.plain.graph import StepSize, make_plain
from kvedge.export.plain.model import layer_model
from kvedge.export.plain.places import Profile
from kvedge.export.plain.rtx import CAPABILITIES, build_engine
from kvedge.export.weights import store_half
from kvedge.targets import manifest
from kvedge.targets.errors import KvedgeError
from kvedge.targets.kinds import Kind

if TYPE_CHECKING:
    from conftest import Tiny

pytest.importorskip("tensorrt_rtx", reason="engines are not built here: the package tensorrt-rtx is absent")

LAYER = {"heads": 9, "kv_heads": 3, "head_dim": 64, "page": 64, "sinks": 64, "recent": 128, "window": 1024}


def write_layer(folder: Path, kind: Kind, new: int) -> Path:
    layer = make_layer(kind, **LAYER)
    pages = layer.rules.capacity(0, new)
    profile = Profile(
        new=new,
        hot_pages=pages.hot_pages,
        hot_slots=pages.hot_pages,
        packed_pages=pages.packed_pages,
        packed_slots=pages.packed_pages,
    )
    ir.save(layer_model(layer, profile, make_rope(layer.head_dim)), folder / "layer.onnx")
    return folder / "layer.onnx"


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_an_exact_layer_builds(tmp_path: Path, capability: str) -> None:
    assert build_engine(write_layer(tmp_path, Kind.FP, 1), capability)


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_a_packed_layer_builds(tmp_path: Path, capability: str) -> None:
    assert build_engine(write_layer(tmp_path, Kind.INT3, 1), capability)


@pytest.mark.slow
@pytest.mark.parametrize("new", [1, 64])
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("kind", [Kind.INT3, Kind.INT8, Kind.INT4, Kind.K4V2], ids=lambda kind: kind.value)
def test_packed_layers_build(tmp_path: Path, kind: Kind, capability: str, new: int) -> None:
    assert build_engine(write_layer(tmp_path, kind, new), capability)


@pytest.mark.slow
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("name", ["fp", "int3"])
@pytest.mark.parametrize("new", [1, 16])
def test_whole_models_build(tiny: Tiny, tmp_path: Path, name: str, capability: str, new: int) -> None:
    """With weights of float16, as a GPU wants them."""
    folder = getattr(tiny, name)
    model = ir.load(folder / manifest.GRAPH)
    store_half(model)
    make_plain(model, manifest.read(folder).cache, StepSize(context=100, chunk=16, new=new, rows=1))
    ir.save(model, tmp_path / "plain.onnx")
    assert build_engine(tmp_path / "plain.onnx", capability)


def test_what_the_parser_refuses_is_said(tmp_path: Path) -> None:
    x, y = (ir.Value(name=name, type=ir.TensorType(ir.DataType.INT32), shape=ir.Shape((4,))) for name in "xy")
    node = ir.node("BitwiseAnd", [x, x], outputs=[y], name="bits")
    graph = ir.Graph([x], [y], nodes=[node], opset_imports={"": 20}, name="bits")
    ir.save(ir.Model(graph, ir_version=10), tmp_path / "bits.onnx")
    with pytest.raises(KvedgeError, match=r"cannot read .*bits.onnx; expected operators that it knows; got .*Bitwise"):
        build_engine(tmp_path / "bits.onnx", "SM86")


def test_unknown_capabilities_are_refused(tmp_path: Path) -> None:
    with pytest.raises(KvedgeError, match="compute capability; expected one of SM86, SM89, SM120; got SM42"):
        build_engine(tmp_path / "none.onnx", "SM42")
