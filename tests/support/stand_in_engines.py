"""A stand-in of TensorRT's runtime, for tests without a GPU: its engines are ONNX graphs that run on the CPU.

It is as strict as the original about what the runtime must have set: a profile that has the shapes, addresses of all
tensors, scratch memory that is large enough. Work goes through the stand-in of the driver, which may record it.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from chains import cut_graph

from kvedge.export.build.parts import with_hidden
from kvedge.plugins import library
from kvedge.targets import manifest as artifact
from kvedge.targets.devices import EngineKind
from kvedge.targets.engine_file import (
    RECORD,
    Build,
    Part,
    Record,
    file_of,
    make_part,
    part_path,
    source_digest,
    write_record,
)
from kvedge.targets.hidden import Hidden
from kvedge.targets.manifest import Manifest
from kvedge.targets.profiles import Profile

SOURCE = Path(__file__).parent / "stand_in_cuda.cc"
VERSION = "0.0.stand-in"
SCRATCH = 1000
SM = 89
_WORK = ctypes.CFUNCTYPE(None, ctypes.c_int64)


def compile_driver(folder: Path) -> Path:
    """The driver's stand-in as a library."""
    target = folder / "libcuda_stand_in.so"
    command = [
        "g++",
        "-std=c++17",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-shared",
        "-fPIC",
        "-o",
        str(target),
        str(SOURCE),
    ]
    subprocess.run(command, check=True)
    return target


def write_engine(
    folder: Path, model: ir.Model, manifest: Manifest, profiles: dict[str, Profile], count: int = 1
) -> None:
    """Put a stand-in engine into an artifact's folder, in `count` blocks: the graphs, and the shapes that they are for.

    Each asks for more scratch memory than the one after it.
    """
    build = Build(engine=manifest.engine, version=VERSION, sm=SM)
    blocks = cut_graph(ir.to_proto(model), manifest.cache, count)
    parts = []
    for number, graph in enumerate(blocks.graphs):
        path = part_path(folder, build, number, count)
        path.parent.mkdir(exist_ok=True)
        wanted = {value.name for value in graph.graph.input}
        ranges = [with_hidden(profile, blocks.hidden) for profile in profiles.values()]
        shapes = [{name: asdict(shape) for name, shape in each.items() if name in wanted} for each in ranges]
        head = {"engine": manifest.engine.value, "scratch": SCRATCH + count - number, "profiles": shapes}
        path.write_bytes(json.dumps(head).encode() + b"\n" + graph.SerializeToString())
        parts.append(make_part(path, ""))
    write_parts(folder, build, manifest, parts=tuple(parts), hidden=blocks.hidden)


def write_parts(
    folder: Path, build: Build, manifest: Manifest, *, parts: tuple[Part, ...], hidden: tuple[Hidden, ...] = ()
) -> None:
    """Write the record of an engine."""
    graph = source_digest(manifest, build)
    record = Record(build=build, graph=graph, workspace=None, parts=parts, hidden=hidden)
    write_record(file_of(folder, build, RECORD), record)


class StandInLibrary:
    """What of the Python package `tensorrt` the runtime uses.

    Args:
        driver: the driver's stand-in.
    """

    __name__ = "the stand-in"
    __version__ = VERSION
    ExecutionContextAllocationStrategy = SimpleNamespace(USER_MANAGED="user managed")
    TensorIOMode = SimpleNamespace(INPUT="input", OUTPUT="output")

    class ILogger:
        """As the original's."""

        ERROR, INTERNAL_ERROR, WARNING = "error", "internal error", "warning"

    def __init__(self, driver: Path) -> None:
        self.driver = ctypes.CDLL(str(driver))
        self.loaded: list[str] = []
        self.refuses_recording = False
        self.contexts = 0
        self.compiled: list[str] = []

    def imported(self, name: str) -> StandInLibrary:
        """As one of the packages: only that for RTX compiles kernels where it runs."""
        self.__dict__.pop("DynamicShapesKernelSpecializationStrategy", None)
        if name == "tensorrt_rtx":
            self.DynamicShapesKernelSpecializationStrategy = SimpleNamespace(EAGER="eager", LAZY="lazy")
        return self

    def get_plugin_registry(self) -> Any:
        """Takes plugins but one, which is not there afterwards."""

        def load_library(path: str) -> object | None:
            self.loaded.append(path)
            return None if "refused" in path else self

        def get_creator(*_: str) -> object | None:
            return self if self.loaded and "refused" not in self.loaded[-1] else None

        return SimpleNamespace(load_library=load_library, get_creator=get_creator)

    def Runtime(self, log: Any) -> Any:  # noqa: N802  (the original's name)
        """Loads engines that `write_engine` wrote."""
        return SimpleNamespace(deserialize_cuda_engine=lambda data: self._load(log, bytes(memoryview(data))))

    def _load(self, log: Any, data: bytes) -> Any:
        if not data.startswith(b"{"):
            log.log(self.ILogger.ERROR, "version tag does not match")
            return None
        return _Engine(self, log, data)


class _Engine:
    def __init__(self, owner: StandInLibrary, log: Any, data: bytes) -> None:
        line, _, graph = data.partition(b"\n")
        head = json.loads(line)
        self.library, self.driver, self.log, self.profiles = owner, owner.driver, log, head["profiles"]
        self.is_rtx = head["engine"] == EngineKind.TENSORRT_RTX.value
        self.device_memory_size_v2 = head["scratch"]
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        library.register(options)
        self.session = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        self._names = {value.name: "input" for value in self.session.get_inputs()}
        self._names |= {value.name: "output" for value in self.session.get_outputs()}

    @property
    def num_io_tensors(self) -> int:
        return len(self._names)

    def get_tensor_name(self, number: int) -> str:
        return list(self._names)[number]

    def get_tensor_mode(self, name: str) -> str:
        return self._names[name]

    def create_runtime_config(self) -> Any:
        """TensorRT has one since 10.11, with the first of these settings only."""
        return _RtxConfig(self.library) if self.is_rtx else _Config()

    def create_execution_context(self, how: Any) -> Any:
        if self.is_rtx:
            how.compile()
        strategy = getattr(how, "strategy", how)
        assert strategy == "user managed"
        self.library.contexts += 1
        return _Context(self)


class _Config:
    """Settings of a context."""

    __slots__ = ("strategy",)

    def set_execution_context_allocation_strategy(self, strategy: str) -> None:
        self.strategy = strategy


class _RtxConfig(_Config):
    __slots__ = ("_cache", "_library", "dynamic_shapes_kernel_specialization_strategy")

    def __init__(self, library: StandInLibrary) -> None:
        self._library = library

    def create_runtime_cache(self) -> _RuntimeCache:
        return _RuntimeCache()

    def set_runtime_cache(self, cache: _RuntimeCache) -> bool:
        self._cache = cache
        return True

    def compile(self) -> None:
        """What is not in the cache yet."""
        wanted = self.dynamic_shapes_kernel_specialization_strategy
        if wanted not in self._cache.kernels:
            self._cache.kernels.append(wanted)
            self._library.compiled.append(wanted)


class _RuntimeCache:
    def __init__(self) -> None:
        self.kernels: list[str] = []

    def serialize(self) -> bytes:
        return json.dumps(self.kernels).encode()

    def deserialize(self, blob: bytes) -> bool:
        try:
            self.kernels = json.loads(bytes(blob))
        except ValueError:
            return False
        return True


class _Context:
    def __init__(self, engine: _Engine) -> None:
        self._engine, self._profile = engine, -1
        self._scratch = 0
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._given: list[tuple[ort.IOBinding, tuple[Any, ...]]] = []
        self._work = _WORK(self._run)

    def set_device_memory(self, address: int, size: int) -> None:
        assert address % 256 == 0 and size >= self._engine.device_memory_size_v2
        self._scratch = size

    def set_optimization_profile_async(self, number: int, stream: int) -> bool:
        assert stream
        if number >= len(self._engine.profiles):
            raise RuntimeError("no such profile")  # as the bindings do
        self._profile = number
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        limits = self._engine.profiles[self._profile].get(name)
        fits = limits is not None and len(shape) == len(limits["least"])
        fits = fits and all(
            low <= at <= high for low, at, high in zip(limits["least"], shape, limits["most"], strict=True)
        )
        if not fits:
            self._engine.log.log("error", f"{name} {shape} is outside of profile {self._profile}")
            return False
        self._shapes[name] = tuple(shape)
        return True

    def set_tensor_address(self, name: str, address: int) -> bool:
        self._engine.get_tensor_mode(name)  # it is one of its own
        self._addresses[name] = address
        return address % 256 == 0

    def execute_async_v3(self, stream: int) -> bool:
        assert stream and self._scratch
        if self._engine.library.refuses_recording and self._engine.driver.stand_in_is_recording():
            return False
        self._given.append((self._bound(), self._state()))
        self._engine.driver.stand_in_enqueue(self._work, ctypes.c_int64(len(self._given) - 1))
        return True

    def _run(self, number: int) -> None:
        """Nothing, where the context is no longer as it was when this was recorded: the original promises nothing."""
        binding, state = self._given[number]
        if state == self._state():
            self._engine.session.run_with_iobinding(binding)

    def _state(self) -> tuple[Any, ...]:
        return self._profile, dict(self._shapes), dict(self._addresses)

    def _bound(self) -> ort.IOBinding:
        session, sizes = self._engine.session, {}
        binding = session.io_binding()
        for value in session.get_inputs():
            shape = self._shapes[value.name]
            sizes |= {dim: size for dim, size in zip(value.shape, shape, strict=True) if isinstance(dim, str)}
            binding.bind_input(value.name, "cpu", 0, _dtype(value), shape, self._addresses[value.name])
        for value in session.get_outputs():
            shape = tuple(sizes.get(dim, dim) for dim in value.shape)
            binding.bind_output(value.name, "cpu", 0, _dtype(value), shape, self._addresses[value.name])
        return binding


def _dtype(value: Any) -> np.dtype[Any]:
    return np.dtype({"float": "float32"}.get(name := value.type[7:-1], name))


def load_whole(folder: Path) -> ir.Model:
    """An artifact's graph with its weights inside."""
    model = ir.load(folder / artifact.GRAPH)
    ir.external_data.load_to_model(model)
    return model
