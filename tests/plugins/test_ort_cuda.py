"""The operator for ONNX Runtime's CUDA provider, as the wheel has it: in the true ONNX Runtime, with stand-ins of that
provider and of the CUDA driver."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from launch_nodes import Node
from launches import check_step, steps
from ort_cuda import FORM, Job, StandInRuntime, addresses_of, faults_on_host, job_of
from stand_in_driver import PLUGINS, Call, bundle, only
from streams import make_layer

from kvedge.export import artifact
from kvedge.export.gpu.graph import make_gpu
from kvedge.plugins import library
from kvedge.plugins.cuda.forms import form_of, layer_forms
from kvedge.plugins.cuda.variants import LayerForm
from kvedge.targets import manifest, names
from kvedge.targets.errors import KvedgeError
from kvedge.targets.kinds import Kind

if TYPE_CHECKING:
    from conftest import Tiny

STEPS = steps()
NODE = Node(layer=make_layer(), batch=2, new_tokens=3)
LARGER = Node(layer=make_layer(), batch=2, new_tokens=40)


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> StandInRuntime:
    """ONNX Runtime without a GPU."""
    return StandInRuntime(tmp_path_factory.mktemp("ort_cuda"))


@pytest.fixture(scope="module")
def stepped(runtime: StandInRuntime, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Jobs' kernels and results by the name of their only step."""
    folder = tmp_path_factory.mktemp("steps")
    jobs = {name: job_of(folder / str(i), [[node]]) for i, (name, node) in enumerate(STEPS.items())}
    results = runtime.run([job for job, _ in jobs.values()])
    return {name: (kernels, result) for (name, (_, kernels)), result in zip(jobs.items(), results, strict=True)}


def workspace_of(calls: list[Call]) -> tuple[int, int]:
    """Where the last one allocated begins, and its bytes."""
    last = only(calls, "allocated")[-1]
    return last["allocated"], last["bytes"]


@pytest.mark.parametrize("name", STEPS)
def test_stand_in_driver_is_asked_what_python_asks(stepped: dict[str, Any], name: str) -> None:
    kernels, result = stepped[name]
    assert result["error"] is None and result["runs"][0]["error"] is None
    (run,) = result["runs"]
    calls = result["loading"] + run["calls"]
    check_step(STEPS[name], calls, kernels, addresses_of(run), workspace_of(calls))
    assert not only(calls, "copy") and len(only(calls, "allocated")) == 2


def test_launches_done_by_triton_s_interpreter_give_the_reference(tmp_path: Path) -> None:
    """Pools bit for bit, outputs within 2e-6: a graph's node, the library, its launches and the kernels at once."""
    assert faults_on_host(tmp_path, "key bias") == {"key bias": None}


@pytest.mark.slow
def test_launches_done_by_triton_s_interpreter_give_the_reference_for_more_layers(tmp_path: Path) -> None:
    names = ("int3", "k4v2", "fp", "head_dim 24", "fp8", "MQA")
    assert faults_on_host(tmp_path, *names) == dict.fromkeys(names)


def test_pools_with_outputs_of_their_own_are_copied_first(runtime: StandInRuntime, tmp_path: Path) -> None:
    job, kernels = job_of(tmp_path, [[NODE]])
    job["runs"][0]["apart"] = True
    (result,) = runtime.run([job])
    (run,) = result["runs"]
    at, calls = addresses_of(run), run["calls"]
    inputs = NODE.tensors()[0]
    assert calls[:2] == [
        {"copy": at[f"{pool}_out"], "from": at[pool], "bytes": inputs[pool].nbytes, "stream": 0x57}
        for pool in ("hot", "packed")
    ]
    written = at | {pool: at[f"{pool}_out"] for pool in ("hot", "packed")}
    calls = result["loading"] + calls
    check_step(NODE, calls, kernels, written, workspace_of(calls))


def test_layers_share_kernels_and_workspace(runtime: StandInRuntime, tmp_path: Path) -> None:
    job, _ = job_of(tmp_path, [[NODE, NODE], [LARGER, LARGER], [NODE, NODE], [LARGER, LARGER]])
    (result,) = runtime.run([job])
    assert len(only(result["loading"], "module")) == 6 and len(only(result["loading"], "upload")) == 1
    runs = [run["calls"] for run in result["runs"]]
    assert [len(only(calls, "allocated")) for calls in runs] == [1, 1, 0, 0]
    assert [len(only(calls, "launch")) for calls in runs] == [10] * 4
    small, large = workspace_of(runs[0])[0], workspace_of(runs[1])[0]
    waits = [call for call in runs[1] if "synchronized" in call or "freed" in call]
    assert waits == [{"synchronized": 0x57}, {"freed": small}]
    assert sum(large in call["parameters"] for call in only(runs[2], "launch")) > 0
    assert {call["freed"] for call in only(result["closing"], "freed")} == {
        large,
        only(result["loading"], "upload")[0]["upload"],
    }
    assert len(only(result["closing"], "unload")) == 6


def test_a_step_leaves_room_for_every_smaller_one(runtime: StandInRuntime, tmp_path: Path) -> None:
    """Of many packed pages, few tokens cut them into more splits than many tokens do, which takes more memory."""
    prefill, decode = (Node(layer=make_layer(), packed_slots=400, new_tokens=n) for n in (30, 8))
    jobs = [
        job_of(tmp_path / f"{n}", [[node] for node in nodes])[0]
        for n, nodes in enumerate(([prefill, decode], [decode]))
    ]
    (both, alone) = runtime.run(jobs)
    first, second = (run["calls"] for run in both["runs"])
    assert not only(second, "allocated")
    assert workspace_of(first)[1] == workspace_of(alone["runs"][0]["calls"])[1] > 0


def test_a_captured_workspace_stays(runtime: StandInRuntime, tmp_path: Path) -> None:
    """A CUDA graph may be replayed at any time: what it writes to is kept to the end."""
    job, _ = job_of(tmp_path, [[NODE], [NODE], [LARGER], [LARGER]])
    for i in (1, 2):
        job["runs"][i]["words"] = [*job["runs"][i]["words"], "captures=1"]
    (result,) = runtime.run([job])
    first, captured, too_large, after = result["runs"]
    assert first["error"] is None and captured["error"] is None and after["error"] is None
    assert "workspace: expected a step of this size before one is captured as a CUDA graph, got" in too_large["error"]
    assert not only(too_large["calls"], "launch")
    assert not only(after["calls"], "freed") and len(only(after["calls"], "allocated")) == 1
    kept = workspace_of(first["calls"])[0]
    assert {"freed": kept} in result["closing"]


def test_kernels_are_loaded_in_the_first_step_where_there_is_no_context_before(
    runtime: StandInRuntime, tmp_path: Path
) -> None:
    job, kernels = job_of(tmp_path, [[NODE], [NODE]])
    (result,) = runtime.run([job | {"words": ["context=0"]}])
    assert result["error"] is None and result["loading"] == []
    first, second = result["runs"]
    assert len(only(first["calls"], "module")) == 6 and not only(second["calls"], "module")
    check_step(NODE, first["calls"], kernels, addresses_of(first), workspace_of(first["calls"]))


def with_words(job: Job, *words: str) -> Job:
    return job | {"words": list(words)}


def elsewhere(job: Job, folder: Path) -> Job:
    return job | {"kernels": str(folder)}


FAULTS: dict[str, tuple[dict[str, object], Callable[[Job], Job], str]] = {
    "no form": ({"form": None}, lambda job: job, "attribute form: expected a number from 0 to 2^31 - 1, got none"),
    "no inputs": ({"inputs": None}, lambda job: job, "attribute inputs: expected a text, got none; export the model"),
    "another layer": (
        {"heads": 8},
        lambda job: job,
        "heads: expected 4, which kernel attend_decode is compiled for, got 8 (node 'layer 0')",
    ),
    "another chip": (
        {},
        lambda job: with_words(job, "sm=90"),
        f"{names.kernels(FORM, 90)}: expected kernels for this GPU, sm_90, got some for sm_87 only; "
        "export the model again, with --sm 90 and a --kv that it reads (node 'layer 0')",
    ),
    "no kernels": (
        {},
        lambda job: elsewhere(job, Path(job["kernels"]).parent),
        f"{names.kernels(FORM, 87)}: expected kernels for this GPU, sm_87, got none; export the model",
    ),
    "no folder": (
        {},
        lambda job: job | {"kernels": None},
        "session option kvedge.kernels: expected the folder of the kernels before this library is registered, got none",
    ),
    "kernels that the driver refuses": (
        {},
        lambda job: with_words(job, "result.load=209"),
        "kernel append for sm_87, code of CUDA 12.6, loading with a driver of CUDA 12.4: expected success, "
        "got CUDA error 209, said by a stand-in (node 'layer 0')",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_node_is_refused_when_the_model_is_loaded(runtime: StandInRuntime, tmp_path: Path, name: str) -> None:
    attributes, change, message = FAULTS[name]
    job, _ = job_of(tmp_path / "kernels", [[NODE]], **attributes)
    (result,) = runtime.run([change(job)])
    assert result["error"] is not None and message in result["error"]


def test_a_wrong_tensor_is_refused_before_anything_is_launched(runtime: StandInRuntime, tmp_path: Path) -> None:
    job, _ = job_of(tmp_path, [[NODE], [NODE], [NODE]])
    words = NODE.layer.packed_shape(1)[1]
    job["runs"][0]["inputs"]["packed.0"] = ((7, 10), "int32")
    job["runs"][1]["inputs"]["hot_table.0"] = ((2, 1), "int32")
    job["runs"][2]["words"] = [*job["runs"][2]["words"], "result.allocate=2"]
    (result,) = runtime.run([job])
    errors = [run["error"] for run in result["runs"]]
    assert "Name:'layer 0'" in errors[0] and f"packed: expected [any, {words}], got [7, 10]" in errors[0]
    assert "hot_table: expected more than 1 columns, the sinks' pages, got 1" in errors[1]
    assert "workspace, allocation of" in errors[2] and "got CUDA error 2" in errors[2]
    assert not [call for run in result["runs"] for call in run["calls"]]


def test_a_wrong_type_is_refused(runtime: StandInRuntime, tmp_path: Path) -> None:
    halves, floats = Node(layer=make_layer()), Node(layer=make_layer(Kind.FP))
    job, _ = job_of(tmp_path, [[halves]])
    model = onnx.load(job["model"])
    for value in (*model.graph.input, *model.graph.output):
        if value.name in ("hot.0", "hot_out.0"):
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
            shape = floats.tensors()[0]["hot"].shape
            job["runs"][0]["inputs" if value.name == "hot.0" else "outputs"][value.name] = (shape, "float32")
    onnx.save(model, job["model"])
    (result,) = runtime.run([job])
    assert "hot: expected float16, got float [5, 2, 2, 8, 16]" in result["runs"][0]["error"]


def test_an_exported_graph_is_one_that_it_takes(runtime: StandInRuntime, tiny: Tiny, tmp_path: Path) -> None:
    """Its nodes and their kernels fit each other, and ONNX Runtime knows the types of all that is behind them."""
    cache = manifest.load(tiny.int3).cache
    model = ir.load(tiny.int3 / manifest.GRAPH)
    make_gpu(model, cache)
    artifact.write_graph(model, tmp_path)
    firsts = {form: index for index, form in reversed(layer_forms(cache, {}).items())}
    for number, index in firsts.items():
        form = form_of(cache, cache.layers[index], 0)
        bundle(
            LayerForm(
                layer=cache.layers[index],
                rotary_pairs=form.rotary_pairs,
                interleaved=form.interleaved,
                bias_pairs=form.bias_pairs,
            ),
            tmp_path / names.kernels(number, 87),
        )
    job = {"model": str(tmp_path / manifest.GRAPH), "kernels": str(tmp_path), "words": [], "runs": []}
    (result,) = runtime.run([job])
    assert result["error"] is None
    assert len(only(result["loading"], "module")) == 6 * len(firsts)


def test_without_a_cuda_provider_the_library_loads_and_the_model_does_not(tmp_path: Path) -> None:
    job, _ = job_of(tmp_path, [[NODE]])
    options = ort.SessionOptions()
    library.register_cuda(options, tmp_path)
    with pytest.raises(Exception, match=r"Failed to find kernel for kvedge.PagedAttention\(1\) .*layer 0"):
        ort.InferenceSession(job["model"], options, providers=["CPUExecutionProvider"])


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KvedgeError, match="kernels; expected a folder of compiled kernels; got .*/none"):
        library.register_cuda(ort.SessionOptions(), tmp_path / "none")


def test_a_missing_driver_is_named(runtime: StandInRuntime, tmp_path: Path) -> None:
    """Where there is a driver, the process has no context of it."""
    job, _ = job_of(tmp_path, [[NODE]])
    (result,) = runtime.run_with_the_true_driver([job])
    said = result["error"] or result["runs"][0]["error"]
    assert "libcuda.so.1: expected the CUDA driver, got" in said or "the current CUDA context: expected one" in said


def test_the_library_needs_nothing_but_the_c_library() -> None:
    path = str(library.cuda_library_path())
    if shutil.which("readelf") is None or shutil.which("ldd") is None:
        pytest.skip("no readelf or ldd found: what the library needs was not looked at")
    dynamic = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
    needed = {line.split("[")[1].split(".so")[0] for line in dynamic.splitlines() if "(NEEDED)" in line}
    if "libasan" in needed:
        pytest.skip("a build with sanitizers, which the wheel is not")
    assert needed <= {"libc", "libm", "libdl", "libpthread", "ld-linux-x86-64", "ld-linux-aarch64"}
    unresolved = subprocess.run(["ldd", "-r", path], capture_output=True, text=True, check=True)
    assert "undefined" not in unresolved.stdout + unresolved.stderr
    assert library.TOO_OLD.encode() in Path(path).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["g++", "aarch64-linux-gnu-g++"])
def test_the_library_is_built_without_warnings(tmp_path: Path, compiler: str) -> None:
    if shutil.which(compiler) is None or shutil.which("cmake") is None:
        pytest.skip(f"no {compiler} or no cmake found: the library was not built with it")
    machine = "aarch64" if compiler.startswith("aarch64") else "x86_64"
    options = [f"-DCMAKE_CXX_COMPILER={compiler}", "-DCMAKE_CXX_FLAGS=-Werror", f"-DTENSORRT_INCLUDE={tmp_path}"]
    options += ["-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_SYSTEM_PROCESSOR={machine}"]
    subprocess.run(["cmake", "-S", str(PLUGINS), "-B", str(tmp_path), *options], check=True)
    subprocess.run(["cmake", "--build", str(tmp_path), "--target", "kvedge_cuda"], check=True)
    assert (tmp_path / "libkvedge_cuda.so").is_file()
