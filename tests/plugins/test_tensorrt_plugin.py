"""The TensorRT plugin against stand-ins of TensorRT's registry and of the CUDA driver: neither is needed, or tested."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launch_nodes import HALF, Node
from launches import bias_of_pairs, check_step, rows_of_bias, steps
from stand_in_driver import PLUGINS, kernels_of, only
from streams import make_layer
from tensorrt_program import Program, headers, words_of

from kvedge.plugins import schema
from kvedge.plugins.cuda import compile, sized_layer
from kvedge.plugins.cuda.constants import most_decoded
from kvedge.plugins.cuda.seal import bias_rows_kernel
from kvedge.plugins.cuda.signatures import ALIGNMENT
from kvedge.plugins.key_bias import KeyBias
from kvedge.targets.kinds import Kind

NODE = Node(layer=make_layer(), batch=2, new_tokens=3, rotary_pairs=8)
PLAIN = Node(layer=make_layer(Kind.FP, softcap=1.5))
WORKSPACE = 1 << 40
"""Where the program puts it."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """The stand-in program."""
    return Program(tmp_path_factory.mktemp("tensorrt"))


def changed_words(node: Node, folder: Path, **changed: object) -> list[str]:
    """Words of a plugin's life in the stand-in, some changed or, where None, left out."""
    words = dict(word.split("=", 1) for word in words_of(node, folder)[0])
    words |= {name.replace("__", "."): str(value) for name, value in changed.items() if value is not None}
    return [f"{name}={value}" for name, value in words.items() if changed.get(name, 0) is not None]


def live(program: Program, node: Node, folder: Path, **changed: object) -> dict[str, Any]:
    """A plugin's life in the stand-in."""
    return program.run("life", *changed_words(node, folder, **changed))


def test_stand_in_registry_knows_the_schema(program: Program) -> None:
    known = program.run("names")
    assert tuple(known["inputs"]) == schema.INPUTS and tuple(known["outputs"]) == schema.OUTPUTS
    attributes = schema.attributes(NODE.layer, interleaved=False)
    assert [field[0] for field in known["fields"]] == [*attributes, "inputs", "kernels"]
    assert [field[1] for field in known["fields"]] == [5] * 12 + [1] * 2 + [6] * 2


@pytest.mark.parametrize("node", [NODE, PLAIN], ids=["int3", "fp"])
def test_stand_in_life_of_a_plugin(program: Program, node: Node, tmp_path: Path) -> None:
    life = live(program, node, tmp_path)
    outputs = node.tensors()[1]
    assert life["messages"] == [] and life["built"] and life["build_version"] == 2
    assert life["outputs"] == len(outputs) and all(life["supported"])
    assert life["types"] == [node.type_of(name) for name in outputs]
    assert life["shapes"] == [list(array.shape) for array in outputs.values()]
    assert dict(zip(outputs, life["aliased"], strict=True)) == {
        name: name.removesuffix("_out") if name.endswith("_out") else None for name in outputs
    }
    results = ("types_result", "shapes_result", "configure_result", "build_result", "run_result")
    assert {life[name] for name in results} == {0}
    assert life["calls_while_built"] == []


def test_stand_in_plugin_made_for_building_says_that_it_launches_nothing(program: Program, tmp_path: Path) -> None:
    life = live(program, NODE, tmp_path, attach_built=1)
    assert life["calls_while_built"] == []
    assert life["messages"] == ["PagedAttention: nothing is launched by an engine that was not serialized and loaded"]


def test_stand_in_refuses_kernels_of_no_block(program: Program, tmp_path: Path) -> None:
    made = [replace(k, constants=k.constants | {"BLOCK": 0}) for k in kernels_of(NODE.form)]
    compile.write_bundle(made, NODE.layer, tmp_path / "none.safetensors")
    life = live(program, NODE, tmp_path, kernels=tmp_path / "none.safetensors")
    assert life["messages"] == ["PagedAttention: kernel append, BLOCK: expected 1 or more, got 0"]


def test_stand_in_refuses_kernels_it_does_not_know(program: Program, tmp_path: Path) -> None:
    first, *rest = kernels_of(NODE.form)
    path = tmp_path / "other.safetensors"
    for changed, message in (
        ({"arguments": ("p", *first.arguments[1:])}, "arguments that this library knows, got 'p'; update kvedge"),
        ({"types": ("*fp16", *first.types[1:])}, "kernel queries, argument q: expected *fp32, got *fp16"),
        ({"types": first.types[1:]}, "expected 10 types of arguments, got 9"),
    ):
        compile.write_bundle([replace(first, **changed), *rest], NODE.layer, path)
        assert message in live(program, NODE, tmp_path, kernels=path)["messages"][0]
    compile.write_bundle([first], NODE.layer, path)
    said = live(program, NODE, tmp_path, kernels=path)["messages"]
    assert said == ["PagedAttention: kernels: expected one named attend_decode, got none"]


def test_stand_in_engine_keeps_all_fields(program: Program, tmp_path: Path) -> None:
    life = live(program, NODE, tmp_path)
    kept = {name: value for name, _, value in life["kept"]}
    assert life["kept_again"] == life["kept"]
    assert kept["inputs"] == ",".join(NODE.tensors()[0])
    for name, value in schema.attributes(NODE.layer, interleaved=False).items():
        assert kept[name] == pytest.approx(value)


def test_stand_in_contexts_share_kernels(program: Program, tmp_path: Path) -> None:
    life = live(program, NODE, tmp_path)
    loaded = only(life["calls_while_loaded"], "module")
    assert len(loaded) == 6 and loaded == only(life["calls"], "module")
    assert [call["unload"] for call in only(life["calls"], "unload")] == [call["module"] for call in loaded]
    assert only(life["calls"], "freed") == [{"freed": only(life["calls"], "allocated")[0]["allocated"]}]
    asked = only(life["calls"], "attribute")
    assert asked == [{"shared": "attend_prefill_symbol", "attribute": 8, "bytes": 60 * 1024}]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"heads": None}, "PagedAttention: field heads: expected it among the fields, got none"),
        ({"heads": 8}, "heads: expected 4, which kernel attend_decode is compiled for, got 8"),
        ({"page": 16, "recent": 16}, "page: expected 8, which kernel append is compiled for, got 16"),
        ({"recent": 9}, "recent: expected a multiple of page 8, got 9"),
        ({"k_bits": 4}, "k_bits: expected 3, which kernel attend_decode is compiled for"),
        ({"float_codes": 1}, "float_codes: expected 0, which kernel attend_decode is compiled for, got 1"),
        ({"window": 9}, "packed pages, by k_bits, window and recent: expected 1"),
        ({"softcap": 2}, "softcap: expected 0, which kernel attend_decode is compiled for, got 2"),
        ({"mistyped": 1}, "field heads: expected one integer, got 1 of type 1"),
        ({"kernels": __file__}, "kernels: expected a safetensors file with a header of"),
        ({"inputs": "q,k,v,hot"}, "inputs: expected 'hot_table' among them"),
        ({"inputs": "k,q"}, "inputs: expected names of the op's inputs in its order, got 'q'"),
        ({"inputs": "q,k,v,cos,sin,hot"}, "cos: expected none: queries and keys are taken after rotary"),
        ({"inputs": "q,k,v,hot,packed,hot_table,context,num_new"}, "inputs: expected packed and packed_table, got one"),
        (
            {"inputs": "q,k,v,hot,packed,hot_table,packed_table,context,num_new"},
            "sink_cos: expected a tensor, because its kernels are compiled for 8 pairs, got none",
        ),
    ],
)
def test_stand_in_refuses_fields(program: Program, tmp_path: Path, changed: dict[str, object], message: str) -> None:
    life = live(program, NODE, tmp_path, **changed)
    assert not life["built"] and len(life["messages"]) == 1
    assert message in life["messages"][0]


def test_stand_in_refuses_tensors(program: Program, tmp_path: Path) -> None:
    said = live(program, NODE, tmp_path, shape__k="2,2,3,24")["messages"]
    assert set(said) == {"PagedAttention: k: expected [2, 2, 3, 16], got [2, 2, 3, 24]"}
    said = live(program, NODE, tmp_path, shape__packed="7,10")["messages"]
    words = NODE.layer.packed_shape(1)[1]
    assert set(said) == {f"PagedAttention: packed: expected [any, {words}], got [7, 10]"}
    assert live(program, NODE, tmp_path, shape__q="-1,4,-1,16")["configure_result"] == 0
    said = live(program, NODE, tmp_path, shape__hot_table="2,1")["messages"]
    assert "hot_table: expected more than 1 columns, the sinks' pages, got 1" in said[0]
    life = live(program, NODE, tmp_path, type__q=HALF)
    assert life["messages"] == ["PagedAttention: q: expected float32, got float16"]
    assert life["supported"].count(False) == 1
    said = live(program, NODE, tmp_path, tensors_out="out,hot_out,pages_read")["messages"]
    assert set(said) == {"PagedAttention: outputs: expected 4, got 3"}


def test_stand_in_refuses_pools_that_are_copies(program: Program, tmp_path: Path) -> None:
    life = live(program, NODE, tmp_path, apart=1)
    assert life["run_result"] != 0
    assert "hot_out: expected the buffer of hot, written in place (PreviewFeature::kALIASED" in life["messages"][0]


def test_stand_in_refuses_addresses_that_loads_are_too_wide_for(program: Program, tmp_path: Path) -> None:
    life = live(program, NODE, tmp_path, shift=8)
    assert life["run_result"] != 0
    said = f"q: expected an address that {ALIGNMENT} divides, got {0x10000008}"
    assert said in life["messages"][0]
    assert live(program, NODE, tmp_path, shift=ALIGNMENT)["run_result"] == 0


def test_stand_in_driver_refuses(program: Program, tmp_path: Path) -> None:
    life = live(program, NODE, tmp_path, result__load=209)
    said = "append for sm_87, code of CUDA 12.6, loading with a driver of CUDA 12.4: expected success, got CUDA error"
    assert not life["attached"] and said in life["messages"][0]
    assert "the current CUDA context: expected one, got none" in live(program, NODE, tmp_path, context=0)["messages"][0]


def test_the_true_driver_is_missed_aloud(program: Program, tmp_path: Path) -> None:
    """Where there is a driver, the program has no context of it."""
    said = program.run_with_the_true_driver("life", *changed_words(NODE, tmp_path))["messages"][0]
    assert "libcuda.so.1: expected the CUDA driver, got" in said or "CUDA" in said


def test_rows_of_a_key_bias_are_numpys() -> None:
    arguments = rows_of_bias(Node(layer=make_layer(), bias=bias_of_pairs(3)))
    want = arguments["bias_rows"].clone()
    arguments["bias_rows"].zero_()
    bias_rows_kernel[(1,)](**arguments)
    assert want.max() == 5 and want.min() == -1
    assert arguments["bias_rows"].equal(want)


@pytest.mark.parametrize("node", steps().values(), ids=steps())
def test_stand_in_driver_is_asked_what_python_asks(program: Program, node: Node, tmp_path: Path) -> None:
    words, compiled = words_of(node, tmp_path)
    life = program.run("life", *words)
    assert life["messages"] == []
    check_step(node, life["calls"], compiled, dict(life["addresses"]), (WORKSPACE, life["workspace"]))


@pytest.mark.slow
def test_stand_in_takes_compiled_kernels(program: Program, tmp_path: Path) -> None:
    """Compiled in a process of its own, as this one has Triton's interpreter."""
    code = """
import sys, pathlib
from kvedge.plugins.cuda.compile import compile_layer, write_bundle
from kvedge.plugins.cuda.sized_layer import make_layer
from kvedge.targets.kinds import Kind
layer = make_layer(Kind.INT3, 9, 3, 64, 64)
write_bundle(compile_layer(layer, 87, rotary_pairs=0, bias_pairs=3), layer, pathlib.Path(sys.argv[1]))
"""
    path = tmp_path / "compiled.safetensors"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, env=environment, timeout=900)
    layer = sized_layer.make_layer(Kind.INT3, 9, 3, 64, 64)
    bias = KeyBias(
        page=np.zeros((3, 6, 64), np.float32), freqs=np.ones(3, np.float32), channels=np.arange(6, dtype="i")
    )
    life = live(program, Node(layer=layer, bias=bias), tmp_path, kernels=path)
    assert life["messages"] == [] and life["run_result"] == 0
    launched = [call["launch"] for call in only(life["calls"], "launch")]
    assert launched == [f"{name}_kernel" for name in ("queries", "bias_rows", "seal", "attend", "merge", "append")]


@pytest.mark.parametrize("layer", [make_layer(), make_layer(Kind.FP)], ids=["int3", "fp"])
def test_stand_in_workspace_is_enough_for_every_step_of_a_profile(program: Program, tmp_path: Path, layer: Any) -> None:
    """Few tokens need many splits, many tokens few: with many pages, a short step needs more than a long one."""
    most = Node(layer=layer, new_tokens=40, packed_slots=900, hot_slots=900)
    whole = live(program, most, tmp_path)["workspace"]
    for new_tokens in (1, most_decoded(layer), most_decoded(layer) + 1, 40):
        step = Node(layer=layer, new_tokens=new_tokens, packed_slots=900, hot_slots=900)
        assert live(program, step, tmp_path)["workspace"] <= whole


def test_json_is_read_as_python_reads_it(program: Program, tmp_path: Path) -> None:
    document = {"a": [1, -2.5e3, True, None, []], "b": {'c"\\/\n': "\u00e9\u20ac x", "d": {}}}
    for text in (json.dumps(document), json.dumps(document, indent=2), json.dumps(document, ensure_ascii=False)):
        (tmp_path / "a.json").write_text(text)
        assert program.run("json", str(tmp_path / "a.json"))["value"] == document


@pytest.mark.parametrize(
    "text", ["", "{", "[1,]", '{"a" 1}', '"a', "nul", "1 2", '"\\x"', '"\\u12"', "--1", "[" * 99, '{"a": 1,}', "{1: 2}"]
)
def test_what_is_no_json_is_refused(program: Program, tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    result = program.run("json", str(tmp_path / "a.json"))
    assert "value" not in result
    assert "a file: expected JSON with" in result["messages"][0]


def test_safetensors_are_read(program: Program, tmp_path: Path) -> None:
    from safetensors.numpy import save

    arrays = {"a": np.zeros(5, np.uint8), "b": np.zeros((2, 3), np.float32)}
    whole = save(arrays, metadata={"note": '{"x": 1}'})
    path = tmp_path / "a.safetensors"
    path.write_bytes(whole)
    read = program.run("safetensors", str(path))
    assert (read["a"], read["b"], read["note"]) == (5, 24, '{"x": 1}')
    for cut in (0, 7, 20, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert "a file" in program.run("safetensors", str(path))["messages"][0]


def configured(folder: Path, *options: str) -> str:
    """What CMake says of the plugin."""
    if shutil.which("cmake") is None:
        pytest.skip("no cmake found: the build of the TensorRT plugin was not tested")
    command = ["cmake", "-S", str(PLUGINS), "-B", str(folder), *options]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return "".join(line for line in text.splitlines() if "TensorRT plugin" in line)


def test_the_build_says_what_it_lacks(tmp_path: Path) -> None:
    nowhere = f"-DTENSORRT_INCLUDE={tmp_path}"
    assert configured(tmp_path / "a", nowhere) == (
        "-- TensorRT plugin: no NvInfer.h found (-DTENSORRT_INCLUDE=DIR): not built"
    )
    (tmp_path / "NvInfer.h").touch()
    assert "no cuda_runtime_api.h found" in configured(tmp_path / "b", nowhere, f"-DCUDA_INCLUDE={tmp_path}")
    (tmp_path / "cuda_runtime_api.h").touch()
    (tmp_path / "NvInferVersion.h").write_text("#define NV_TENSORRT_MAJOR 10\n#define NV_TENSORRT_MINOR 2 //!< two\n")
    old = configured(tmp_path / "c", nowhere, f"-DCUDA_INCLUDE={tmp_path}")
    assert old == "-- TensorRT plugin: expected TensorRT 10.3 or newer, got 10.2: not built"


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["g++", "aarch64-linux-gnu-g++"])
def test_the_library_is_built_without_warnings(tmp_path: Path, compiler: str) -> None:
    tensorrt, cuda = headers()
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} found: the TensorRT plugin was not built with it")
    machine = "aarch64" if compiler.startswith("aarch64") else "x86_64"
    options = [f"-DTENSORRT_INCLUDE={tensorrt}", f"-DCUDA_INCLUDE={cuda}", f"-DCMAKE_CXX_COMPILER={compiler}"]
    options += ["-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_SYSTEM_PROCESSOR={machine}", "-DCMAKE_CXX_FLAGS=-Werror"]
    assert "built for TensorRT" in configured(tmp_path, *options)
    subprocess.run(["cmake", "--build", str(tmp_path), "--target", "kvedge_tensorrt"], check=True)
    library = tmp_path / "tensorrt" / "libkvedge_tensorrt.so"
    needed = subprocess.run(["readelf", "-d", str(library)], capture_output=True, text=True, check=True).stdout
    assert not [name for name in ("libcuda", "libnvinfer", "libstdc++") if name in needed]
