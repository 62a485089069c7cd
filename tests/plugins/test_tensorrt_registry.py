"""The TensorRT plugin in true registries, which need no GPU: of TensorRT's lean runtime, and of TensorRT for RTX.

PyPI has the first for 10.15 and newer (`pip install tensorrt-lean-cu12-bindings tensorrt-lean-cu12-libs`, 47 MB). The
second has no layers for plugins, but its parser, the same as TensorRT's, makes them. The plugin is built against
TensorRT's headers, which are not there (plugins/tensorrt/README.md); KVEDGE_TENSORRT_PLUGIN names it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from gpu_graphs import gpu_model
from gpu_models import LLAMA, write

pytest.importorskip("triton", reason="Triton is not installed: no true registry was asked (pip install triton)")

from launch_nodes import Node
from stand_in_driver import bundle
from streams import make_layer

from kvedge.plugins import schema
from kvedge.plugins.cuda.forms import form_of
from kvedge.plugins.cuda.variants import LayerForm
from kvedge.plugins.library import PLUGIN_VARIABLE
from kvedge.targets.kinds import Kind
from kvedge.targets.settings import WeightType
from kvedge.targets.spec import CacheSpec

LEAN, RTX = "tensorrt_lean_bindings", "tensorrt_rtx"
NODES = {
    "int3": Node(layer=make_layer()),
    "fp": Node(layer=make_layer(Kind.FP)),
    "turned": Node(layer=make_layer(), rotary_pairs=4),
}
TYPES = {int: "INT32", float: "FLOAT32", str: "CHAR"}

PROGRAM = """
import importlib, json, sys
import numpy as np
lean = importlib.import_module(sys.argv[1])
asked = json.loads(sys.argv[3])
registry = lean.get_plugin_registry()
before = len(registry.all_creators)
assert registry.load_library(sys.argv[2]) is not None
assert len(registry.all_creators) == before + 1
creator = registry.get_creator(asked["name"], "1", "")
types = {field.name: field.type.name for field in creator.field_names}
def field(name, value):
    kind = getattr(lean.PluginFieldType, types.get(name, "INT32"))
    number = {"INT32": np.int32, "FLOAT32": np.float32}.get(types.get(name, "INT32"))
    data = np.frombuffer(value, np.int8) if number is None else np.array([value], number)
    return data, lean.PluginField(name, data, kind)
def made(fields, phase):
    fields = {name: bytes.fromhex(value) if isinstance(value, str) else value for name, value in fields.items()}
    kept = [field(name, value) for name, value in fields.items()]
    plugin = creator.create_plugin("layer", lean.PluginFieldCollection([one for _, one in kept]), phase)
    if plugin is None:
        return None
    core = plugin.get_capability_interface(lean.PluginCapabilityType.CORE)
    build = plugin.get_capability_interface(lean.PluginCapabilityType.BUILD)
    return [core.plugin_name, core.plugin_version, core.plugin_namespace, build.num_outputs]
phases = (lean.TensorRTPhase.BUILD, lean.TensorRTPhase.RUNTIME)
print(json.dumps([lean.__version__, types, [made(fields, phase) for fields in asked["fields"] for phase in phases]]))
"""


PARSE = """
import importlib, sys
rtx = importlib.import_module(sys.argv[1])
assert rtx.get_plugin_registry().load_library(sys.argv[2]) is not None
log = rtx.Logger(rtx.Logger.ERROR)
network = rtx.Builder(log).create_network(1 << int(rtx.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
rtx.OnnxParser(network, log).parse_from_file(sys.argv[3])
"""


def plugin_path(package: str) -> Path:
    """The plugin's file; skips aloud where it or the package with the registry is not there."""
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed: its registry was not asked")
    if PLUGIN_VARIABLE not in os.environ:
        pytest.skip(f"{PLUGIN_VARIABLE} names no plugin: no true registry was asked")
    return Path(os.environ[PLUGIN_VARIABLE])


def fields_of(node: Node, folder: Path) -> dict[str, Any]:
    """A node's attributes as a graph has them; bytes in hexadecimal digits."""
    path, _ = bundle(node.form, folder / "kernels.safetensors")
    fields: dict[str, Any] = dict(schema.attributes(node.layer, interleaved=False))
    return fields | {"inputs": ",".join(node.tensors()[0]).encode().hex(), "kernels": path.read_bytes().hex()}


def answers(fields: list[dict[str, Any]]) -> tuple[str, dict[str, str], list[Any], str]:
    """Version, types of fields, and what became of each node when building and when running; what was printed."""
    asked = json.dumps({"name": schema.NAME, "fields": fields})
    command = [sys.executable, "-c", PROGRAM, LEAN, str(plugin_path(LEAN)), asked]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    version, types, made = json.loads(done.stdout)
    return version, types, made, done.stderr


@pytest.mark.parametrize("name", NODES)
def test_a_true_registry_takes_the_plugin(name: str, tmp_path: Path) -> None:
    node = NODES[name]
    plugin_path(LEAN)
    fields = fields_of(node, tmp_path)
    _, types, made, said = answers([fields])
    assert types == {
        field: {int: "INT32", float: "FLOAT32", str: "CHAR"}[type(value)] for field, value in fields.items()
    }
    assert made == [[schema.NAME, "1", "", len(node.tensors()[1])]] * 2 and said == ""


def test_a_true_registry_gets_no_plugin_of_other_fields(tmp_path: Path) -> None:
    plugin_path(LEAN)
    fields = fields_of(NODES["int3"], tmp_path)
    lacking = {name: value for name, value in fields.items() if name != "scale"}
    _, _, made, said = answers([lacking, fields | {"page": 24}])
    assert made == [None] * 4
    assert "PagedAttention: field scale: expected it among the fields, got none" in said
    assert "recent: expected 24 or more, got 8" in said


def parsed(model: onnx.ModelProto, folder: Path) -> tuple[int, str]:
    """Exit status and log of parsing a graph."""
    onnx.save(model, folder / "parsed.onnx")
    command = [sys.executable, "-c", PARSE, RTX, str(plugin_path(RTX)), str(folder / "parsed.onnx")]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    return done.returncode, done.stdout


def test_a_true_parser_makes_the_plugin_of_a_node(tmp_path: Path) -> None:
    """With all its fields. TensorRT for RTX then ends the process, where TensorRT would add a layer."""
    plugin_path(RTX)
    cache = write(LLAMA, Kind.INT3, WeightType.FP32, tmp_path)
    model = ir.to_proto(gpu_model(tmp_path, cache))
    path, _ = bundle(form_of_first(cache), tmp_path / "kernels.safetensors")
    kernels = onnx.numpy_helper.from_array(np.frombuffer(path.read_bytes(), np.int8))
    nodes = [node for node in model.graph.node if node.op_type == schema.NAME]
    status, said = parsed(model, tmp_path)
    assert status == 0 and "Could not create the plugin" in said
    assert "PagedAttention: field kernels: expected it among the fields, got none" in said
    for node in nodes:
        node.attribute.append(onnx.helper.make_attribute(schema.KERNELS, kernels))
    status, said = parsed(model, tmp_path)
    assert status == -signal.SIGABRT and "plugin" not in said.lower()


def form_of_first(cache: CacheSpec) -> LayerForm:
    """What the kernels of the first layer are compiled for."""
    layer = cache.layers[0]
    form = form_of(cache, layer, 0)
    return LayerForm(layer=layer, rotary_pairs=form.rotary_pairs, interleaved=form.interleaved, bias_pairs=0)
