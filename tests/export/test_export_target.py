"""`kvedge export --target`: what a target cannot run is refused before any work, and nothing is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import onnx
import pytest
import small_config
from commands import Command, check_error
from shared_trace import share_traces

from kvedge.export.export import ExportJob, export_model
from kvedge.export.flavour import Flavour
from kvedge.targets import manifest as artifact
from kvedge.targets.devices import EngineKind
from kvedge.targets.errors import KvedgeError
from kvedge.targets.kinds import Kind
from kvedge.targets.model_config import make_cache, read_model_config
from kvedge.targets.plan import plan_memory
from kvedge.targets.profiles import StepLimits
from kvedge.targets.settings import CacheSettings, WeightType

RULES = ("--window", 48, "--sinks", 4, "--recent", 16, "--page", 16)

REFUSED: dict[str, tuple[tuple[object, ...], tuple[str, ...]]] = {
    "kind": (
        ("--target", "jetson-orin-nano", "--kv", "int4,fp8"),
        ("fp8 pages on jetson-orin-nano", "kernels on SM89", "got TensorRT, SM87", "choose int8"),
    ),
    "kind of a layer": (
        ("--target", "rtx", "--kv-layer", "0=fp8"),
        ("fp8 pages on rtx", "got TensorRT for RTX"),
    ),
    "kind without a target": (("--kv", "fp8"), ("fp8 pages", "expected a --target", "got no --target")),
    "kind of the CPU": (("--target", "cpu", "--kv", "fp8"), ("fp8 pages on cpu", "got ONNX Runtime (CPU), no GPU")),
    "kind and chip": (
        ("--target", "cuda", "--kv", "fp8", "--sm", 120, "--sm", 86),
        ("--sm of fp8 pages", "expected SM89 or newer", "got SM86"),
    ),
    "page": (
        ("--target", "jetson-agx-orin", "--page", 24, "--recent", 48),
        ("cannot read pages of 24 tokens", "expected one of 16, 32, 64, 128", "got 24", "change --page"),
    ),
    "weights": (
        ("--target", "jetson-thor", "--weights", "int8"),
        ("cannot multiply int8 weights", "expected one of fp16, int4", "got int8", "choose another --weights"),
    ),
    "chip": (("--target", "rtx", "--sm", 87), ("--sm", "expected SM86, SM89 or SM120", "got SM87")),
    "chip of nothing": (("--sm", 87), ("--sm", "expected a --target with a GPU", "got SM87")),
    "size without an engine": (("--chunk", 64), ("--chunk", "expected a --target whose engine is built", "(CPU)")),
    "size for CUDA": (("--target", "cuda", "--sessions", 2), ("--sessions", "(CUDA)", "give it when you load")),
    "no compiler": (
        ("--target", "jetson-orin-nx"),
        ("kernels for TensorRT", "got TRITON_INTERPRET is set", "unset it"),
    ),
    "no size": (("--target", "rtx", "--context", 0), ("--context", "expected at least 1", "got 0")),
    "sessions of RTX": (("--target", "rtx", "--sessions", 2), ("--sessions", "expected 1 for", "got 2")),
    "unknown": (("--target", "jetson-nano"), ("--target", "jetson-orin-nano", "got jetson-nano")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_any_work(case: str, kvedge: Command, tiny, tmp_path: Path) -> None:
    """No line of progress, and no folder."""
    options, words = REFUSED[case]
    check_error(kvedge("export", tiny.hf, "-o", tmp_path / "out", *options), *words)
    assert list(tmp_path.iterdir()) == []


def test_the_cpu_is_what_is_exported_anyway(
    kvedge: Command, tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share_traces(monkeypatch)
    for name, options in {"plain": (), "cpu": ("--target", "cpu")}.items():
        result = kvedge("export", tiny.hf, "--kv", "int3", *RULES, "--no-verify", "-o", tmp_path / name, *options)
        assert result.code == 0, result.err
    plain, cpu = (artifact.load(tmp_path / name) for name in ("plain", "cpu"))
    assert cpu == plain and cpu.model.weights == "fp32"


def test_an_artifact_for_a_board_has_its_kernels(tiny, tmp_path: Path) -> None:
    """In a process of its own: here Triton interprets."""
    words = [
        "export",
        tiny.hf,
        "--target",
        "jetson-orin-nano",
        "--sm",
        87,
        "--kv",
        "int3",
        "--sessions",
        2,
        "--chunk",
        32,
    ]
    command = [
        sys.executable,
        "-m",
        "kvedge.runtime.cli",
        *map(str, (*words, *RULES, "-o", tmp_path / "out", "--json")),
    ]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found, manifest = json.loads(done.stdout), artifact.load(tmp_path / "out")
    assert (manifest.engine, manifest.model.weights) == (EngineKind.TENSORRT, "fp16")
    assert manifest.limits == StepLimits(context=manifest.cache.max_positions, chunk=32, sessions=2)
    assert {name for name in manifest.files if name.startswith("kernels")} == {"kernels.0.sm87.safetensors"}
    assert found["engine"] == "tensorrt" and found["verified"]["packed_pages_read"] > 0
    nodes = [node for node in onnx.load(tmp_path / "out" / artifact.GRAPH).graph.node if node.domain == "kvedge"]
    assert {node.op_type for node in nodes} == {"PagedAttention"} and len(nodes) == len(manifest.cache.layers)


def test_an_artifact_for_rtx(kvedge: Command, tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    share_traces(monkeypatch)
    words = ("--target", "rtx", "--kv", "fp,int3", "--context", 99, "--no-verify", *RULES)
    records = kvedge("export", tiny.hf, "-o", tmp_path / "out", "--json", *words).json
    for record, kind in zip(records, ("fp", "int3"), strict=True):
        manifest = artifact.load(tmp_path / "out" / kind)
        planned = plan_memory(manifest.cache, context=99)
        assert manifest.limits == StepLimits(context=99, chunk=256, sessions=1)
        assert record["kv_bytes"] == 2 * planned.kv_bytes and record["engine"] == "tensorrt-rtx"
        assert not any(node.domain for node in onnx.load(tmp_path / "out" / kind / artifact.GRAPH).graph.node)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--context", 10**6), "--context; expected at most the model's 256 positions; got 1000000"),
        (("--context", 100, "--chunk", 101), "--chunk; expected at most the context of 100 tokens; got 101"),
        (("--chunk", 257), "--chunk; expected at most the context of 256 tokens; got 257"),
    ],
)
def test_more_than_the_model_has(
    options: tuple[object, ...], error: str, kvedge: Command, tiny, tmp_path: Path
) -> None:
    """Refused before the model is traced."""
    refused = kvedge("export", tiny.hf, "-o", tmp_path / "long", "--target", "rtx", *options)
    assert refused.code == 2 and refused.err.endswith(f"error: {error}\n")
    assert "trace" not in refused.err
    assert not (tmp_path / "long").exists()


def test_a_small_context_has_a_small_chunk() -> None:
    cache = make_cache(read_model_config(small_config.MODEL, "tiny"), CacheSettings())
    limits = Flavour(engine=EngineKind.TENSORRT, context=100).limits(cache)
    assert limits == StepLimits(context=100, chunk=100, sessions=1)


def test_kernels_are_for_chips_that_read_every_layer() -> None:
    flavour = Flavour(engine=EngineKind.ORT_CUDA, sms=(75, 87, 89, 120))
    model = read_model_config(small_config.MODEL, "tiny")
    assert flavour.chips(make_cache(model, CacheSettings())) == (75, 87, 89, 120)
    assert flavour.left_out(make_cache(model, CacheSettings())) == ()
    one_layer = make_cache(model, CacheSettings(layer_kinds=((0, Kind.FP8),)))
    assert flavour.chips(one_layer) == (89, 120)
    assert flavour.left_out(one_layer) == ("no kernels for SM75, SM87: fp8 pages need SM89 or newer",)
    never_packed = make_cache(model, CacheSettings(kind=Kind.FP8, window=100, recent=128))
    assert flavour.chips(never_packed) == flavour.sms


def test_what_a_board_does_not_hold_is_not_written(tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    share_traces(monkeypatch)
    job = ExportJob(
        source=str(tiny.hf),
        settings=CacheSettings(kind=Kind.INT3),
        weights=WeightType.FP16,
        output=tmp_path / "out",
        check=True,
        trust_remote_code=False,
        flavour=Flavour(target="jetson-orin-nano", engine=EngineKind.TENSORRT, sms=(87,), sessions=10**6),
    )
    with pytest.raises(
        KvedgeError, match=r"jetson-orin-nano cannot hold it; expected at most .* kB of weights, 70.3 GB of KV"
    ):
        export_model(job, lambda what: nullcontext())
    assert list(tmp_path.iterdir()) == []
