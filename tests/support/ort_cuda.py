"""Graphs with kvedge::PagedAttention as ONNX Runtime's CUDA provider gets it, and runs of them with stand-ins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from launch_nodes import Node
from onnx import TensorProto, helper
from stand_in_driver import DRIVER_NAME, TESTS, StandInDriver, build_library, bundle, types_of

from kvedge.plugins import schema
from kvedge.plugins.cuda.compile import Compiled
from kvedge.plugins.library import cuda_library_path
from kvedge.targets import names

Job = dict[str, Any]
FORM = 3
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "int32": TensorProto.INT32}


def faults_on_host(folder: Path, *streams: str) -> dict[str, str | None]:
    """What is wrong with streams of ort_cuda_on_host.py, by name."""
    build_library(TESTS / "stand_in_provider.cc", folder / "provider.so")
    build_library(TESTS / "stand_in_driver_on_host.cc", folder / "driver" / DRIVER_NAME)
    script = Path(__file__).with_name("ort_cuda_on_host.py")
    command = [sys.executable, str(script), str(folder / "provider.so"), str(folder / "streams"), *streams]
    libraries = {"LD_LIBRARY_PATH": str(folder / "driver"), "KVEDGE_CUDA_LIBRARY": str(cuda_library_path())}
    done = subprocess.run(command, env=os.environ | libraries, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    faults: dict[str, str | None] = json.loads(done.stdout)
    return faults


class StandInRuntime:
    """The true ONNX Runtime, with stand-ins of its CUDA provider and of the driver."""

    def __init__(self, folder: Path) -> None:
        self._provider = folder / "provider.so"
        build_library(TESTS / "stand_in_provider.cc", self._provider)
        self._driver = StandInDriver(folder / "driver")

    def run(self, jobs: list[Job]) -> list[dict[str, Any]]:
        """What came of each job, in a process of their own."""
        return self._run(jobs, self._driver.told([]))

    def run_with_the_true_driver(self, jobs: list[Job]) -> list[dict[str, Any]]:
        """The same with the driver that there is, if there is one."""
        told = self._driver.told([])
        return self._run(jobs, {name: value for name, value in told.items() if name != "LD_LIBRARY_PATH"})

    def _run(self, jobs: list[Job], environment: dict[str, str]) -> list[dict[str, Any]]:
        library = {"KVEDGE_CUDA_LIBRARY": str(cuda_library_path())}
        command = [sys.executable, str(Path(__file__).with_name("ort_cuda_jobs.py")), str(self._provider)]
        options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 120}
        done = subprocess.run(command, input=json.dumps(jobs), env=environment | library, **options)
        assert done.returncode == 0, done.stderr[-2000:]
        results: list[dict[str, Any]] = json.loads(done.stdout)
        return results


def model_of(nodes: list[Node], **changed: object) -> onnx.ModelProto:
    """One layer behind the other in name only: each has tensors of its own, `name.i`; sizes of a step are free."""
    graph_nodes, inputs, outputs = [], [], []
    for i, node in enumerate(nodes):
        ins, outs = node.tensors()
        attributes = {**schema.attributes(node.layer, interleaved=False), "inputs": ",".join(ins), "form": FORM}
        attributes |= changed
        op = helper.make_node(
            schema.NAME,
            [f"{name}.{i}" for name in ins],
            [f"{name}.{i}" for name in outs],
            name=f"layer {i}",
            domain=schema.DOMAIN,
        )
        op.attribute.extend(helper.make_attribute(n, value) for n, value in attributes.items() if value is not None)
        graph_nodes.append(op)
        inputs += [_described(f"{name}.{i}", array) for name, array in ins.items()]
        outputs += [_described(f"{name}.{i}", array) for name, array in outs.items()]
    graph = helper.make_graph(graph_nodes, "layers", inputs, outputs)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(schema.DOMAIN, schema.VERSION)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _described(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    sizes = [f"{name}_{axis}" for axis in range(array.ndim)]
    return helper.make_tensor_value_info(name, TYPES[str(array.dtype)], sizes)


def job_of(folder: Path, steps: list[list[Node]], **changed: object) -> tuple[Job, dict[str, Compiled]]:
    """Steps of the same layers, and the kernels by symbol; changed are attributes of the nodes, None for none."""
    folder.mkdir(parents=True, exist_ok=True)
    _, kernels = bundle(steps[0][0].form, folder / names.kernels(FORM, 87))
    path = folder / "model.onnx"
    onnx.save(model_of(steps[0], **changed), path)
    words = types_of(kernels)
    runs = [{"words": words, "apart": False, **_tensors(nodes)} for nodes in steps]
    return {"model": str(path), "kernels": str(folder), "words": [], "runs": runs}, kernels


def _tensors(nodes: list[Node]) -> dict[str, Any]:
    both: dict[str, dict[str, tuple[tuple[int, ...], str]]] = {"inputs": {}, "outputs": {}}
    for i, node in enumerate(nodes):
        for kind, arrays in zip(both, node.tensors(), strict=True):
            both[kind] |= {f"{name}.{i}": (array.shape, str(array.dtype)) for name, array in arrays.items()}
    return both


def addresses_of(run: dict[str, Any], layer: int = 0) -> dict[str, int]:
    """Of one layer's tensors."""
    end = f".{layer}"
    return {name.removesuffix(end): at for name, at in run["addresses"].items() if name.endswith(end)}
