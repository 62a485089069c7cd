"""`kvedge build`: real engines of TensorRT for RTX; for TensorRT all but the engine itself, which needs a GPU."""

from __future__ import annotations

import shutil
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from built_artifacts import for_engine
from commands import Command, check_error

from kvedge.export.build import command, memory
from kvedge.export.build.builder import EngineJob
from kvedge.export.build.graph import graph_with_kernels
from kvedge.targets import manifest as artifact
from kvedge.targets.devices import EngineKind, find_target
from kvedge.targets.engine_file import Build, find_engine, read_record
from kvedge.targets.errors import KvedgeError
from kvedge.targets.manifest import Manifest, describe
from kvedge.targets.profiles import profiles

rtx = pytest.importorskip("tensorrt_rtx", reason="no engine was built: the package tensorrt-rtx is absent")


@pytest.fixture(scope="module")
def exported(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny artifact with exact pages for TensorRT for RTX: quick to build."""
    return for_engine(tiny.fp, tmp_path_factory.mktemp("rtx") / "fp", EngineKind.TENSORRT_RTX)


@pytest.fixture
def folder(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "artifact"))


def test_an_engine_is_built_and_found(folder: Path, kvedge: Command) -> None:
    result = kvedge("build", folder, "--target", "rtx", "--sm", 89, "--json")
    found, made = result.json, Build(engine=EngineKind.TENSORRT_RTX, version=rtx.__version__, sm=89)
    (path,) = find_engine(folder, artifact.load(folder), made).parts
    assert found["engines"] == [str(path)] and found["bytes"] == path.stat().st_size > 10_000
    assert path.name == f"tensorrt-rtx-sm89-{rtx.__version__}.engine"
    assert {each.suffix for each in path.parent.iterdir()} == {".engine", ".json"}
    text = kvedge("build", folder, "--target", "rtx", "--sm", 120).out  # a second one lies beside it
    assert "sm120" in text and len(list(path.parent.glob("*.engine"))) == 2


# ---- What is refused.


def test_mistakes_are_one_line(folder: Path, tiny: Any, tmp_path: Path, kvedge: Command) -> None:
    def refused(*words: object) -> None:
        where, options, *parts = words
        check_error(kvedge("build", where, *options), *map(str, parts))  # type: ignore[misc]

    card = ("--target", "rtx", "--sm", 89)
    refused(tmp_path / "none", card, "expected a folder", "got nothing there")
    refused(tiny.fp, card, "expected one whose engine is built", "(CPU)", "--target rtx")
    refused(
        folder, ("--target", "jetson-orin-nano"), "expected one for TensorRT", "got TensorRT for RTX", "export it again"
    )
    refused(folder, ("--target", "cpu"), "expected one for ONNX Runtime (CPU)")
    refused(folder, ("--target", "xbox"), "--target", "expected one of", "got xbox")
    refused(folder, ("--target", "rtx", "--sm", 87), "rtx", "expected SM86, SM89 or SM120", "got SM87")
    refused(folder, (*card, "--workspace", "lots"), "--workspace", "expected a size such as", "got lots")
    words = ("no GPU to build for", "expected SM86, SM89 or SM120", "no CUDA driver", "such as --sm 89")
    refused(folder, ("--target", "rtx"), *words)
    assert not (folder / "engines").exists()


def test_memory_is_asked_first(folder: Path, kvedge: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    little = tmp_path / "meminfo"
    little.write_text("MemTotal: 9000 kB\nMemAvailable:     20 kB\nSwapFree:  900 kB\n")
    swaps = tmp_path / "swaps"
    swaps.write_text("Filename Type Size Used Priority\n/dev/zram0 partition 800 0 5\n/swap file 9 2 -2\n")
    monkeypatch.setattr(memory, "MEMINFO", little)
    monkeypatch.setattr(memory, "SWAPS", swaps)
    words = ("building the engine", "free, by estimate", "got 27.6 kB of memory and swap", "--force")
    check_error(kvedge("build", folder, "--target", "rtx", "--sm", 89), *words)
    assert kvedge("build", folder, "--target", "rtx", "--sm", 89, "--force").code == 0


def test_a_failed_build_leaves_nothing(folder: Path, kvedge: Command) -> None:
    graph = onnx.load(str(folder / artifact.GRAPH), load_external_data=False)
    graph.graph.node[3].op_type = "BitwiseAnd"
    onnx.save(graph, str(folder / artifact.GRAPH))
    old = artifact.read(folder)
    artifact.write(folder, replace(old, files=old.files | {artifact.GRAPH: describe(folder / artifact.GRAPH)}))
    words = ("cannot read the graph", "expected operators that it knows", "BitwiseAnd", graph.graph.node[3].name)
    check_error(kvedge("build", folder, "--target", "rtx", "--sm", 89), *words)
    assert not (folder / "engines").exists()


def test_ctrl_c_ends_a_build(folder: Path, kvedge: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the builder's next step."""
    before, monitor = signal.default_int_handler, []
    outside = signal.signal(signal.SIGINT, before)  # which may be none: a shell's background has Ctrl-C ignored

    def interrupt(trt: Any, job: Any, given: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        given.phase_start("a phase", None, 2)
        monitor.append(given.step_complete("a phase", 0))
        given.phase_finish("a phase")
        raise KvedgeError("built no engine")

    monkeypatch.setattr(command, "build_engine", interrupt)
    result = kvedge("build", folder, "--target", "rtx", "--sm", 89)
    assert (result.code, monitor) == (130, [False]) and "interrupted" in result.err
    assert signal.signal(signal.SIGINT, outside) is before and not (folder / "engines").exists()


def test_the_real_builder_listens(folder: Path) -> None:
    """Its steps are counted, and it stops where it is told to."""
    steps: list[str] = []

    class Monitor(rtx.IProgressMonitor):
        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None: ...

        def step_complete(self, phase_name: str, step: int) -> bool:
            steps.append(phase_name)
            return len(steps) < 3

        def phase_finish(self, phase_name: str) -> None: ...

    with pytest.raises(KvedgeError, match="built no engine for SM89"):
        command.build_engine(rtx, job_of(folder), Monitor())
    assert 3 <= len(steps) < 10


def job_of(folder: Path) -> EngineJob:
    manifest = artifact.read(folder)
    assert manifest.limits is not None
    return EngineJob(
        engine=EngineKind.TENSORRT_RTX,
        sm=89,
        graph=(folder / artifact.GRAPH).read_bytes(),
        folder=folder,
        profiles=profiles(manifest.cache, manifest.limits),
        workspace=1 << 30,
        timing_cache=b"",
    )


# ---- TensorRT.


@pytest.fixture
def for_tensorrt(tiny: Any, tmp_path: Path) -> Path:
    return for_engine(tiny.int3, tmp_path / "trt", EngineKind.TENSORRT, (87, 89))


def test_nodes_get_the_kernels_of_the_chip(for_tensorrt: Path) -> None:
    """As a tensor of bytes: the parser ends texts with a zero of its own."""
    plain = onnx.load(str(for_tensorrt / artifact.GRAPH), load_external_data=False)
    graph = onnx.load_model_from_string(graph_with_kernels(plain, for_tensorrt, artifact.read(for_tensorrt), 87))
    nodes = [node for node in graph.graph.node if node.op_type == "PagedAttention"]
    assert len(nodes) == 2
    for node in nodes:
        (kernels,) = (each.t for each in node.attribute if each.name == "kernels")
        assert onnx.numpy_helper.to_array(kernels).tobytes() == b"\0kernels of 87\0"


def test_kernels_of_another_chip_only(for_tensorrt: Path) -> None:
    plain = onnx.load(str(for_tensorrt / artifact.GRAPH), load_external_data=False)
    with pytest.raises(
        KvedgeError, match="kernels in .*; expected for SM110; got SM87, SM89; export again with a --target"
    ):
        graph_with_kernels(plain, for_tensorrt, artifact.read(for_tensorrt), 110)


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[EngineJob]:
    """A stand-in of an Orin with TensorRT: its jobs."""
    jobs: list[EngineJob] = []
    package = SimpleNamespace(__version__="10.3.0", IProgressMonitor=rtx.IProgressMonitor)

    def note(_: Any, job: EngineJob, monitor: Any) -> Any:
        jobs.append(job)
        return SimpleNamespace(engine=b"engine", timing_cache=b"measured")

    monkeypatch.setattr(command, "import_engine", lambda kind: package)
    monkeypatch.setattr(command, "Device", lambda: SimpleNamespace(sm=87))
    monkeypatch.setattr(command, "build_engine", note)
    return jobs


def test_a_board_builds_for_its_own_chip(for_tensorrt: Path, board: Any, kvedge: Command) -> None:
    for options in ((), ("--workspace", "64MB")):
        assert kvedge("build", for_tensorrt, "--target", "jetson-orin-nano", *options).code == 0
    first, second = board
    assert (first.sm, first.engine, first.workspace) == (
        87,
        EngineKind.TENSORRT,
        find_target("jetson-orin-nano").workspace,
    )
    assert (second.workspace, first.timing_cache, second.timing_cache) == (64_000_000, b"", b"measured")
    assert b"kernels of 87" in first.graph and b"kernels of 89" not in first.graph
    assert (for_tensorrt / "engines" / "tensorrt-sm87-10.3.0.engine").read_bytes() == b"engine"
    record = read_record(for_tensorrt / "engines" / "tensorrt-sm87-10.3.0.json")
    assert record.build == Build(engine=EngineKind.TENSORRT, version="10.3.0", sm=87)
    assert (record.workspace, record.hidden, len(record.parts)) == (64_000_000, (), 1)
    check_error(
        kvedge("build", for_tensorrt, "--target", "jetson-thor"), "expected kernels for SM110", "got SM87, SM89"
    )
    check_error(
        kvedge("build", for_tensorrt, "--target", "jetson-orin-nx", "--sm", 89), "--sm", "expected SM87", "got SM89"
    )


def test_a_board_need_not_be_named(for_tensorrt: Path, board: Any, kvedge: Command) -> None:
    assert kvedge("build", for_tensorrt, "--target", "jetson-orin").code == 0
    assert [(job.sm, job.workspace) for job in board] == [(87, find_target("jetson-orin").workspace)]


def test_a_board_builds_block_after_block(for_tensorrt: Path, board: Any, kvedge: Command) -> None:
    """Each with its own layer's kernels, and with what was measured for the one before."""
    assert kvedge("build", for_tensorrt, "--target", "jetson-orin-nano", "--blocks", "2").code == 0
    assert [job.timing_cache for job in board] == [b"", b"measured"]
    assert [job.graph.count(b"kernels of 87") for job in board] == [1, 1]
    names = sorted(path.name for path in (for_tensorrt / "engines").iterdir())
    stem = "tensorrt-sm87-10.3.0"
    assert names == [f"{stem}.1of2.engine", f"{stem}.2of2.engine", f"{stem}.json", f"{stem}.timing"]


def test_memory_by_the_plan(exported: Path) -> None:
    manifest: Manifest = artifact.read(exported)
    stored = manifest.files[artifact.GRAPH].bytes + manifest.files[artifact.WEIGHTS].bytes
    assert memory.peak_bytes(find_target("rtx"), manifest) >= 3 * stored
