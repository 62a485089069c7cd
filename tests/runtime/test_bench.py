"""`kvedge bench` on tiny artifacts: numbers, text, pictures, refusals."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import Command, check_error

from kvedge.runtime.bench import Comparison, _comparisons, _worker
from kvedge.runtime.command_bench import _comparison_text
from kvedge.targets.errors import KvedgeError
from kvedge.targets.kinds import Kind


def test_bench_compares_kinds(kvedge: Command, tiny) -> None:
    options = (tiny.fp, tiny.int3, "--depth", 0, "--depth", 100, "--gen", 16, "--runs", 2)
    result = kvedge("bench", *options, "--json").json
    exact, packed = result["artifacts"]
    assert (exact["kind"], packed["kind"]) == ("fp", "int3")
    for found in (exact, packed):
        assert [depth["depth"] for depth in found["depths"]] == [0, 100]
        assert found["depths"][0]["prefill"] is None
        deep = found["depths"][1]
        assert 0 < deep["prefill"]["low"] <= deep["prefill"]["median"] <= deep["prefill"]["high"]
        assert deep["prefill"]["low"] == pytest.approx(100 / deep["first_token_seconds"]["high"])
        assert deep["decode"]["median"] > 0
        assert found["kv_planned"] == found["kv_allocated"]
        assert 0 < found["resident_before"] < deep["resident_peak"]
        assert deep["token_bytes"] > found["depths"][0]["token_bytes"] > 0
        share = deep["token_bytes"] * deep["decode"]["median"] / result["read_bandwidth"]
        assert deep["bandwidth_share"] == pytest.approx(share)
        assert found["load_seconds"] > 0 and found["warm_up_seconds"] > 0
    assert packed["depths"][1]["packed_pages_per_token"] >= 2 and exact["depths"][1]["packed_pages_per_token"] == 0
    assert result["threads"] >= 1 and "onnxruntime" in result["versions"] and "machine" in result["device"]
    first, second = result["comparisons"]
    assert (first["depth"], first["folder"], first["against"]) == (0, str(tiny.int3), str(tiny.fp))
    assert first["same_tokens"] == first["tokens"] == 17, "nothing is packed yet"
    assert 0 <= second["same_tokens"] <= 17 and second["decode_ratio"] > 0


def test_bench_text(kvedge: Command, tiny) -> None:
    text = kvedge("bench", tiny.fp, tiny.int3, "--depth", 60, "--gen", 16, "--runs", 1).out
    for words in (
        "prefill tok/s",
        "warm-up",
        "planned",
        "peak memory",
        "of bandwidth",
        "GB/s",
        "times as fast as",
        "greedy tokens the same",
    ):
        assert words in text, text
    assert re.search(
        r"ONNX Runtime \(CPU\); on the CPU (baseline|avx2|avx512|avx512vnni|avx512amx|neondot), \d+ threads", text
    )


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("html", b"<!doctype html>")])
def test_bench_draws(kvedge: Command, tiny, tmp_path: Path, suffix: str, magic: bytes) -> None:
    path = tmp_path / f"speed.{suffix}"
    options = ("--depth", 0, "--depth", 60, "--gen", 16, "--runs", 1, "--plot", path)
    assert kvedge("bench", tiny.fp, tiny.int3, *options).code == 0
    assert path.read_bytes().startswith(magic) and (suffix == "png" or b"</svg>" in path.read_bytes())


def test_bench_draws_without_prompts(kvedge: Command, tiny, tmp_path: Path) -> None:
    options = ("--depth", 0, "--gen", 16, "--runs", 1, "--plot", tmp_path / "speed.png")
    assert kvedge("bench", tiny.fp, *options).code == 0
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")


def test_bench_refuses_other_pictures(kvedge: Command, tiny, tmp_path: Path) -> None:
    check_error(kvedge("bench", tiny.fp, "--plot", tmp_path / "a.jpg"), "--plot", ".png, .svg, .html", "a.jpg")
    check_error(kvedge("bench", tiny.fp, "--plot", tmp_path / "none" / "a.svg"), "--plot", "a folder that is there")


def test_a_slower_kind_is_called_slower(tiny) -> None:
    facts = {"folder": tiny.int3, "against": tiny.fp, "depth": 512, "same_tokens": 17, "tokens": 17}
    slow, fast = (_comparison_text(Comparison(**facts, decode_ratio=ratio)) for ratio in (0.9, 1.1))
    assert "0.90 times as fast" in slow and ": slower here" in slow
    assert "slower" not in fast


def test_bench_goes_past_the_window(kvedge: Command, tiny) -> None:
    result = kvedge("bench", tiny.int3, "--gen", 16, "--runs", 1, "--json").json
    assert [depth["depth"] for depth in result["artifacts"][0]["depths"]] == [0, 48, 192]
    assert result["comparisons"] == []


def test_bench_leaves_out_depths_that_do_not_fit(kvedge: Command, tiny) -> None:
    result = kvedge("bench", tiny.whole, "--gen", 16, "--runs", 1, "--json").json
    assert [depth["depth"] for depth in result["artifacts"][0]["depths"]] == [0]
    check_error(kvedge("bench", tiny.whole, "--depth", 250), "--depth", "at most 224")
    check_error(kvedge("bench", tiny.fp, tiny.whole, "--depth", 250), "--depth", "at most 224")


def test_bench_says_what_a_worker_says(kvedge: Command, tiny, broken: Path) -> None:
    """The weights are read in the other process."""
    weights = broken / "model.onnx.data"
    weights.write_bytes(weights.read_bytes()[:-1])
    check_error(kvedge("bench", tiny.fp, broken), "damaged artifact", "model.onnx.data")


def test_a_worker_that_ends_is_named(tmp_path: Path) -> None:
    """Also where it ends between two orders, as by the system's want of memory."""
    with _worker("no_such_module", {}, tmp_path, stderr=subprocess.DEVNULL) as worker:
        worker._process.wait()
        with pytest.raises(KvedgeError, match="measuring .*; expected a result; got a process that ended with 1"):
            worker.measure(0, 16, [1, 0], lambda _: None)


def test_only_the_same_weights_are_compared() -> None:
    """What int4 weights gain is not what packed pages gain; nor is it what float16 gains."""

    def result(weights: str, kind: Kind) -> SimpleNamespace:
        model = SimpleNamespace(name="m", weights=weights)
        found = SimpleNamespace(model=model, kind=kind, is_exact=kind.is_exact)
        return SimpleNamespace(folder=Path(weights, kind.value), manifest=found)

    run = SimpleNamespace(decode_seconds=1.0, token_ids=[1, 2])
    results = (result("int4", Kind.INT3), result("fp32", Kind.FP), result("int4", Kind.FP))
    (found,) = _comparisons(results, [{0: [run]}] * 3)
    assert found.against == Path("int4/fp")
    (found,) = _comparisons((*results, result("int4", Kind.FP16)), [{0: [run]}] * 4)
    assert found.against == Path("int4/fp16")
