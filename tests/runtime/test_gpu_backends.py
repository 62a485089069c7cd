"""The runtime on GPUs. Driver, TensorRT and CUDA provider are stand-ins: tested is all that the runtime does."""

from __future__ import annotations

import gc
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from commands import Command
from stand_in_engines import VERSION, StandInLibrary, compile_driver, load_whole, write_engine, write_parts
from tiny_engines import Artifacts
from tiny_models import VOCAB, stream_logits

from kvedge.export.plain.graph import make_plain
from kvedge.plugins import cuda_device, engine_package
from kvedge.plugins import library as plugins_library
from kvedge.runtime import ort_cuda
from kvedge.runtime.command_run import loading_text
from kvedge.runtime.engine import Engine, Row
from kvedge.runtime.session import Session
from kvedge.targets import manifest as artifact
from kvedge.targets.devices import EngineKind
from kvedge.targets.engine_file import Build, make_part, part_path
from kvedge.targets.errors import KvedgeError
from kvedge.targets.manifest import FileInfo
from kvedge.targets.plan import plan_memory
from kvedge.targets.profiles import StepLimits, profiles
from kvedge.targets.units import size

GPUS = [EngineKind.TENSORRT, EngineKind.TENSORRT_RTX, EngineKind.ORT_CUDA]
BLOCKS = pytest.mark.parametrize("blocks", [1, 2])
WIDTH = 64  # of the tiny model
LIMITS = StepLimits(context=128, chunk=32, sessions=2)
ONE = StepLimits(context=128, chunk=32, sessions=1)
IDS = np.random.default_rng(3).integers(0, VOCAB, 120)
CUTS = [30, 31, 32, 40, 41, *range(42, 60), 90, 91, 120]
ROWS_AT_MOST = [*range(10, 120, 10), 111, 112, 120]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def stand_in(driver: Path, monkeypatch: pytest.MonkeyPatch) -> StandInLibrary:
    """In the place of the driver and of TensorRT."""
    library = StandInLibrary(driver)
    monkeypatch.setattr(cuda_device, "LIBRARY", str(driver))
    monkeypatch.setattr(engine_package, "import_module", library.imported)
    monkeypatch.setenv("KVEDGE_TENSORRT_PLUGIN", str(driver))
    monkeypatch.setattr(ort_cuda, "PROVIDER", "CPUExecutionProvider")
    monkeypatch.setattr(ort_cuda, "DEVICE", "cpu")
    monkeypatch.setattr(plugins_library, "register_cuda", lambda options, folder: plugins_library.register(options))
    library.driver.stand_in_set_integrated(0)
    library.driver.stand_in_set_refuses_graphs(0)
    return library


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    return Artifacts(tmp_path_factory.mktemp("artifacts"))


Built = Callable[..., Path]


@pytest.fixture
def built(artifacts: Artifacts, tmp_path: Path) -> Built:
    """An artifact for an engine, with the stand-in's engine in it."""

    def build(
        name: str, engine: EngineKind = EngineKind.TENSORRT, limits: StepLimits = LIMITS, blocks: int = 1
    ) -> Path:
        folder = Path(shutil.copytree(artifacts.folder(name), tmp_path / f"{name} {engine.value} {blocks}"))
        manifest = replace(artifact.read(folder), engine=engine, limits=limits if engine.is_built else None)
        artifact.write(folder, manifest)
        if not engine.is_built:
            return folder
        model = load_whole(folder)
        if engine is EngineKind.TENSORRT_RTX:
            make_plain(model, manifest.cache, limits)
        write_engine(folder, model, manifest, profiles(manifest.cache, limits), blocks)
        return folder

    return build


@pytest.mark.parametrize(
    ("engine", "blocks"),
    [*((engine, 1) for engine in GPUS), (EngineKind.TENSORRT, 2), (EngineKind.TENSORRT_RTX, 2)],
    ids=lambda value: getattr(value, "value", f"{value} blocks"),
)
@pytest.mark.parametrize("name", ["fp", "int3", "int3, no window"])
def test_logits_are_those_of_the_cpu(
    name: str, engine: EngineKind, blocks: int, built: Built, artifacts: Artifacts, stand_in: StandInLibrary
) -> None:
    folder = built(name, engine, ONE, blocks)
    want, _ = decoded(artifacts.load(name))
    got, pages = decoded(Engine.load(folder))
    tolerance = 0.1 if engine is EngineKind.TENSORRT_RTX and name != "fp" else 2e-5  # as of the plain graph
    assert np.abs(got - want).max() <= tolerance * want.std()
    assert (pages > 0) == (name != "fp")


def decoded(engine: Engine) -> tuple[np.ndarray, int]:
    """Logits [steps, vocab] of the last token of each of CUTS, and packed pages read."""
    sequence, first, pages, logits = engine.sequence(), 0, 0, []
    for last in CUTS:
        result = engine.step([Row(sequence, IDS[first:last].tolist())], [last - first - 1])
        logits.append(result.logits[0, 0].copy())
        pages += result.packed_pages_read
        first = last
    return np.stack(logits), pages


def test_many_rows_of_logits(built: Built, artifacts: Artifacts, stand_in: StandInLibrary) -> None:
    want, _ = stream_logits(artifacts.load("int3"), IDS, ROWS_AT_MOST)
    got, _ = stream_logits(Engine.load(built("int3")), IDS, ROWS_AT_MOST)
    assert np.array_equal(got, want)


def test_more_rows_than_the_engine_has(built: Built, stand_in: StandInLibrary) -> None:
    engine = Engine.load(built("int3"))
    with pytest.raises(KvedgeError, match="logits_index; expected at most 16 tokens; got 17"):
        engine.step([Row(engine.sequence(), list(range(20)))], range(17))


@BLOCKS
def test_ragged_batches(blocks: int, built: Built, artifacts: Artifacts, stand_in: StandInLibrary) -> None:
    """Two sessions of different lengths, in prefill and in decoding."""
    steps = [(IDS[:30], IDS[30:37]), (IDS[37:38], IDS[38:39]), (IDS[39:40], IDS[40:41]), (IDS[41:60], IDS[60:61])]

    def run(engine: Engine) -> list[np.ndarray]:
        pair, logits = [engine.sequence(), engine.sequence()], []
        for parts in steps:
            rows = [Row(sequence, part.tolist()) for sequence, part in zip(pair, parts, strict=True)]
            logits.append(engine.step(rows, [0]).logits.copy())
        return logits

    want, got = run(artifacts.load("int3", sessions=2)), run(Engine.load(built("int3", blocks=blocks)))
    assert all(np.array_equal(a, b) for a, b in zip(want, got, strict=True))


@BLOCKS
def test_decoding_is_recorded_once(blocks: int, built: Built, stand_in: StandInLibrary) -> None:
    """All parts as one."""
    engine = Engine.load(built("int3", blocks=blocks))
    before = stand_in.driver.stand_in_launches()
    decoded(engine)
    single = sum(last - first == 1 for first, last in zip([0, *CUTS], CUTS, strict=False))
    assert stand_in.driver.stand_in_launches() - before == single  # the first was recorded while loading


@BLOCKS
def test_nothing_is_allocated_after_loading(blocks: int, built: Built, stand_in: StandInLibrary) -> None:
    engine = Engine.load(built("int3", blocks=blocks))
    bytes_of, before = stand_in.driver.stand_in_bytes, stand_in.driver.stand_in_bytes()
    decoded(engine)
    assert bytes_of() == before > engine.allocated_bytes


def test_parts_take_hidden_states_more(built: Built, stand_in: StandInLibrary) -> None:
    """For the most tokens of a step; one scratch memory, for the part that needs most."""
    taken = []
    for blocks in (1, 2):
        before = stand_in.driver.stand_in_bytes()
        engine = Engine.load(built("int3", blocks=blocks))
        taken.append(stand_in.driver.stand_in_bytes() - before)
        del engine
    two_values = 2 * WIDTH * 4  # a fused norm gives residual and norm
    assert taken[1] - taken[0] == LIMITS.sessions * LIMITS.chunk * two_values + 1  # of scratch, see the stand-in


@pytest.mark.parametrize(
    ("engine", "copies"), [(EngineKind.TENSORRT, 1), (EngineKind.TENSORRT_RTX, 2), (EngineKind.ORT_CUDA, 1)]
)
def test_pools_take_what_is_planned(engine: EngineKind, copies: int, built: Built, stand_in: StandInLibrary) -> None:
    loaded = Engine.load(built("int3", engine, ONE))
    assert loaded.allocated_bytes == loaded.planned_bytes == copies * loaded.plan.kv_bytes


def test_all_memory_is_given_back(built: Built, stand_in: StandInLibrary) -> None:
    before = stand_in.driver.stand_in_allocations()
    engine = Engine.load(built("int3"))
    assert stand_in.driver.stand_in_allocations() > before
    del engine
    assert stand_in.driver.stand_in_allocations() == before


def test_one_copy_each_way_a_step(built: Built, stand_in: StandInLibrary) -> None:
    """Inputs together, logits and counts; only the inputs where CPU and GPU share their memory."""
    folder = built("int3")
    for integrated, copies in ((0, 3), (1, 1)):
        stand_in.driver.stand_in_set_integrated(integrated)
        engine = Engine.load(folder)
        sequence, before = engine.sequence(), stand_in.driver.stand_in_copies()
        engine.step([Row(sequence, [1, 2, 3])], [2])
        assert stand_in.driver.stand_in_copies() - before == copies


def test_shared_memory_gives_the_same(built: Built, artifacts: Artifacts, stand_in: StandInLibrary) -> None:
    stand_in.driver.stand_in_set_integrated(1)
    assert np.array_equal(decoded(Engine.load(built("int3")))[0], decoded(artifacts.load("int3"))[0])


@pytest.mark.parametrize(
    ("engine", "blocks"), [*((engine, 1) for engine in GPUS), (EngineKind.TENSORRT, 2), (EngineKind.TENSORRT_RTX, 2)]
)
def test_sessions_are_saved_and_restored(
    engine: EngineKind, blocks: int, built: Built, tmp_path: Path, stand_in: StandInLibrary
) -> None:
    folder = built("int3", engine, ONE, blocks)

    def go_on(session: Session) -> list[int]:
        answer = session.generate(IDS[77:80].tolist(), max_tokens=20)
        list(answer)
        return answer.token_ids

    with Engine.load(folder).session() as session:
        session.feed(IDS[:77].tolist())
        session.save(tmp_path / "talk.kv")
        want = go_on(session)
    with Engine.load(folder).restore(tmp_path / "talk.kv") as session:
        assert go_on(session) == want


def test_commands_tell_the_engine(built: Built, stand_in: StandInLibrary, kvedge: Command) -> None:
    """Its sizes, both pools, and that it is there."""
    folder = built("fp, no window", EngineKind.TENSORRT_RTX, ONE)
    kv_bytes = 2 * plan_memory(artifact.read(folder).cache, context=128, chunk=32).kv_bytes
    found = kvedge("inspect", folder, "--json").json
    assert (found["engine"], found["kv_bytes"], found["unlisted_files"]) == ("tensorrt-rtx", kv_bytes, [])
    assert found["limits"] == {"context": 128, "chunk": 32, "sessions": 1}
    name = f"tensorrt-rtx-sm89-{VERSION}"
    assert f"1 x 128 tokens, 32 a step; engines: {name} (built)" in kvedge("inspect", folder).out
    said = kvedge("run", folder, "--raw", "--max-tokens", 3, "--json", "x")
    assert said.code == 2 and "tokenizer" in said.err  # it came as far as the text
    assert size(kv_bytes) in loading_text(folder, None)
    engine = folder / "engines" / f"{name}.engine"
    engine.write_bytes(engine.read_bytes()[:-1])
    damaged = kvedge("inspect", folder)
    assert damaged.code == 1 and f"{name} (damaged)" in damaged.out
    (folder / "engines" / f"{name}.json").unlink()
    assert f"{name} (no record)" in kvedge("inspect", folder).out


def test_every_recorded_step_has_a_context(built: Built, stand_in: StandInLibrary) -> None:
    """All are made and recorded while loading, for any number of sessions; changing between them changes nothing."""
    engine = Engine.load(built("int3", limits=StepLimits(context=128, chunk=32, sessions=3)))
    assert stand_in.contexts == 1 + 3  # prompts; decoding of one, two and three
    sequences = [engine.sequence() for _ in range(3)]
    launches, found = stand_in.driver.stand_in_launches(), []
    for step, batch in enumerate((3, 1, 3, 2, 1, 3)):
        rows = [Row(sequence, [step + number]) for number, sequence in enumerate(sequences[:batch])]
        found.append(engine.step(rows, [0]).logits[0, 0].copy())
    assert stand_in.driver.stand_in_launches() - launches == 6 and stand_in.contexts == 4
    sequences[1].clear()
    again = engine.sequence()
    for step, want in enumerate(found):
        assert np.allclose(engine.step([Row(again, [step])], [0]).logits[0, 0], want, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize("step", ["recording", "instantiating"])
def test_what_cannot_be_recorded_runs_unrecorded(
    step: str, built: Built, artifacts: Artifacts, stand_in: StandInLibrary
) -> None:
    stand_in.refuses_recording = step == "recording"
    stand_in.driver.stand_in_set_refuses_graphs(step == "instantiating")
    got = decoded(Engine.load(built("int3")))[0]
    assert np.array_equal(got, decoded(artifacts.load("int3"))[0])
    assert not stand_in.driver.stand_in_is_recording()


@pytest.mark.parametrize("writable", [True, False])
def test_kernels_are_compiled_once(
    writable: bool, built: Built, stand_in: StandInLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    folder = built("int3", EngineKind.TENSORRT_RTX, ONE)
    if not writable:
        monkeypatch.setattr(Path, "write_bytes", refuse)
    for _ in range(2):
        Engine.load(folder)
    assert stand_in.compiled == ["lazy", "eager"] * (1 if writable else 2)
    files = {path.suffix for path in (folder / "engines").iterdir()}
    assert files == {".engine", ".json"} | ({".kernels"} if writable else set())


def test_damaged_kernels_are_compiled_again(built: Built, stand_in: StandInLibrary) -> None:
    folder = built("int3", EngineKind.TENSORRT_RTX, ONE)
    Engine.load(folder)
    (kept,) = (folder / "engines").glob("*.kernels")
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-1])
    Engine.load(folder)
    assert stand_in.compiled == ["lazy", "eager"] * 2 and kept.read_bytes() == whole


def test_tensorrt_compiles_nothing_where_it_runs(built: Built, stand_in: StandInLibrary) -> None:
    folder = built("int3", EngineKind.TENSORRT)
    Engine.load(folder)
    assert stand_in.compiled == [] and not list((folder / "engines").glob("*.kernels"))


def test_logits_may_outlive_their_engine(built: Built, stand_in: StandInLibrary) -> None:
    engine = Engine.load(built("int3"))
    logits = engine.step([Row(engine.sequence(), [1, 2, 3])], [2]).logits
    copy = logits.copy()
    del engine
    gc.collect()
    Engine.load(built("fp"))  # takes what memory is free
    assert np.array_equal(logits, copy)


# ---- What is refused.


PLUGINS = {
    "later, of the next number": ("int kvedge_tensorrt_version() { return 10000; }", "1.0"),
    "later": ("int kvedge_tensorrt_version() { return 100; }", "0.1"),
    "none": ("int nothing;", "another library"),
    "refused": ("int kvedge_tensorrt_version() { return 0; }", "one that TensorRT does not load"),
}


@pytest.mark.parametrize("name", PLUGINS)
def test_a_plugin_for_another_tensorrt(
    name: str, built: Built, stand_in: StandInLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, got = PLUGINS[name]
    plugin = tmp_path / f"{'refused' if name == 'refused' else 'plugin'}.so"
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(plugin)]
    subprocess.run(command, input=source, text=True, check=True)
    monkeypatch.setenv("KVEDGE_TENSORRT_PLUGIN", str(plugin))
    want = rf"plugin .*\.so; expected one built against TensorRT 0.0, or an older one .*; got {got}; build it against"
    with pytest.raises(KvedgeError, match=want):
        Engine.load(built("int3"))


def test_no_cuda_provider(built: Built, stand_in: StandInLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort_cuda, "PROVIDER", "CUDAExecutionProvider")
    with pytest.raises(KvedgeError, match="onnxruntime; expected CUDAExecutionProvider; got .*CPU.*; pip install onnx"):
        Engine.load(built("fp", EngineKind.ORT_CUDA))


def test_a_cuda_provider_that_does_not_load(
    built: Built, stand_in: StandInLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime goes on without it, with other providers or none."""
    folder, fix = built("int3", EngineKind.ORT_CUDA), r"if CUDA's libraries or cuDNN are missing, pip install"

    def on_the_cpu(*given: Any, **_: Any) -> Any:
        return SimpleNamespace(get_providers=lambda: ["AzureExecutionProvider"])

    def print_what_is_missing() -> None:
        print("Failed to load libcudnn.so.9")

    monkeypatch.setattr(ort_cuda.ort, "preload_dlls", print_what_is_missing)
    monkeypatch.setattr(ort_cuda.ort, "InferenceSession", on_the_cpu)
    with pytest.raises(KvedgeError, match=f"got AzureExecutionProvider alone Failed to load libcudnn.so.9; {fix}"):
        Engine.load(folder)

    def refuse(*given: Any, **_: Any) -> Any:
        raise RuntimeError("no implementation for\nPagedAttention")

    monkeypatch.setattr(ort_cuda.ort, "InferenceSession", refuse)
    with pytest.raises(KvedgeError, match=f"got no implementation for PagedAttention Failed .*; {fix}"):
        Engine.load(folder)


def test_no_driver(built: Built, stand_in: StandInLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_device, "LIBRARY", "libnothing.so.1")
    with pytest.raises(
        KvedgeError, match="no CUDA driver; expected libnothing.so.1; got none; install NVIDIA's driver"
    ):
        Engine.load(built("int3"))


def test_no_package(built: Built, stand_in: StandInLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(f"No module named '{name}'")

    monkeypatch.setattr(engine_package, "import_module", missing)
    with pytest.raises(KvedgeError, match="TensorRT; expected the package tensorrt; got No module"):
        Engine.load(built("int3"))


def test_no_plugin(built: Built, stand_in: StandInLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVEDGE_TENSORRT_PLUGIN", "/nowhere/plugin.so")
    with pytest.raises(KvedgeError, match=r"plugin for TensorRT; expected a file /nowhere/plugin.so; got none"):
        Engine.load(built("int3"))


def test_the_plugin_is_loaded_for_tensorrt_only(built: Built, stand_in: StandInLibrary, driver: Path) -> None:
    Engine.load(built("fp", EngineKind.TENSORRT_RTX, ONE))
    assert stand_in.loaded == []
    Engine.load(built("fp", EngineKind.TENSORRT, ONE))
    assert stand_in.loaded == [str(driver)]
    Engine.load(built("int3", EngineKind.TENSORRT, ONE))  # it is there
    assert stand_in.loaded == [str(driver)]


def test_an_engine_for_another_machine(built: Built, stand_in: StandInLibrary) -> None:
    folder = built("int3")
    (engine,) = (folder / "engines").glob("*.engine")
    record = engine.with_suffix(".json")
    record.rename(record.with_name(record.name.replace("sm89", "sm87")))
    want = r"expected one for TensorRT 0.0.stand-in on SM89; got tensorrt-sm87-0.0.stand-in; build one on"
    with pytest.raises(KvedgeError, match=want):
        Engine.load(folder)


def test_no_engine_at_all(built: Built, stand_in: StandInLibrary) -> None:
    folder = built("int3")
    shutil.rmtree(folder / "engines")
    with pytest.raises(
        KvedgeError, match=r"engine of .*; expected one for TensorRT .*; got none; build one on this device"
    ):
        Engine.load(folder)


def test_an_engine_of_another_export(built: Built, stand_in: StandInLibrary) -> None:
    folder, other = built("int3"), built("fp")
    shutil.rmtree(folder / "engines")
    shutil.copytree(other / "engines", folder / "engines")
    with pytest.raises(KvedgeError, match="expected an engine of this artifact; got one of another export"):
        Engine.load(folder)


@pytest.mark.parametrize(("chip", "runs"), [("sm89", False), ("sm75", True)])
def test_an_engine_with_other_kernels(chip: str, runs: bool, built: Built, stand_in: StandInLibrary) -> None:
    """It has those of its own chip inside, and no others."""
    folder = built("fp")
    manifest = artifact.read(folder)
    kernels = {f"kernels.0.{chip}.safetensors": FileInfo(bytes=3, sha256="ab" * 32)}
    artifact.write(folder, replace(manifest, files=manifest.files | kernels))
    if runs:
        Engine.load(folder)
        return
    with pytest.raises(KvedgeError, match="expected an engine of this artifact; got one of another export"):
        Engine.load(folder)


@pytest.mark.parametrize("name", [artifact.GRAPH, artifact.WEIGHTS])
def test_what_is_in_the_engine_is_not_read_again(name: str, built: Built, stand_in: StandInLibrary) -> None:
    on_gpu, for_onnx_runtime = built("fp"), built("fp", EngineKind.ORT_CUDA)
    for folder in (on_gpu, for_onnx_runtime):
        (folder / name).unlink()
    Engine.load(on_gpu)
    with pytest.raises(KvedgeError, match="damaged artifact: .*; got nothing there"):
        Engine.load(for_onnx_runtime)


@BLOCKS
def test_a_damaged_engine(blocks: int, built: Built, stand_in: StandInLibrary) -> None:
    folder = built("int3", blocks=blocks)
    *_, engine = sorted((folder / "engines").glob("*.engine"))
    engine.write_bytes(engine.read_bytes()[:-1])
    with pytest.raises(KvedgeError, match="expected the bytes that were built; got others; build one"):
        Engine.load(folder)


def test_what_the_library_says_is_passed_on(built: Built, stand_in: StandInLibrary) -> None:
    folder = built("int3")
    manifest = artifact.read(folder)
    build = Build(engine=manifest.engine, version=stand_in.__version__, sm=89)
    part_path(folder, build).write_bytes(b"not an engine")
    write_parts(folder, build, manifest, parts=(make_part(part_path(folder, build), ""),))
    with pytest.raises(KvedgeError, match="stand-in refused to load from .*; got version tag does not match"):
        Engine.load(folder)


@pytest.mark.parametrize("options", [{"context": 64}, {"sessions": 1}, {"chunk": 16}])
def test_other_sizes_than_the_engine_has(options: dict[str, int], built: Built, stand_in: StandInLibrary) -> None:
    with pytest.raises(KvedgeError, match=r"expected \d+, which the engine was built for; got \d+; leave it out"):
        Engine.load(built("int3"), **options)


def test_a_pool_that_does_not_fit(built: Built, stand_in: StandInLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    device = cuda_device.Device()
    with pytest.raises(MemoryError, match="the GPU has no memory left"):
        device.zeros(1 << 40)


def test_errors_of_the_driver_are_named(stand_in: StandInLibrary) -> None:
    device = cuda_device.Device()
    with pytest.raises(KvedgeError, match=r"CUDA's cuMemFree_v2; expected success; got CUDA_ERROR_INVALID_VALUE \(1\)"):
        device.call("cuMemFree_v2", None)
