"""The TensorRT plugin compiled with a stand-in of TensorRT's registry."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from launch_nodes import Node
from stand_in_driver import PLUGINS, TESTS, StandInDriver, bundle, compiler, types_of

from kvedge.plugins import schema
from kvedge.plugins.cuda.compile import Compiled

SANITIZE = "-fsanitize=address,undefined"


def headers() -> tuple[Path, Path]:
    """Folders of NvInfer.h and of cuda_runtime_api.h, which it includes; skips where they are not."""
    tensorrt = Path(os.environ.get("TENSORRT_INCLUDE", f"/usr/include/{platform.machine()}-linux-gnu"))
    cuda = Path(os.environ.get("CUDA_INCLUDE", "/usr/local/cuda/include"))
    if not (tensorrt / "NvInfer.h").is_file():
        pytest.skip("NvInfer.h not found: the TensorRT plugin was not tested (set TENSORRT_INCLUDE)")
    if not (cuda / "cuda_runtime_api.h").is_file():
        pytest.skip("cuda_runtime_api.h not found: the TensorRT plugin was not tested (set CUDA_INCLUDE)")
    return tensorrt, cuda


class Program:
    """Drives the plugin as TensorRT would."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "stand_in"
        flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", SANITIZE, "-fno-sanitize-recover=all"]
        include = [f"-I{PLUGINS}", f"-I{PLUGINS / 'include'}", f"-I{TESTS}"]
        system = [word for path in headers() for word in ("-isystem", str(path))]
        folders = PLUGINS / "launch", PLUGINS / "tensorrt"
        sources = [*(source for part in folders for source in part.glob("*.cc")), TESTS / "tensorrt_stand_in.cc"]
        objects = {source: str(folder / f"{source.parent.name}-{source.stem}.o") for source in sources}

        def compile_one(source: Path) -> None:
            command = [compiler(), *flags, *include, *system, "-c", str(source), "-o", objects[source]]
            subprocess.run(command, check=True)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(compile_one, sources))
        subprocess.run([compiler(), SANITIZE, *objects.values(), "-o", str(self._path), "-ldl"], check=True)
        self.driver = StandInDriver(folder / "driver")

    def run(self, *words: str) -> dict[str, Any]:
        """What it prints, with the driver's stand-in."""
        return self._run(words, self.driver.told(words))

    def run_with_the_true_driver(self, *words: str) -> dict[str, Any]:
        """What it prints with the driver that there is, if there is one."""
        return self._run(words, os.environ | {"KVEDGE_STAND_IN": "/dev/null"})

    def _run(self, words: tuple[str, ...], environment: Mapping[str, str]) -> dict[str, Any]:
        command = [str(self._path), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
        assert done.returncode == 0, done.stderr
        result: dict[str, Any] = json.loads(done.stdout)
        return result


def words_of(node: Node, folder: Path) -> tuple[list[str], dict[str, Compiled]]:
    """A node's words for the program, and its kernels by symbol."""
    path, kernels = bundle(node.form, folder / "kernels.safetensors")
    inputs, outputs = node.tensors()
    words = [f"{name}={value}" for name, value in schema.attributes(node.layer, interleaved=False).items()]
    words += [f"kernels={path}", f"inputs={','.join(inputs)}"]
    words += [f"tensors_in={','.join(inputs)}", f"tensors_out={','.join(outputs)}"]
    for name, array in (inputs | outputs).items():
        words += [f"shape.{name}={','.join(map(str, array.shape))}", f"type.{name}={node.type_of(name)}"]
    return words + types_of(kernels), kernels
