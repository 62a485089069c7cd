"""Attention nodes of a graph for GPUs are what the TensorRT plugin takes: its creator, in a stand-in of TensorRT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
from gpu_graphs import gpu_model, plugin_nodes
from gpu_models import KEY_BIAS, LLAMA, write

pytest.importorskip("triton", reason="Triton is not installed: the TensorRT plugin was not tested (pip install triton)")

from launch_nodes import FLOAT, HALF, INT32
from stand_in_driver import bundle, types_of
from tensorrt_program import Program

from kvedge.export.gpu.graph import bias_pairs
from kvedge.export.gpu.node import given_inputs
from kvedge.plugins import schema
from kvedge.plugins.cuda.forms import form_of
from kvedge.plugins.cuda.variants import LayerForm
from kvedge.targets.kinds import Kind
from kvedge.targets.settings import WeightType
from kvedge.targets.spec import CacheSpec, LayerSpec

BATCH, NEW, PAGES, SLOTS = 2, 3, 9, 7
TYPES = {ir.DataType.FLOAT: FLOAT, ir.DataType.FLOAT16: HALF, ir.DataType.INT32: INT32}
CASES = [
    (LLAMA, Kind.INT3, 37),
    (LLAMA, Kind.FP, None),
    (LLAMA, Kind.K4V2, 17),
    (KEY_BIAS, Kind.INT4, 37),
    ("gemma2", Kind.INT4, 37),
    ("glm4", Kind.INT8, 37),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """The stand-in program."""
    return Program(tmp_path_factory.mktemp("tensorrt"))


def sizes(value: ir.Value, layer: LayerSpec, name: str) -> list[int]:
    """A tensor's shape with numbers for what is open; q, k and v as the graph computes them."""
    heads = {"q": layer.heads, "k": layer.kv_heads, "v": layer.kv_heads}
    if name in heads:
        return [BATCH, heads[name], NEW, layer.head_dim]
    assert value.shape is not None
    numbers = {"batch": BATCH, "new": NEW, "hot_pages": PAGES, "packed_pages": PAGES, "slots": SLOTS}
    return [dim if isinstance(dim, int) else numbers[_kind_of(str(dim))] for dim in value.shape]


def _kind_of(dim: str) -> str:
    return "slots" if "slots" in dim else dim.rstrip("_0123456789")


def words_of(node: ir.Node, cache: CacheSpec, pairs: dict[int, int], folder: Path) -> list[str]:
    """Arguments of the program: what TensorRT's parser would make of a node, with kernels of its form."""
    given = given_inputs(node)
    layer = next(layer for layer in cache.layers if given["hot"].name == f"hot.{layer.index}")
    form = form_of(cache, layer, pairs.get(layer.index, 0))
    of_layer = LayerForm(
        layer=layer, rotary_pairs=form.rotary_pairs, interleaved=form.interleaved, bias_pairs=form.bias_pairs
    )
    path, kernels = bundle(of_layer, folder / "kernels.safetensors")
    outputs = dict(zip(_outputs(given), node.outputs, strict=True))
    fields = {name: attribute.value for name, attribute in node.attributes.items() if name != schema.FORM}
    words = [f"{name}={value}" for name, value in fields.items()]
    words += [f"kernels={path}", f"tensors_in={','.join(given)}", f"tensors_out={','.join(outputs)}"]
    for name, value in (given | outputs).items():
        words += [f"shape.{name}={','.join(map(str, sizes(value, layer, name)))}", f"type.{name}={TYPES[value.dtype]}"]
    return words + types_of(kernels)


def _outputs(given: dict[str, ir.Value]) -> list[str]:
    return ["out", "hot_out", *(["packed_out"] if "packed" in given else []), "pages_read"]


@pytest.mark.parametrize(("name", "kind", "window"), CASES, ids=str)
def test_stand_in_plugin_takes_the_nodes(
    program: Program, name: str, kind: Kind, window: int | None, tmp_path: Path
) -> None:
    cache = write(name, kind, WeightType.FP32, tmp_path, window)
    model = gpu_model(tmp_path, cache)
    pairs = bias_pairs(model, cache)
    for node in plugin_nodes(model):
        life = program.run("life", *words_of(node, cache, pairs, tmp_path))
        assert life["messages"] == [] and life["built"] and all(life["supported"])
        assert life["types"] == [TYPES[value.dtype] for value in node.outputs]
        results = ("types_result", "shapes_result", "configure_result", "build_result", "run_result")
        assert {life[result] for result in results} == {0}
        kept: dict[str, Any] = {field: value for field, _, value in life["kept"]}
        assert kept["inputs"] == node.attributes[schema.GIVEN].as_string()
        assert set(kept) == {*node.attributes, "kernels"} - {schema.FORM}


def test_stand_in_plugin_refuses_another_layers_kernels(program: Program, tmp_path: Path) -> None:
    """So that the test above can fail: the fields are compared with the kernels."""
    cache = write(LLAMA, Kind.INT3, WeightType.FP32, tmp_path)
    model = gpu_model(tmp_path, cache)
    words = words_of(plugin_nodes(model)[0], cache, {0: 3}, tmp_path)
    said = program.run("life", *words)["messages"]
    assert "bias_page: expected a tensor, because its kernels are compiled for 3 pairs, got none" in said[0]
