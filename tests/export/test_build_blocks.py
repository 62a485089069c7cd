"""`kvedge build` in blocks of layers: real engines of TensorRT for RTX once, else a builder that stands in."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
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
from kvedge.targets import manifest as artifact
from kvedge.targets import names
from kvedge.targets.devices import EngineKind, find_target
from kvedge.targets.engine_file import Build, find_engine, read_record, write_record
from kvedge.targets.errors import KvedgeError
from kvedge.targets.hidden import Hidden

rtx = pytest.importorskip("tensorrt_rtx", reason="no engine was built: the package tensorrt-rtx is absent")

HIDDEN = Hidden(name=names.hidden(0, 0), dtype="float32", widths=(64,))
STEM = f"tensorrt-rtx-sm89-{rtx.__version__}"
PARTS = [f"{STEM}.1of2.engine", f"{STEM}.2of2.engine"]
CARD = ("--target", "rtx", "--sm", 89)


@pytest.fixture(scope="module")
def exported(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny artifact of two layers with exact pages for TensorRT for RTX."""
    return for_engine(tiny.fp, tmp_path_factory.mktemp("rtx") / "fp", EngineKind.TENSORRT_RTX)


@pytest.fixture
def folder(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "artifact"))


def found(folder: Path) -> list[str]:
    """Files in the engines' folder."""
    return sorted(path.name for path in (folder / "engines").iterdir())


def engine_of(folder: Path) -> list[str]:
    made = Build(engine=EngineKind.TENSORRT_RTX, version=rtx.__version__, sm=89)
    return [path.name for path in find_engine(folder, artifact.load(folder), made).parts]


def test_two_real_engines(folder: Path, kvedge: Command) -> None:
    result = kvedge("build", folder, *CARD, "--blocks", 2, "--json")
    assert [Path(path).name for path in result.json["engines"]] == PARTS == engine_of(folder)
    assert found(folder) == [*PARTS, f"{STEM}.json"]
    sizes = [(folder / "engines" / name).stat().st_size for name in PARTS]
    assert result.json["bytes"] == sum(sizes) and min(sizes) > 10_000
    assert read_record(folder / "engines" / f"{STEM}.json").hidden == (HIDDEN,)
    assert [line.split(":")[0] for line in result.err.splitlines()] == ["block 1 of 2", "block 2 of 2"]


# ---- A builder that stands in.


class Builder:
    """Notes its jobs, and fails at one of them where it is told to."""

    def __init__(self) -> None:
        self.jobs: list[EngineJob] = []
        self.fails_at = 0

    def __call__(self, _: Any, job: EngineJob, monitor: Any) -> Any:
        self.jobs.append(job)
        if len(self.jobs) == self.fails_at:
            raise KvedgeError("out of memory")
        inputs = [value.name for value in onnx.load_model_from_string(job.graph).graph.input]
        return SimpleNamespace(engine=memoryview(json.dumps(inputs).encode()), timing_cache=b"")


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Builder:
    made = Builder()
    monkeypatch.setattr(command, "build_engine", made)
    return made


def test_each_block_gets_its_graph_and_profiles(folder: Path, builder: Builder, kvedge: Command) -> None:
    assert kvedge("build", folder, *CARD, "--blocks", 2).code == 0
    first, second = (onnx.load_model_from_string(job.graph).graph for job in builder.jobs)
    assert first.output[0].name == names.hidden(0, 0)
    assert names.hidden(0, 0) in [value.name for value in second.input]
    for job in builder.jobs:
        decode, prefill = (job.profiles[name][names.hidden(0, 0)] for name in ("decode", "prefill"))
        assert (decode.least, decode.most) == ((1, 1, 64), (1, 1, 64))
        assert (prefill.least, prefill.most) == ((1, 1, 64), (1, 16, 64))
        assert job.folder == folder


def test_an_interrupted_build_goes_on(folder: Path, builder: Builder, kvedge: Command) -> None:
    builder.fails_at = 2
    result = kvedge("build", folder, *CARD, "--blocks", 2)
    assert result.code == 2 and "out of memory" in result.err
    assert found(folder) == [PARTS[0], f"{STEM}.unfinished"]
    with pytest.raises(KvedgeError, match="expected one for TensorRT for RTX .*; got none; build one"):
        engine_of(folder)
    result = kvedge("build", folder, *CARD, "--blocks", 2)
    assert result.code == 0 and "block 1 of 2: is there\n" in result.err
    assert len(builder.jobs) == 3 and builder.jobs[1].graph == builder.jobs[2].graph
    assert engine_of(folder) == PARTS and found(folder) == [*PARTS, f"{STEM}.json"]
    again = kvedge("build", folder, *CARD, "--blocks", 2)  # there is nothing to do
    assert (again.code, again.err) == (0, "block 1 of 2: is there\nblock 2 of 2: is there\n")
    assert len(builder.jobs) == 3 and found(folder) == [*PARTS, f"{STEM}.json"]


Change = Callable[[Path], tuple[object, ...]]


def another_workspace(folder: Path) -> tuple[object, ...]:
    return ("--workspace", "64MB")


def a_damaged_part(folder: Path) -> tuple[object, ...]:
    (folder / "engines" / PARTS[0]).write_bytes(b"[]")
    return ()


def a_part_of_another_graph(folder: Path) -> tuple[object, ...]:
    path = folder / "engines" / f"{STEM}.unfinished"
    record = read_record(path)
    write_record(path, replace(record, parts=(replace(record.parts[0], source="0" * 64),)))
    return ()


def another_library(folder: Path) -> tuple[object, ...]:
    path = folder / "engines" / f"{STEM}.unfinished"
    record = read_record(path)
    write_record(path, replace(record, build=replace(record.build, version="1.0")))
    return ()


def another_export(folder: Path) -> tuple[object, ...]:
    path = folder / "engines" / f"{STEM}.unfinished"
    write_record(path, replace(read_record(path), graph="0" * 64))
    return ()


def no_record(folder: Path) -> tuple[object, ...]:
    (folder / "engines" / f"{STEM}.unfinished").write_text("{}")
    return ()


@pytest.mark.parametrize(
    "change",
    [another_workspace, a_damaged_part, a_part_of_another_graph, another_library, another_export, no_record],
)
def test_it_begins_again(change: Change, folder: Path, builder: Builder, kvedge: Command) -> None:
    builder.fails_at = 2
    kvedge("build", folder, *CARD, "--blocks", 2)
    assert kvedge("build", folder, *CARD, "--blocks", 2, *change(folder)).code == 0
    assert len(builder.jobs) == 4 and engine_of(folder) == PARTS


def test_one_engine_replaces_parts_and_parts_replace_one(folder: Path, builder: Builder, kvedge: Command) -> None:
    builder.fails_at = 3
    assert kvedge("build", folder, *CARD).code == 0
    kvedge("build", folder, *CARD, "--blocks", 2)
    assert engine_of(folder) == [f"{STEM}.engine"]  # still whole
    assert kvedge("build", folder, *CARD, "--blocks", 2).code == 0
    assert found(folder) == [*PARTS, f"{STEM}.json"]
    builder.fails_at = 6
    kvedge("build", folder, *CARD, "--blocks", 2, "--workspace", "64MB")  # its first part is no longer of the old one
    assert f"{STEM}.json" not in found(folder)
    assert kvedge("build", folder, *CARD).code == 0
    assert engine_of(folder) == [f"{STEM}.engine"] and found(folder) == [f"{STEM}.engine", f"{STEM}.json"]


def test_a_damaged_part_does_not_run(folder: Path, builder: Builder, kvedge: Command) -> None:
    assert kvedge("build", folder, *CARD, "--blocks", 2).code == 0
    path = folder / "engines" / PARTS[1]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(KvedgeError, match=r"2of2.engine; expected the bytes that were built; got others; build one"):
        engine_of(folder)
    path.unlink()
    with pytest.raises(KvedgeError, match=r"2of2.engine; expected the bytes that were built"):
        engine_of(folder)


def test_more_blocks_than_layers(folder: Path, builder: Builder, kvedge: Command) -> None:
    for count in (3, 0):
        result = kvedge("build", folder, *CARD, "--blocks", count)
        check_error(result, "blocks of layers", "expected 1 to 2", f"got {count}")
    assert builder.jobs == []


@pytest.fixture
def free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Says how many bytes are free."""
    meminfo = tmp_path / "meminfo"
    monkeypatch.setattr(memory, "MEMINFO", meminfo)
    return lambda number: meminfo.write_text(f"MemAvailable: {number // 1024} kB\n") and None


def test_as_few_blocks_as_memory_allows(
    folder: Path, builder: Builder, free: Callable[[int], None], kvedge: Command
) -> None:
    one = memory.peak_bytes(find_target("rtx"), artifact.read(folder))
    free(one + 1024)
    assert kvedge("build", folder, *CARD).err == ""
    free(one - 1024)
    result = kvedge("build", folder, *CARD)
    assert result.err.startswith("in 2 blocks: ") and " free, one engine would take " in result.err
    assert engine_of(folder) == PARTS
    check_error(kvedge("build", folder, *CARD, "--blocks", 1), "building the engine; expected", "--force")
    free(4096)
    check_error(kvedge("build", folder, *CARD), "building the engine in 2 blocks; expected", "got 4.1 kB of memory")
    check_error(kvedge("build", folder, *CARD, "--blocks", 2), "building the engine in 2 blocks; expected", "--force")
    assert kvedge("build", folder, *CARD, "--force").code == 0
    assert engine_of(folder) == [f"{STEM}.engine"]
