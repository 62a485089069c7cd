"""`kvedge export` when things go wrong, and what it can be asked for: nothing half-written is ever left behind."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import Command, check_last_error, hear_interrupts, listing
from shared_trace import share_traces
from tiny_models import stream_logits
from transformers import AutoConfig, AutoModelForCausalLM

from kvedge.export import artifact as writer
from kvedge.export import export as exporter
from kvedge.export.verify import Report
from kvedge.runtime.engine import Engine
from kvedge.targets import manifest as artifact

RULES = ("--kv", "int3", "--window", 48, "--sinks", 4, "--recent", 16, "--page", 16)
IDS = np.random.default_rng(0).integers(0, 512, 150)
NOBODY = 65534


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the models that were traced."""
    return share_traces(monkeypatch)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where to export to; nothing is there yet."""
    return tmp_path / "out" / "artifact"


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "kvedge.runtime.cli", "export", *map(str, arguments)]


# ---- where models come from


def hub(tiny, root: Path) -> dict[str, str]:
    """Environment with a hub cache that holds some/model, and no network."""
    model = root / "hub" / "models--some--model"
    shutil.copytree(tiny.hf, model / "snapshots" / "abc")
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("abc")
    kept = {key: value for key, value in os.environ.items() if key not in ("HF_HUB_CACHE", "HF_HUB_OFFLINE")}
    return kept | {"HF_HOME": str(root), "HF_HUB_OFFLINE": "1"}


def test_a_cached_hub_model(tiny, tmp_path: Path) -> None:
    """In a process of its own: the environment is read when libraries are imported."""
    environment, work = hub(tiny, tmp_path / "home"), tmp_path / "work"
    work.mkdir()
    run = subprocess.run(
        command("some/model", *RULES, "--no-verify", "--json"),
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    record = json.loads(run.stdout)
    assert record["folder"] == "model-int3"
    manifest = artifact.load(work / "model-int3")
    assert (manifest.model.name, manifest.model.model_type) == ("some/model", "llama")
    assert set(manifest.files) == set(artifact.read(tiny.int3).files)
    missing = subprocess.run(
        command("other/model", "--json"), cwd=work, env=environment, capture_output=True, text=True
    )
    assert missing.returncode == 2 and missing.stdout == ""
    last = missing.stderr.splitlines()[-1]
    assert last.startswith("error: cannot get other/model from the hub or its cache") and "HF_HUB_OFFLINE" in last
    assert "Traceback" not in missing.stderr
    assert [path.name for path in work.iterdir()] == ["model-int3"]


BAD_CONFIGS: dict[str, tuple[dict[str, object] | None, tuple[str, ...]]] = {
    "no config": (None, ("not a model folder", "config.json")),
    "unknown": ({"model_type": "lama9"}, ("unknown architecture lama9", "nearest that work: llama")),
    "no architecture": ({"hidden_size": 8}, ("unknown architecture",)),
    "code of its own": (
        {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}},
        ("modelling code of its own", "--trust-remote-code"),
    ),
    "quantized": ({"model_type": "llama", "quantization_config": {"quant_method": "gptq"}}, ("quantized already",)),
}


@pytest.mark.parametrize("case", BAD_CONFIGS)
def test_what_is_no_model(case: str, kvedge: Command, tmp_path: Path, out: Path) -> None:
    config, words = BAD_CONFIGS[case]
    folder = tmp_path / "model"
    folder.mkdir()
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "mine.py").write_text("raise SystemExit('this must not run')")
    check_last_error(kvedge("export", folder, "-o", out), *words)
    assert not out.parent.exists()


REFUSED = {
    "bloom": ({"n_layer": 1, "n_head": 2, "hidden_size": 32}, "alibi"),
    "mpt": ({"n_layers": 1, "n_heads": 2, "d_model": 32}, "alibi"),
    "falcon": ({"alibi": True, "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 32}, "alibi"),
    "mamba": ({"num_hidden_layers": 1, "hidden_size": 32, "state_size": 4}, "no attention heads"),
    "gpt2": ({"n_layer": 1, "n_head": 2, "n_embd": 32}, "learned or absolute positions"),
}


@pytest.mark.parametrize("model_type", REFUSED)
def test_models_that_are_refused_by_name(model_type: str, kvedge: Command, tmp_path: Path, out: Path) -> None:
    """The cause, and what works instead."""
    changes, words = REFUSED[model_type]
    config = AutoConfig.for_model(model_type, vocab_size=256, **changes)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / model_type)
    result = kvedge("export", tmp_path / model_type, "-o", out)
    last = result.err.splitlines()[-1]
    assert result.code == 2 and last.startswith("error: ")
    for word in (words, "llama", "qwen3", "gemma3_text"):
        assert word in last
    assert not out.exists()


@pytest.mark.parametrize("kept", [40, 3000])
def test_damaged_weights(kept: int, kvedge: Command, tiny, tmp_path: Path, out: Path) -> None:
    """A weights file cut in its header, or in its data, is one line and not a traceback."""
    model = shutil.copytree(tiny.hf, tmp_path / "cut")
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    check_last_error(kvedge("export", model, "-o", out), "cannot load cut")
    assert not out.parent.exists()


def test_a_gguf_file_behind_a_link_of_another_name(kvedge: Command, tmp_path: Path, out: Path) -> None:
    """As the hub's cache has them; this one is not whole."""
    (tmp_path / "blob").write_bytes(b"GGUF" + bytes(60))
    (tmp_path / "model.gguf").symlink_to(tmp_path / "blob")
    result = kvedge("export", tmp_path / "model.gguf", "-o", out)
    check_last_error(result, "cannot load model", "get the file again, in case it is not whole")
    assert "does not appear to have a file" not in result.err


def test_settings_that_a_model_cannot_have(kvedge: Command, tiny, out: Path, shared: list[str]) -> None:
    check_last_error(kvedge("export", tiny.hf, "--window", 250, "-o", out), "256 positions", "--window")
    check_last_error(kvedge("export", tiny.hf, "--recent", 100, "-o", out), "recent tokens", "multiple of the page")
    check_last_error(kvedge("export", tiny.hf, "--weights", "fp8", "-o", out), "--weights", "fp16")
    assert shared == [] and not out.parent.exists()


# ---- where artifacts go


def test_nothing_is_written_over(kvedge: Command, tiny, tmp_path: Path, shared: list[str]) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    before = listing(tmp_path)
    for name in ("file", "folder", "link"):
        check_last_error(
            kvedge("export", tiny.hf, "-o", tmp_path / name), f"/{name}", "new folder", "choose another -o"
        )
    check_last_error(kvedge("export", tiny.hf, "-o", tmp_path / "file" / "below"), "a place to write", "file, a file")
    assert (listing(tmp_path), shared) == (before, [])
    assert (tmp_path / "file").read_text() == "mine"


def test_a_name_that_is_taken_is_found_before_the_trace(
    kvedge: Command, tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny.int3, "hf-int3")
    check_last_error(kvedge("export", tiny.hf, "--kv", "int3"), "output hf-int3", "remove it")
    assert shared == []


def test_an_empty_folder_is_as_good_as_none(kvedge: Command, tiny, out: Path, shared: list[str]) -> None:
    out.mkdir(parents=True)
    assert kvedge("export", tiny.hf, *RULES, "--no-verify", "-o", out).code == 0
    assert artifact.load(out).kind.value == "int3"
    assert out.stat().st_mode & 0o777 == 0o755


@pytest.fixture
def read_only() -> Iterator[Path]:
    """A folder that this process, which may be root's, cannot write."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o555)
    before = os.geteuid()
    try:
        if before == 0:
            os.seteuid(NOBODY)
        yield folder
    finally:
        os.seteuid(before)
        shutil.rmtree(folder)


def test_a_read_only_folder(kvedge: Command, tiny, read_only: Path, shared: list[str]) -> None:
    result = kvedge("export", tiny.hf, "-o", read_only / "deep" / "artifact")
    check_last_error(result, "a place to write", f"{read_only}, read-only", "choose another -o")
    assert shared == [] and listing(read_only) == []


def test_a_folder_that_turns_read_only(
    kvedge: Command, tiny, out: Path, monkeypatch: pytest.MonkeyPatch, shared: list[str]
) -> None:
    def refuse(**_: object) -> str:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(writer.tempfile, "mkdtemp", refuse)
    check_last_error(kvedge("export", tiny.hf, *RULES, "-o", out), f"writing {out}", "Read-only file system")
    assert not out.parent.exists()


# ---- out of disk


def full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_disk_in_rust(*_: object, **__: object) -> None:
    raise Exception("No space left on device (os error 28)")


@pytest.mark.parametrize("where", ["weights", "tokenizer", "hashes", "manifest"])
def test_out_of_disk_leaves_nothing(
    where: str, kvedge: Command, tiny, out: Path, monkeypatch: pytest.MonkeyPatch, shared: list[str]
) -> None:
    save = writer.ir.save

    def save_half(model: object, path: Path, **options: object) -> None:
        save(model, path, **options)
        (path.parent / artifact.WEIGHTS).write_bytes(b"half")
        full_disk()

    if where == "weights":
        monkeypatch.setattr(writer.ir, "save", save_half)
    elif where == "tokenizer":
        monkeypatch.setattr("transformers.PreTrainedTokenizerFast.save_pretrained", full_disk_in_rust)
    else:
        monkeypatch.setattr(writer.artifact, "describe" if where == "hashes" else "write", full_disk)
    result = kvedge("export", tiny.hf, *RULES, "--no-verify", "-o", out)
    check_last_error(result, f"writing {out}", "No space left on device", "free some space")
    assert shared == ["hf"] and not out.parent.exists(), "nor the folder that was made to hold it"


def test_a_neighbour_stays_when_the_disk_is_full(
    kvedge: Command, tiny, out: Path, monkeypatch: pytest.MonkeyPatch, shared: list[str]
) -> None:
    out.parent.mkdir()
    (out.parent / "neighbour").touch()
    monkeypatch.setattr(writer.ir, "save", full_disk)
    assert kvedge("export", tiny.hf, *RULES, "-o", out).code == 2
    assert [path.name for path in out.parent.iterdir()] == ["neighbour"]


# ---- Ctrl-C


@pytest.mark.parametrize("after", ["load", "trace", "write"])
def test_an_interrupted_export_leaves_nothing(after: str, tiny, out: Path) -> None:
    process = subprocess.Popen(
        command(tiny.hf, *RULES, "-o", out),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_interrupts,
    )
    assert process.stderr is not None
    while not (line := process.stderr.readline()).startswith(after):
        assert line, "it ended before"
    process.send_signal(signal.SIGINT)
    printed, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert printed == "" and error.endswith("interrupted\n") and "Traceback" not in error
    assert not out.parent.exists()


# ---- what it can be asked for


def test_half_precision_weights(kvedge: Command, tiny, out: Path, shared: list[str]) -> None:
    """Half the file; the same model to half precision, as export checks and the engine runs it."""
    record = kvedge("export", tiny.hf, "--kv", "fp", *RULES[2:], "--weights", "fp16", "-o", out, "--json").json
    assert record["verified"]["problems"] == []
    assert 1e-5 < record["verified"]["exact_error"] < 5e-3 < record["verified"]["exact_tolerance"]
    half, full = ((folder / artifact.WEIGHTS).stat().st_size for folder in (out, tiny.fp))
    assert 0.5 * full <= half < 0.52 * full
    assert artifact.load(out).model.weights == "fp16"
    got, want = (stream_logits(Engine.load(folder, threads=1), IDS, [150])[0] for folder in (out, tiny.fp))
    assert 0 < np.abs(got - want).max() / want.std() < 5e-3
    assert kvedge("verify", out, tiny.hf).code == 0


def test_without_verification(
    kvedge: Command, tiny, out: Path, monkeypatch: pytest.MonkeyPatch, shared: list[str]
) -> None:
    monkeypatch.setattr(exporter, "verify_artifact", full_disk)
    result = kvedge("export", tiny.hf, *RULES, "--no-verify", "-o", out)
    assert result.code == 0 and "verify" not in result.err and "against the original" not in result.out
    assert artifact.load(out) == replace(artifact.read(tiny.int3), files=artifact.read(out).files)


def test_what_disagrees_is_not_written(
    kvedge: Command, tiny, out: Path, monkeypatch: pytest.MonkeyPatch, shared: list[str]
) -> None:
    verified = exporter.verify_artifact

    def wrong(*arguments: object) -> Report:
        report = verified(*arguments)  # type: ignore[arg-type]
        return replace(report, prompts=(replace(report.prompts[0], exact_error=0.3), *report.prompts[1:]))

    monkeypatch.setattr(exporter, "verify_artifact", wrong)
    result = kvedge("export", tiny.hf, *RULES, "-o", out)
    check_last_error(result, "the exported graph disagrees with hf", "expected at most 0.002, got 0.3", "--no-verify")
    assert not out.parent.exists()


def test_what_is_printed(kvedge: Command, tiny, out: Path, shared: list[str]) -> None:
    result = kvedge("export", tiny.hf, *RULES, "-o", out)
    assert result.code == 0
    assert [line.split()[0] for line in result.err.splitlines()] == ["load", "trace", "write", "verify", "finish"]
    assert result.out.startswith(f"wrote {out}: 2 layers, ")
    assert re.search(r"KV cache int3: [\d.]+ [kM]B for ever; the same tokens in fp16: [\d.]+ [kM]B\n", result.out)
    assert "worst of 4 prompts" in result.out and "packed pages read" in result.out
