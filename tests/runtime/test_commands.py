"""The commands on a tiny artifact: what they print, and that every mistake is one line and exit code 2."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import Command, check_error, hear_interrupts, listing

from kvedge.runtime import demo
from kvedge.runtime.backend import StepOutput
from kvedge.runtime.engine import Engine, Row
from kvedge.runtime.text import Text
from kvedge.targets.manifest import FORMAT_VERSION

PROMPT = "Tell me about sinks, windows and pages, and do it at such length that pages get packed."


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(demo.demo_text(), encoding="utf-8")
    return path


# ---- run


def test_run_streams_what_json_holds(kvedge: Command, tiny) -> None:
    streamed = kvedge("run", tiny.int3, PROMPT, "--max-tokens", 40)
    assert streamed.code == 0 and streamed.err == ""
    whole = kvedge("run", tiny.int3, PROMPT, "--max-tokens", 40, "--json").json
    assert streamed.out == whole["text"] + "\n"
    assert whole["finish_reason"] == "max_tokens"
    assert len(whole["token_ids"]) == whole["usage"]["answer_tokens"] == 40
    assert whole["usage"]["packed_pages_read"] > 0
    assert whole["usage"]["decode_tokens_per_second"] > 0
    assert whole["kv_bytes"] > 0


def test_run_does_not_time_a_few_steps(kvedge: Command, tiny) -> None:
    result = kvedge("run", tiny.int3, PROMPT, "--max-tokens", 8, "--json").json
    assert result["usage"]["decode_tokens_per_second"] is None
    line = kvedge("run", tiny.int3, PROMPT, "--max-tokens", 8, "--stats").err
    assert line.count("\n") == 1
    assert "too short to time" in line and "finish: max_tokens" in line and "fp16" in line


def test_run_stats(kvedge: Command, tiny) -> None:
    line = kvedge("run", tiny.int3, PROMPT, "--max-tokens", 30, "--stats").err
    wanted = r"prompt \d+ tokens, prefill \d+ tok/s, answer 30 tokens, decode [\d.]+ tok/s, [1-9]\d* packed pages"
    assert re.match(wanted, line)


def test_run_reads_the_prompt_from_stdin(kvedge: Command, tiny) -> None:
    argument = kvedge("run", tiny.int3, PROMPT, "--max-tokens", 5).out
    assert kvedge("run", tiny.int3, "-", "--max-tokens", 5, stdin=f"{PROMPT}\n".encode()).out == argument
    assert kvedge("run", tiny.int3, "--max-tokens", 5, stdin=PROMPT.encode()).out == argument


def test_run_uses_the_chat_format_unless_raw(kvedge: Command, tiny) -> None:
    chat = kvedge("run", tiny.int3, PROMPT, "--max-tokens", 1, "--json").json
    raw = kvedge("run", tiny.int3, PROMPT, "--max-tokens", 1, "--json", "--raw").json
    rendered = kvedge("run", tiny.int3, f"[user] {PROMPT}\n[assistant] ", "--max-tokens", 1, "--json", "--raw").json
    assert chat["usage"]["prompt_tokens"] == rendered["usage"]["prompt_tokens"] > raw["usage"]["prompt_tokens"]
    assert chat["token_ids"] == rendered["token_ids"]


def test_run_sampling_repeats_with_a_seed(kvedge: Command, tiny) -> None:
    options = ("--max-tokens", 20, "--temperature", 2, "--top-p", 0.9, "--threads", 1)
    first, again, other = (kvedge("run", tiny.int3, PROMPT, *options, "--seed", n).out for n in (1, 1, 2))
    assert first == again != other


def test_run_ends_where_the_context_does(kvedge: Command, tiny) -> None:
    result = kvedge("run", tiny.whole, PROMPT, "--ctx", 120, "--max-tokens", 500, "--json").json
    assert result["finish_reason"] == "length"
    usage = result["usage"]
    assert usage["prompt_tokens"] + usage["decode_steps"] == 120
    long = "many words " * 100
    check_error(kvedge("run", tiny.whole, long, "--ctx", 120), "prompt", "120", "--window")


def test_interrupted_run_keeps_what_is_written(kvedge: Command, tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    full = kvedge("run", tiny.int3, PROMPT, "--max-tokens", 30).out
    step, steps = Engine.step, []

    def interrupted(self: Engine, rows: list[Row], index: list[int]) -> StepOutput:
        steps.append(rows)
        if len(steps) == 20:
            raise KeyboardInterrupt
        return step(self, rows, index)

    monkeypatch.setattr(Engine, "step", interrupted)
    result = kvedge("run", tiny.int3, PROMPT, "--max-tokens", 30)
    assert result.code == 130
    assert result.out.endswith("\n") and len(result.out) > 1 and full.startswith(result.out[:-1])


def test_signal_ends_a_run(tiny) -> None:
    command = [
        sys.executable,
        "-m",
        "kvedge.runtime.cli",
        "run",
        str(tiny.int3),
        PROMPT,
        "--max-tokens",
        "1000000",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=hear_interrupts)
    assert process.stdout is not None
    start = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert (start + out).endswith(b"\n") and b"Traceback" not in err


# ---- plan


@pytest.mark.parametrize("options", [(), ("--sessions", 3), ("--chunk", 16), ("--ctx", 100), ("--ctx", 7)])
@pytest.mark.parametrize("name", ["fp", "int3", "whole"])
def test_plan_equals_what_the_engine_allocates(kvedge: Command, tiny, name: str, options: tuple[object, ...]) -> None:
    folder = getattr(tiny, name)
    planned = kvedge("plan", folder, "--json", *options).json
    given = dict(zip(options[::2], options[1::2], strict=True))
    chosen = {"chunk": given.get("--chunk", 256), "sessions": given.get("--sessions", 1)}
    engine = Engine.load(folder, context=given.get("--ctx"), **chosen)
    assert planned["kv_bytes"] == engine.allocated_bytes == planned["hot_bytes"] + planned["packed_bytes"]
    assert planned["fp16_kv_bytes"] == engine.plan.fp16_bytes
    written = sum(eval(group["formula"].replace("x", "*")) for group in planned["layers"])
    assert written == planned["kv_bytes"]
    assert planned["total_bytes"] == planned["kv_bytes"] + planned["weights_loaded_bytes"]


@pytest.mark.parametrize(("name", "kind", "window"), [("fp", "fp", 48), ("int3", "int3", 48), ("whole", "int3", None)])
def test_plan_before_the_export_equals_plan_after(
    kvedge: Command, tiny, name: str, kind: str, window: int | None
) -> None:
    rules = ["--kv", kind, "--sinks", 4, "--recent", 16, "--page", 16]
    rules += ["--window", window] if window else []
    before, after = (
        kvedge("plan", tiny.hf, *rules, "--json").json,
        kvedge("plan", getattr(tiny, name), "--json").json,
    )
    for key in ("layers", "kv_bytes", "fp16_kv_bytes", "endless", "context"):
        assert before[key] == after[key]
    assert before["weights_basis"] == "safetensors headers"
    assert before["weights_stored_bytes"] < after["weights_stored_bytes"] < 1.5 * before["weights_stored_bytes"]


def test_plan_finds_cached_hub_models(kvedge: Command, tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / "hub" / "models--some--model" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    shutil.copy(tiny.hf / "config.json", snapshot)
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    cached = kvedge("plan", "some/model", "--json").json
    local = kvedge("plan", tiny.hf, "--json").json
    assert cached["kv_bytes"] == local["kv_bytes"]
    assert "estimate" in cached["weights_basis"]
    assert cached["weights_stored_bytes"] == local["weights_stored_bytes"], "the formula fits this family exactly"
    check_error(kvedge("plan", "other/model"), "other/model", "never downloads")


def test_plan_reads_gguf(kvedge: Command, tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_embedding_length(64)
    writer.add_context_length(256)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(16)
    writer.add_tensor("token_embd.weight", np.zeros((512, 64), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    planned = kvedge("plan", path, "--weights", "fp16", "--json").json
    assert planned["kv_bytes"] == kvedge("plan", tiny.hf, "--json").json["kv_bytes"]
    assert (planned["weights_stored_bytes"], planned["weights_loaded_bytes"]) == (2 * 512 * 64, 4 * 512 * 64)
    path.write_bytes(path.read_bytes()[:40])
    check_error(kvedge("plan", path), "GGUF")
    monkeypatch.setattr("kvedge.runtime.plan_source.importlib.util.find_spec", lambda _: None)
    check_error(kvedge("plan", path), "pip install 'kvedge[demo]'")


def test_plan_fits_memory(kvedge: Command, tiny) -> None:
    weights = kvedge("plan", tiny.whole, "--json").json["weights_loaded_bytes"]
    budget = weights + 30_000
    largest = kvedge("plan", tiny.whole, "--memory", f"{budget}B", "--json").json["largest_context"]
    assert 0 < largest < 256
    sizes = [kvedge("plan", tiny.whole, "--ctx", n, "--json").json["total_bytes"] for n in (largest, largest + 1)]
    assert sizes[0] <= budget < sizes[1]
    assert f"at most {largest} tokens" in kvedge("plan", tiny.whole, "--memory", budget).out
    assert "too little" in kvedge("plan", tiny.whole, "--memory", "1kB").out
    assert "any length" in kvedge("plan", tiny.int3, "--memory", "1GiB").out


def test_plan_text(kvedge: Command, tiny) -> None:
    text = kvedge("plan", tiny.int3).out
    assert "layers 0-1: window 48 + 4 sinks, int3, 5.5 bits a value" in text
    assert "endless" in text and "hot pool" in text and "in fp16" in text
    inside = kvedge("plan", tiny.hf, "--window", 100, "--recent", 128).out
    assert "nothing to pack" in inside


# ---- environment


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("KVEDGE_CPU_ISA", "AVX2", "expected baseline, avx2, avx512, avx512vnni, avx512amx or neondot"),
        ("KVEDGE_CPU_LIBRARY", "/none.so", "a library of kernels"),
        ("KVEDGE_CPU_LIBRARY", "/etc/passwd", "that ONNX Runtime can load"),
    ],
)
@pytest.mark.parametrize("command", ["run", "bench"])
def test_wrong_variables_are_one_line(command: str, name: str, value: str, words: str, tiny) -> None:
    """In a process of its own: the kernels are loaded once."""
    arguments = [command, str(tiny.int3), *(["hi"] if command == "run" else ["--depth", "0"])]
    done = subprocess.run(
        [sys.executable, "-m", "kvedge.runtime.cli", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, name: value},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {name}; ") and done.stderr.count("\n") == 1, done.stderr
    assert words in done.stderr and value in done.stderr


# ---- eval


def test_eval_against_itself(kvedge: Command, tiny, text_file: Path) -> None:
    options = ("--tokens", 300, "--skip", 60, "--json")
    result = kvedge("eval", tiny.int3, text_file, "--against", tiny.int3, *options).json
    assert result["scored"] == 239
    assert result["kl"] == 0 and result["top1"] == 1
    assert result["this"] == result["reference"]


def log_probabilities(folder: Path, ids: list[int]) -> np.ndarray:
    """Log-probabilities [len(ids), vocab], one token a step."""
    engine = Engine.load(folder)
    sequence = engine.sequence()
    logits = [engine.step([Row(sequence, [token])], [0]).logits[0, 0].copy() for token in ids]
    shifted = np.array(logits, np.float64)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def test_eval_agrees_with_one_token_a_step(kvedge: Command, tiny, text_file: Path) -> None:
    options = ("--tokens", 200, "--skip", 60, "--json")
    found = kvedge("eval", tiny.int3, text_file, "--against", tiny.fp, *options).json
    alone = kvedge("eval", tiny.int3, text_file, *options).json
    assert alone["this"] == found["this"] and alone["reference"] is None and alone["kl"] is None
    ids = Text.load(tiny.fp).encode(text_file.read_text())[:200]
    p, q = (log_probabilities(folder, ids)[60:-1] for folder in (tiny.fp, tiny.int3))
    assert found["scored"] == len(p) == 139
    for name, logs in (("reference", p), ("this", q)):
        perplexity = np.exp(-logs[np.arange(len(logs)), ids[61:]].mean())
        assert found[name]["perplexity"] == pytest.approx(perplexity, rel=1e-5)
    assert found["kl"] == pytest.approx((np.exp(p) * (p - q)).sum(-1).mean(), rel=1e-3) and found["kl"] > 1e-6
    assert found["top1"] == pytest.approx((p.argmax(-1) == q.argmax(-1)).mean(), abs=0.02)
    assert found["this"]["packed_pages_read"] > 0 == found["reference"]["packed_pages_read"]


def test_eval_says_when_nothing_was_packed(kvedge: Command, tiny, text_file: Path) -> None:
    assert "says nothing" in kvedge("eval", tiny.int3, text_file, "--tokens", 20, "--skip", 0).out
    assert "says nothing" not in kvedge("eval", tiny.fp, text_file, "--tokens", 20, "--skip", 0).out


# ---- mistakes


MISTAKES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "unknown command": (("fly",), ("fly", "kvedge --help")),
    "unknown option": (("run", "{int3}", "hi", "--fast"), ("--fast", "kvedge run --help")),
    "no folder": (("run",), ("DIR",)),
    "bad number": (("run", "{int3}", "hi", "--max-tokens", "0"), ("--max-tokens",)),
    "cold": (("run", "{int3}", "hi", "--temperature", "-1"), ("temperature", "got -1.0")),
    "top-p": (("run", "{int3}", "hi", "--top-p", "0"), ("top-p",)),
    "top-k": (("run", "{int3}", "hi", "--top-k", "-1"), ("top-k", "got -1")),
    "min-p": (("run", "{int3}", "hi", "--min-p", "1.5"), ("min-p", "0 to 1")),
    "penalty": (("run", "{int3}", "hi", "--repeat-penalty", "0"), ("repeat penalty",)),
    "penalty's reach": (("run", "{int3}", "hi", "--repeat-last", "5000"), ("repeat last", "1024")),
    "empty stop": (("run", "{int3}", "hi", "--stop", ""), ("stop string", "some text")),
    "seed": (("run", "{int3}", "hi", "--seed", "-1"), ("seed",)),
    "ctx": (("run", "{whole}", "hi", "--ctx", "999"), ("context", "256 positions", "got 999")),
    "missing": (("run", "{tmp}/none", "hi"), ("none", "kvedge export")),
    "no artifact": (("run", "{tmp}", "hi"), ("manifest.json", "kvedge export")),
    "empty": (("run", "{int3}", ""), ("prompt", "some text")),
    "blank": (("run", "{int3}", " \n"), ("prompt", "some text")),
    "empty stdin": (("run", "{int3}"), ("prompt", "some text")),
    "plan nothing": (("plan", "{tmp}/none"), ("no model at",)),
    "plan a folder": (("plan", "{tmp}"), ("config.json",)),
    "plan a text": (("plan", "{text}"), (".gguf", ".txt")),
    "plan kind": (("plan", "{hf}", "--kv", "int5"), ("unknown KV kind", "int5")),
    "plan window": (("plan", "{hf}", "--window", "300"), ("256 positions", "--window")),
    "plan recent": (("plan", "{hf}", "--recent", "100"), ("recent", "multiple")),
    "plan fixed": (("plan", "{int3}", "--kv", "int4", "--page", "8"), ("--kv, --page", "fixed")),
    "plan size": (("plan", "{int3}", "--memory", "lots"), ("--memory", "2GB")),
    "plan ctx": (("plan", "{int3}", "--ctx", "1000"), ("--ctx", "256")),
    "short bench": (("bench", "{int3}", "--gen", "4"), ("--gen", "at least 16", "got 4")),
    "no bench": (("bench", "{tmp}/none"), ("kvedge export",)),
    "negative depth": (("bench", "{int3}", "--depth", "-1"), ("--depth",)),
    "no runs": (("bench", "{int3}", "--runs", "0"), ("--runs",)),
    "short text": (("eval", "{int3}", "{text}", "--tokens", "9000"), ("9000 tokens", "longer text")),
    "no text": (("eval", "{int3}", "{tmp}/none"), ("text", "nothing there")),
    "nothing scored": (
        ("eval", "{int3}", "{text}", "--tokens", "50", "--skip", "50"),
        ("--tokens", "at least 52"),
    ),
    "no reference": (
        ("eval", "{int3}", "{text}", "--tokens", "300", "--against", "{tmp}"),
        ("manifest.json",),
    ),
    "no room": (("eval", "{whole}", "{text}", "--tokens", "300"), ("context", "256")),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_one_line(
    kvedge: Command, tiny, tmp_path: Path, text_file: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.chdir(tmp_path)
    before = listing(tmp_path), listing(tiny.hf.parent)
    arguments, words = MISTAKES[case]
    places = {"int3": tiny.int3, "whole": tiny.whole, "hf": tiny.hf, "tmp": tmp_path, "text": text_file}
    check_error(kvedge(*(argument.format(**places) for argument in arguments)), *words)
    assert (listing(tmp_path), listing(tiny.hf.parent)) == before


def test_prompts_are_utf8(kvedge: Command, tiny) -> None:
    check_error(kvedge("run", tiny.int3, "-", stdin=b"\xff\xfe"), "UTF-8")
    check_error(kvedge("run", tiny.int3, "\udcff"), "UTF-8")


def commands_on(folder: Path, text: Path) -> list[tuple[object, ...]]:
    return [("run", folder, "hi"), ("chat", folder), ("bench", folder), ("eval", folder, text)]


def test_newer_format(kvedge: Command, broken: Path, text_file: Path) -> None:
    path = broken / "manifest.json"
    path.write_text(path.read_text().replace(f'"format_version": {FORMAT_VERSION}', '"format_version": 99'))
    for command in [*commands_on(broken, text_file), ("plan", broken), ("inspect", broken)]:
        check_error(kvedge(*command), "got 99", "update kvedge")


@pytest.mark.parametrize("where", ["digit", "brace"])
def test_flipped_byte_in_the_manifest(kvedge: Command, broken: Path, text_file: Path, where: str) -> None:
    path = broken / "manifest.json"
    text = path.read_text()
    changed = text.replace('"max_positions": 256', '"max_positions": 257') if where == "digit" else text[:-2] + ")\n"
    assert changed != text
    path.write_text(changed)
    for command in [*commands_on(broken, text_file), ("plan", broken), ("inspect", broken)]:
        check_error(kvedge(*command), "damaged artifact", "manifest")


def test_flipped_byte_in_the_weights(kvedge: Command, broken: Path, text_file: Path) -> None:
    path = broken / "model.onnx.data"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    for command in commands_on(broken, text_file):
        check_error(kvedge(*command), "damaged artifact", "model.onnx.data", "SHA-256")


# ---- help and the demonstration


@pytest.mark.parametrize("command", ["export", "run", "chat", "plan", "targets", "verify", "inspect", "bench", "eval"])
def test_help_has_examples(kvedge: Command, command: str) -> None:
    result = kvedge(command, "--help")
    assert result.code == 0 and "Examples:" in result.out and f"kvedge {command} " in result.out
    assert "--json" in result.out


def test_demo_uses_what_is_there(tiny, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo, "FOLDER", tiny.int3)
    demo.main()
    out = capsys.readouterr().out
    assert demo.QUESTION in out and re.search(r"packed pages  [1-9]\d* read", out) and "in fp16" in out


def test_demo_fails_where_nothing_is_packed(
    tiny, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "FOLDER", tiny.fp)
    with pytest.raises(SystemExit) as end:
        demo.main()
    assert end.value.code == 1
    assert "packed pages" in capsys.readouterr().err


def test_demo_without_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "FOLDER", tmp_path / "none")
    monkeypatch.setattr(demo, "MODEL_PACKAGE", "no_such_package")
    with pytest.raises(SystemExit) as end:
        demo.main()
    assert end.value.code == 1
    assert "no_such_package" in capsys.readouterr().err
