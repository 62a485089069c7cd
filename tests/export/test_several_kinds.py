"""Several kinds of cache in one export: one trace, one file of weights, each artifact whole by itself."""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import Command, check_last_error, listing
from shared_trace import share_traces
from tiny_models import stream_logits
from transformers import MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM

from kvedge.export import artifact as writer
from kvedge.export import export as exporter
from kvedge.export.verify import Report
from kvedge.runtime.engine import Engine
from kvedge.targets import manifest as artifact

RULES = ("--window", 48, "--sinks", 4, "--recent", 16, "--page", 16)
IDS = np.random.default_rng(0).integers(0, 512, 150)


@pytest.fixture(autouse=True)
def traced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the models that were traced."""
    return share_traces(monkeypatch)


def logits(folder: Path) -> np.ndarray:
    return stream_logits(Engine.load(folder, threads=1), IDS % 256, [64, 150])[0]


def test_kinds_share_trace_and_weights(kvedge: Command, tiny, tmp_path: Path, traced: list[str]) -> None:
    result = kvedge(
        "export", tiny.hf, "--kv", "int3,fp", "--kv", "int4", "--kv", "int3", *RULES, "-o", tmp_path / "all", "--json"
    )
    records = json.loads(result.out)
    assert traced == ["hf"]
    assert [record["kind"] for record in records] == ["int3", "fp", "int4"]
    folders = [Path(record["folder"]) for record in records]
    assert folders == [tmp_path / "all" / kind for kind in ("int3", "fp", "int4")]
    assert sorted(tmp_path.rglob(".*")) == []
    assert len({(folder / artifact.WEIGHTS).stat().st_ino for folder in folders}) == 1, "one file with three names"
    for folder, record in zip(folders, records, strict=True):
        assert artifact.load(folder).kind.value == record["kind"]
        assert record["verified"]["problems"] == [] and len(record["verified"]["prompts"]) == 4
    np.testing.assert_array_equal(logits(folders[0]), logits(tiny.int3))
    np.testing.assert_array_equal(logits(folders[1]), logits(tiny.fp))
    shutil.rmtree(folders[0])
    assert np.isfinite(logits(folders[2])).all(), "the others stay whole"


def test_layers_may_have_other_kinds(kvedge: Command, tiny, tmp_path: Path) -> None:
    """Each layer is what it would be in an artifact of its kind; all of them exact are the exact artifact."""
    for name, option in {"mixed": "1=int8", "exact": "0-1=fp"}.items():
        result = kvedge("export", tiny.hf, "--kv", "int3", "--kv-layer", option, *RULES, "-o", tmp_path / name)
        assert result.code == 0, result.err
    layers = artifact.read(tmp_path / "mixed").cache.layers
    assert [layer.kind.value for layer in layers] == ["int3", "int8"]
    errors = [np.abs(logits(folder) - logits(tiny.fp)).max() for folder in (tmp_path / "mixed", tiny.int3)]
    assert 0 < errors[0] < errors[1]
    np.testing.assert_array_equal(logits(tmp_path / "exact"), logits(tiny.fp))
    table = kvedge("inspect", tmp_path / "mixed").out
    assert "int3" in table and "int8" in table
    options = ("--kv", "int3", "--kv-layer", "1=int8", *RULES)
    planned = kvedge("plan", tiny.hf, *options, "--json").json
    assert [layer["kind"] for layer in planned["layers"]] == ["int3", "int8"]
    assert planned["kv_bytes"] == kvedge("plan", tmp_path / "mixed", "--json").json["kv_bytes"]


def test_what_a_mixture_is_called(kvedge: Command, tiny, tmp_path: Path) -> None:
    """Exact is what has no other layer; a word on a bias is for layers that pack."""
    record = kvedge(
        "export", tiny.hf, "--kv", "fp", "--kv-layer", "1=int2", *RULES, "--no-verify", "-o", tmp_path / "out", "--json"
    ).json
    assert record["kind"] == "fp + int2"
    assert not artifact.read(tmp_path / "out").is_exact and artifact.read(tiny.fp).is_exact
    assert "fp + int2" in kvedge("inspect", tmp_path / "out").out


@pytest.mark.parametrize("command", ["export", "plan"])
def test_layers_that_are_not_there(command: str, kvedge: Command, tiny, tmp_path: Path) -> None:
    output = ("-o", tmp_path / "out") if command == "export" else ()
    for option, words in {
        "2=int8": "layers 0 to 1; got 2",
        "0": "0,29=int8",
        "0=int5": "unknown KV kind",
        "5-3=int8": "the smaller number first",
        "0-99999999=int8": "1 to 1000",
    }.items():
        check_last_error(kvedge(command, tiny.hf, "--kv-layer", option, *output), words)
    assert listing(tmp_path) == []


def test_they_are_named_after_model_and_kind(
    kvedge: Command, tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = kvedge("export", tiny.hf, "--kv", "int3, int8", "--no-verify")
    assert result.code == 0 and result.out.count("wrote hf-int") == 2
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["hf-int3", "hf-int8"]
    one = kvedge("export", tiny.hf, "--kv", "int2", "--no-verify", "-o", "two", "--json").json
    assert (one["folder"], one["kind"], one["verified"]) == ("two", "int2", None)


def test_weights_are_copied_where_files_have_one_name(
    kvedge: Command, tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(writer.os, "link", refuse)
    kvedge("export", tiny.hf, "--kv", "int3,int4", *RULES, "--no-verify", "-o", tmp_path / "all")
    files = [tmp_path / "all" / kind / artifact.WEIGHTS for kind in ("int3", "int4")]
    assert files[0].read_bytes() == files[1].read_bytes() and files[0].stat().st_nlink == 1
    np.testing.assert_array_equal(logits(tmp_path / "all" / "int3"), logits(tiny.int3))


def test_key_biases_come_with_the_kinds_that_pack(kvedge: Command, tmp_path: Path) -> None:
    """Whichever kind comes first, the graphs are the same as alone."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = Qwen2Config(**sizes, num_key_value_heads=2, vocab_size=256, max_position_embeddings=256, pad_token_id=0)
    model = Qwen2ForCausalLM(config).eval()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.k_proj.bias.normal_(std=4.0)
    model.save_pretrained(tmp_path / "biased")
    for order in ("fp,int4", "int4,fp", "int4"):
        result = kvedge("export", tmp_path / "biased", "--kv", order, *RULES, "-o", tmp_path / order)
        assert result.code == 0, result.err
    first, second, alone = (tmp_path / name for name in ("fp,int4/int4", "int4,fp/int4", "int4"))
    np.testing.assert_array_equal(logits(first), logits(alone))
    np.testing.assert_array_equal(logits(second), logits(alone))
    np.testing.assert_array_equal(logits(tmp_path / "fp,int4" / "fp"), logits(tmp_path / "int4,fp" / "fp"))


def test_large_key_biases_are_named(kvedge: Command, tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4}
    config = Qwen2Config(**sizes, num_key_value_heads=2, vocab_size=256, max_position_embeddings=256, pad_token_id=0)
    model = Qwen2ForCausalLM(config).eval()
    with torch.no_grad():
        for layer in (model.model.layers[0], model.model.layers[3]):
            layer.self_attn.k_proj.bias.view(2, 16)[:, 5] = 200.0
    model.save_pretrained(tmp_path / "large")
    result = kvedge("export", tmp_path / "large", "--kv", "int3", *RULES, "-o", tmp_path / "int3")
    assert "note: layers 0, 3: a large bias on the keys (norm up to 200 a head)" in result.err
    record = kvedge("export", tmp_path / "large", "--kv", "int3", *RULES, "-o", tmp_path / "again", "--json").json
    assert len(record["notes"]) == 1 and record["notes"][0] in result.err
    one = kvedge("export", tmp_path / "large", "--kv", "int3", "--kv-layer", "0=fp", *RULES, "-o", tmp_path / "one")
    assert "note: layer 3: a large bias" in one.err
    exact = kvedge("export", tmp_path / "large", "--kv", "fp", *RULES, "-o", tmp_path / "fp")
    assert "note:" not in exact.err, "exact pages have no codes to keep it out of"


def test_windows_of_the_model_are_named(kvedge: Command, tmp_path: Path) -> None:
    """They stay as they are, whatever was asked for."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = MistralConfig(
        **sizes, num_key_value_heads=2, vocab_size=256, max_position_embeddings=256, sliding_window=32, pad_token_id=0
    )
    MistralForCausalLM(config).save_pretrained(tmp_path / "sliding")
    asked = ("--page", 16, "--recent", 16, "--sinks", 4, "--no-verify")
    out = iter("abcd")
    for window, words in (((), "all tokens"), (("--window", 48), "a window of 48")):
        result = kvedge("export", tmp_path / "sliding", *asked, *window, "-o", tmp_path / next(out))
        assert "note: layers 0, 1 have a sliding window of the model's own (32 tokens)" in result.err
        assert f"instead of {words}" in result.err
    fits = ("--window", 20, "--sinks", 0)
    assert "note:" not in kvedge("export", tmp_path / "sliding", *asked, *fits, "-o", tmp_path / next(out)).err


@pytest.mark.parametrize("there", ["int3", "int4"])
def test_nothing_begins_where_one_is_there(
    there: str, kvedge: Command, tiny, tmp_path: Path, traced: list[str]
) -> None:
    (tmp_path / "all" / there).mkdir(parents=True)
    (tmp_path / "all" / there / "mine.txt").touch()
    before = listing(tmp_path)
    check_last_error(
        kvedge("export", tiny.hf, "--kv", "int3,int4", "-o", tmp_path / "all"), f"all/{there}", "new folder"
    )
    assert (listing(tmp_path), traced) == (before, [])


def test_what_is_finished_stays(kvedge: Command, tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verified, asked = exporter.verify_artifact, []

    def failing(*arguments: object) -> Report:
        asked.append(arguments)
        report = verified(*arguments)  # type: ignore[arg-type]
        worse = [replace(prompt, kl=3.0) for prompt in report.prompts]
        return report if len(asked) == 1 else replace(report, prompts=tuple(worse))

    monkeypatch.setattr(exporter, "verify_artifact", failing)
    result = kvedge("export", tiny.hf, "--kv", "int4,int2,int3", *RULES, "-o", tmp_path / "all")
    assert result.code == 2 and result.out.startswith(f"wrote {tmp_path / 'all' / 'int4'}")
    last = result.err.splitlines()[-1]
    assert last.startswith("error: the quantized cache ruins hf; got random tokens: packed, KL divergence")
    assert "choose more bits with --kv" in last
    assert [path.name for path in (tmp_path / "all").iterdir()] == ["int4"]
    assert artifact.load(tmp_path / "all" / "int4").kind.value == "int4"


@pytest.mark.parametrize(
    ("kinds", "words"),
    [("int3,", "unknown KV kind"), ("int3,int5", "got int5"), ("", "unknown KV kind")],
)
def test_unknown_kinds(kinds: str, words: str, kvedge: Command, tiny, tmp_path: Path, traced: list[str]) -> None:
    check_last_error(kvedge("export", tiny.hf, "--kv", kinds, "-o", tmp_path / "all"), words)
    assert listing(tmp_path) == traced == []
