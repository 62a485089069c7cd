"""`kvedge inspect`: what a token sees by brute force, groups of layers, and files that are not whole."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from built_artifacts import for_engine
from commands import Command, check_error

from kvedge.runtime.command_inspect import sight_text
from kvedge.runtime.engine import Engine
from kvedge.runtime.inspection import FileState, inspect_artifact, sight
from kvedge.runtime.layer_groups import group_alike, number_ranges
from kvedge.targets import manifest as artifact
from kvedge.targets.devices import EngineKind
from kvedge.targets.spec import PageRules
from kvedge.targets.visibility import is_visible, reads_packed

RULES = [
    PageRules(page=8, sinks=sinks, recent=recent, window=window, exact=exact)
    for sinks in (0, 3, 8)
    for recent in (8, 16)
    for window in (None, 5, 16, 17, 18, 40)
    for exact in (False, True)
]


@pytest.fixture
def copy(tiny, tmp_path: Path) -> Path:
    """A copy of the int3 artifact, to damage."""
    return shutil.copytree(tiny.int3, tmp_path / "copy")


@pytest.mark.parametrize("rules", RULES, ids=str)
def test_what_is_seen_is_what_the_rules_say(rules: PageRules) -> None:
    for tokens in (*range(1, 60), 101, 1000):
        seen, query = sight(rules, tokens), tokens - 1
        visible = {key for key in range(tokens) if is_visible(query, key, rules.sinks, rules.window)}
        packed = {
            key for key in visible if rules.packs and reads_packed(query, key, rules.sinks, rules.page, rules.recent)
        }
        assert set(seen.sinks) | set(seen.window) == visible
        assert set(seen.packed) == packed
        assert set(seen.sinks) | set(seen.exact) == visible - packed


@pytest.mark.parametrize(
    ("sinks", "window", "tokens", "text"),
    [
        (64, 4096, 10_000, "0-63 and 5,904-9,999, exact 0-63 and from 9,856 on"),
        (64, None, 10_000, "0-9,999, exact 0-63 and from 9,856 on"),
        (0, 4096, 10_000, "5,904-9,999, exact from 9,856 on"),
        (64, 128, 10_000, "0-63 and 9,872-9,999, all exact"),
        (64, 4096, 4_160, "0-4,159, exact 0-63 and from 3,968 on"),
        (64, 4096, 4_161, "0-63 and 65-4,160, exact 0-63 and from 4,032 on"),
        (64, 4096, 200, "0-199, all exact"),
        (64, 4096, 30, "0-29, all exact"),
        (1, 512, 1_000, "0 and 488-999, exact 0 and from 833 on"),
    ],
)
def test_what_is_seen_in_words(sinks: int, window: int | None, tokens: int, text: str) -> None:
    rules = PageRules(page=64, sinks=sinks, recent=128, window=window, exact=False)
    assert sight_text(sight(rules, tokens)) == text


def test_layers_are_shown_together() -> None:
    assert [number_ranges(numbers) for numbers in ([0], [0, 1], [0, 1, 2, 5, 7, 8])] == ["0", "0-1", "0-2, 5, 7-8"]
    assert group_alike("abacba", str.upper) == [["a", "a", "a"], ["b", "b"], ["c"]]


@pytest.mark.parametrize("name", ["fp", "int3", "whole"])
def test_json_is_what_the_engine_does(kvedge: Command, tiny, name: str) -> None:
    folder = getattr(tiny, name)
    found, engine = kvedge("inspect", folder, "--json").json, Engine.load(folder)
    assert found["kv_bytes"] == engine.allocated_bytes
    assert found["bits_per_value"] == pytest.approx(16 * engine.allocated_bytes / engine.plan.fp16_bytes)
    assert (found["endless"], found["max_positions"]) == (name != "whole", 256)
    assert (found["eos_ids"], found["eos_texts"]) == ([2], ["<eos>"])
    assert found["position_frame"] == "cache-relative"
    (group,) = found["layers"]
    assert group["layers"] == [0, 1]
    assert (group["heads"], group["kv_heads"], group["head_dim"]) == (4, 2, 16)
    assert (group["window"], group["sinks"], group["recent"], group["page"]) == (
        None if name == "whole" else 48,
        4,
        16,
        16,
    )
    assert (group["k_bits"], group["v_bits"]) == ((None, None) if name == "fp" else (3, 3))
    assert group["bits_per_value"] == (32 if name == "fp" else 5.5)
    layer = engine.manifest.cache.layers[0]
    assert group["packed_page_bytes"] == (None if name == "fp" else layer.packed_layout.page_bytes)
    assert {info["state"] for info in found["files"].values()} == {"whole"}
    assert found["unlisted_files"] == []


def test_after_so_many_tokens(kvedge: Command, tiny) -> None:
    def sees(*arguments: object) -> dict[str, object]:
        return kvedge("inspect", *arguments, "--json").json["layers"][0]["sees"]

    assert sees(tiny.int3) == {"sinks": [0, 3], "packed": [9952, 9971], "exact": [9972, 9999]}
    assert sees(tiny.int3, "--after", 100) == {"sinks": [0, 3], "packed": [52, 67], "exact": [68, 99]}
    assert sees(tiny.fp, "--after", 100) == {"sinks": [0, 3], "packed": None, "exact": [52, 99]}
    assert sees(tiny.whole) == {"sinks": [0, 3], "packed": [4, 227], "exact": [228, 255]}
    check_error(kvedge("inspect", tiny.whole, "--after", 257), "--after", "256 positions", "got 257")
    check_error(kvedge("inspect", tiny.int3, "--after", 0), "--after", "got 0")


def test_text(kvedge: Command, tiny) -> None:
    result = kvedge("inspect", tiny.int3)
    assert (result.code, result.err) == (0, "")
    row = next(line for line in result.out.splitlines() if line.startswith("0-1"))
    assert row.split()[:11] == ["0-1", "4", "2", "16", "int3", "3", "3", "5.5", "48", "4", "16"]
    for words in (
        "after 10,000 tokens, the newest one sees\n  layers 0-1: 0-3 and 9,952-9,999, exact 0-3 and from 9,972 on",
        "streams of any length",
        "end tokens   2 <eos>",
        "5 of 5 are whole",
        "cache-relative",
    ):
        assert words in result.out
    assert "exact" in kvedge("inspect", tiny.fp).out
    assert "at most 256 tokens" in kvedge("inspect", tiny.whole).out


def test_an_artifact_for_an_engine_that_is_built(kvedge: Command, tiny, tmp_path: Path) -> None:
    folder = for_engine(tiny.whole, tmp_path / "trt", EngineKind.TENSORRT, (87, 89))
    out = kvedge("inspect", folder).out
    assert "kernels      SM87, SM89\n" in out
    assert "at most 100 tokens; the model was made for 256 positions" in out
    assert kvedge("inspect", folder, "--json").json["kernel_sms"] == [87, 89]
    assert kvedge("inspect", tiny.whole, "--json").json["kernel_sms"] == []


def test_layers_that_differ(kvedge: Command, copy: Path) -> None:
    """A native sliding layer without rotary embedding and with a softcap beside a full one."""
    old = artifact.read(copy)
    first, second = old.cache.layers
    narrow = replace(second, rope=None, softcap=30.0, rules=replace(second.rules, window=10, sinks=0))
    artifact.write(copy, replace(old, cache=replace(old.cache, layers=(first, narrow))))
    lines = kvedge("inspect", copy).out.splitlines()
    rows = [line.split() for line in lines if line[:2] in ("0 ", "1 ")]
    assert [row[8] for row in rows] == ["48", "10"]
    assert rows[1][5:7] == ["exact", "exact"] and rows[1][-2:] == ["none", "30"]
    assert "  layers 1: 9,990-9,999, all exact" in lines


def test_damaged_files(kvedge: Command, copy: Path) -> None:
    weights = bytearray((copy / "model.onnx.data").read_bytes())
    weights[len(weights) // 2] ^= 1
    (copy / "model.onnx.data").write_bytes(weights)
    (copy / "model.onnx").write_bytes(b"short")
    (copy / "tokenizer_config.json").unlink()
    (copy / "notes.txt").touch()
    states = inspect_artifact(copy, None).files
    assert states == {
        "model.onnx.data": FileState.OTHER_BYTES,
        "model.onnx": FileState.OTHER_SIZE,
        "tokenizer_config.json": FileState.MISSING,
        "tokenizer.json": FileState.WHOLE,
        "chat_template.jinja": FileState.WHOLE,
    }
    result = kvedge("inspect", copy)
    assert result.code == 1
    assert "2 of 5 are whole" in result.out and "model.onnx.data is damaged: other bytes" in result.out
    assert "notes.txt is not part of it" in result.out
    assert kvedge("inspect", copy, "--json").code == 1


def test_what_is_no_artifact(kvedge: Command, tiny, tmp_path: Path, copy: Path) -> None:
    check_error(kvedge("inspect", tmp_path / "none"), "nothing there", "kvedge export")
    check_error(kvedge("inspect", tiny.hf), "manifest.json")
    path = copy / "manifest.json"
    path.write_text(path.read_text().replace('"sinks": 4', '"sinks": 5'))
    check_error(kvedge("inspect", copy), "damaged artifact", "manifest")
