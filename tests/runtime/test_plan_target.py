"""`kvedge plan --target` and `kvedge targets`: text, JSON, and how they go together with --memory."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from commands import Command, check_error

from kvedge.runtime.bandwidth import token_bytes
from kvedge.targets import manifest as artifact
from kvedge.targets.devices import TARGETS, find_target
from kvedge.targets.kinds import Kind

QWEN3_4B = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
}
PARAMETERS = 151936 * 2560 + 36 * (2 * 2560 * 4096 + 2 * 2560 * 1024 + 3 * 2560 * 9728 + 2 * 2560) + 2560


@pytest.fixture
def qwen(tmp_path: Path) -> Path:
    """A folder with the configuration of a model of 4 billion weights, and nothing else."""
    return model(tmp_path / "qwen3-4b", QWEN3_4B)


def model(folder: Path, config: dict[str, object]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_json_adds_up(kvedge: Command, qwen: Path) -> None:
    options = ("--kv", "int3", "--weights", "int4", "--target", "jetson-orin-nano", "--json")
    plan = kvedge("plan", qwen, *options).json
    found = plan["target"]
    assert found["target"] == "jetson-orin-nano"
    assert found["weights_bytes"] == plan["weights_loaded_bytes"] == round(PARAMETERS * 5 / 8)
    assert found["kv_bytes"] == plan["kv_bytes"]
    parts = ("weights_bytes", "kv_bytes", "scratch_bytes", "library_bytes")
    assert found["running_bytes"] == sum(found[part] for part in parts)
    assert found["available_bytes"] + found["system_bytes"] == 8 * 2**30
    assert found["available_bytes"] == plan["memory_bytes"]
    assert found["fits"] is True and found["running_bytes"] < found["available_bytes"]
    assert found["peak_of"] == "engine build" and found["peak_host_bytes"] == 0
    assert found["peak_bytes"] == 4 * PARAMETERS + 512 * 2**20 + 600 * 2**20
    assert found["peak_fits"] is False and found["build_blocks"] == 3
    empty, full = found["decode"]
    assert (empty["depth"], full["depth"]) == (0, 40959)
    assert empty["token_bytes"] == round(PARAMETERS * 5 / 8) + 36 * 2 * 8 * 128 * 2
    for end in (empty, full):
        assert end["most_tokens_per_second"] == pytest.approx(102e9 / end["token_bytes"])
    assert full["token_bytes"] > 1.3 * empty["token_bytes"]
    assert found["objections"] == [] and "TensorRT" in found["engine_note"]


def test_text(kvedge: Command, qwen: Path) -> None:
    text = kvedge("plan", qwen, "--kv", "int3", "--weights", "int4", "--target", "jetson-orin-nano").out
    assert "on jetson-orin-nano (Jetson Orin Nano, 8 GB; TensorRT, SM87):" in text
    for line in (
        r"  memory +8\.6 GB  8 GiB, shared with the CPU",
        r"  system +1\.4 GB  assumed: .*",
        r"  weights +2\.5 GB  int4",
        r"  running +4\.5 GB  fits: 2\.7 GB of 7\.2 GB left",
        r"  engine build +17\.3 GB  does not fit: 10\.1 GB more than the 7\.2 GB available; "
        r"in 3 blocks of layers about 6\.5 GB, which fits; .*3 to 4.*536\.9 MB.*",
        r"  decode at most +40\.6  tokens/s with an empty cache: 102 GB/s / 2\.5 GB",
        r"  decode at most +27\.0  tokens/s with a full cache \(40,960 tokens\): 102 GB/s / 3\.8 GB",
        r"  note: this version was not run with TensorRT on a GPU yet, .*",
        r"in 7\.2 GB, beside the weights, scratch and libraries: at most 40960 tokens a session",
    ):
        assert re.search(f"^{line}$", text, re.MULTILINE), line
    assert "cannot run there" not in text


def test_weights_are_as_the_engine_keeps_them(kvedge: Command, qwen: Path) -> None:
    """fp16 weights stay so on a GPU, which is also what it takes by default; the CPU unpacks them."""
    board = kvedge("plan", qwen, "--target", "jetson-agx-orin", "--json").json
    assert board["weights_loaded_bytes"] == board["weights_stored_bytes"] == 2 * PARAMETERS
    assert board["total_bytes"] == board["kv_bytes"] + 2 * PARAMETERS
    for options in (("--target", "cpu"), ()):
        cpu = kvedge("plan", qwen, "--weights", "fp16", *options, "--json").json
        assert (cpu["weights_stored_bytes"], cpu["weights_loaded_bytes"]) == (2 * PARAMETERS, 4 * PARAMETERS)
    assert kvedge("plan", qwen, "--target", "cpu", "--json").json["weights_stored_bytes"] == 4 * PARAMETERS


def test_memory_bounds_what_the_board_gives(kvedge: Command, qwen: Path) -> None:
    options = ("--kv", "int4", "--weights", "int4", "--target", "jetson-orin-nano", "--json")
    alone = kvedge("plan", qwen, *options).json
    less, more = (kvedge("plan", qwen, *options, "--memory", memory).json for memory in ("4GB", "64GB"))
    assert less["memory_bytes"] == 4_000_000_000 and more["memory_bytes"] == alone["memory_bytes"]
    assert more == alone
    assert 0 < less["largest_context"] < alone["largest_context"]
    sizes = [
        kvedge("plan", qwen, *options, "--memory", "4GB", "--ctx", context).json["target"]["running_bytes"]
        for context in (less["largest_context"], less["largest_context"] + 1)
    ]
    assert sizes[0] <= 4_000_000_000 < sizes[1]
    assert less["target"]["fits"] is False
    assert "too little beside the weights, scratch" in kvedge("plan", qwen, *options[:-1], "--memory", "2GB").out


def test_a_card_is_known_by_its_owner_only(kvedge: Command, qwen: Path) -> None:
    options = ("--kv", "int3", "--window", 4096, "--target", "rtx")
    text = kvedge("plan", qwen, *options).out
    assert "name what may be used with --memory" in text and "bandwidth with --bandwidth" in text
    assert "2 copies of each pool" in text and not re.search("fits:|does not fit", text)
    plan = kvedge("plan", qwen, *options, "--json").json
    found = plan["target"]
    assert (found["available_bytes"], found["fits"], found["peak_fits"]) == (None, None, None)
    assert found["build_blocks"] is None
    assert [end["most_tokens_per_second"] for end in found["decode"]] == [None, None]
    named = kvedge("plan", qwen, *options, "--memory", "12GB", "--bandwidth", "360GB/s", "--json").json["target"]
    assert named["fits"] is True and named["kv_bytes"] == plan["kv_bytes"]
    assert named["decode"][0]["most_tokens_per_second"] == pytest.approx(360e9 / found["decode"][0]["token_bytes"])
    text = kvedge("plan", qwen, *options, "--memory", "12GB", "--bandwidth", "360GB").out
    assert "a full cache (4,160 tokens): 360 GB/s" in text and "of the host's own memory" in text


def test_an_artifact_on_the_cpu(kvedge: Command, tiny) -> None:
    options = ("--target", "cpu", "--memory", "1GiB", "--bandwidth", "34GB", "--json")
    plan = kvedge("plan", tiny.int3, *options).json
    manifest, found = artifact.read(tiny.int3), plan["target"]
    assert found["weights_bytes"] == plan["weights_loaded_bytes"] == plan["weights_stored_bytes"]
    assert found["peak_of"] == "load" and found["peak_fits"] is found["fits"] is True
    assert found["engine_note"] is None and found["objections"] == []
    for end in found["decode"]:
        assert end["token_bytes"] == token_bytes(manifest, end["depth"]), "as bench counts them"
    without = kvedge("plan", tiny.int3, "--memory", "1GiB", "--json").json
    assert without["target"] is None
    same = set(plan) - {"target", "techniques"}
    assert {key: plan[key] for key in same} == {key: without[key] for key in same}


def test_a_plan_says_what_cannot_run(kvedge: Command, tiny) -> None:
    result = kvedge("plan", tiny.int3, "--target", "jetson-thor")
    assert result.code == 0
    other = "the artifact is for ONNX Runtime (CPU); export it again with --target jetson-thor"
    assert f"  cannot run there: {other}" in result.out
    pages = kvedge("plan", tiny.hf, "--page", 24, "--recent", 48, "--target", "cuda", "--json").json["target"]
    assert len(pages["objections"]) == 1 and "pages of 24 tokens" in pages["objections"][0]


def test_experts_are_read_in_part(kvedge: Command, tmp_path: Path) -> None:
    folder = model(tmp_path / "moe", QWEN3_4B | {"num_experts": 128})
    found = kvedge("plan", folder, "--target", "jetson-thor", "--json").json["target"]
    assert (found["running_bytes"], found["fits"], found["decode"][1]["token_bytes"]) == (None, None, None)
    text = kvedge("plan", folder, "--target", "jetson-thor").out
    assert "which weights a token reads is not known" in text and re.search(r"running +unknown$", text, re.MULTILINE)
    assert "engine build" not in text


@pytest.mark.parametrize("tied", [True, False])
def test_gguf_files_tell_what_is_looked_up(kvedge: Command, tmp_path: Path, tied: bool) -> None:
    """No vocabulary size in the metadata: the embedding's own size says how much of it a token does not read."""
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "qwen2")
    for add, value in (
        (writer.add_block_count, 2),
        (writer.add_embedding_length, 64),
        (writer.add_context_length, 256),
        (writer.add_head_count, 4),
        (writer.add_head_count_kv, 2),
    ):
        add(value)
    for name in ("token_embd.weight", *(() if tied else ("output.weight",))):
        writer.add_tensor(name, np.zeros((512, 64), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = kvedge("plan", path, "--target", "jetson-thor", "--json").json["target"]
    assert found["weights_bytes"] == 2 * 512 * 64 * (1 if tied else 2)
    assert found["decode"][0]["token_bytes"] == 2 * 512 * 64 + 2 * 2 * 2 * 16 * 2


MISTAKES = {
    "target": (("--target", "jetson"), ("--target", "jetson-orin-nano-4gb", "got jetson", "`kvedge targets`")),
    "bandwidth of nothing": (("--bandwidth", "68GB"), ("--bandwidth", "--target")),
    "bandwidth": (("--target", "cpu", "--bandwidth", "fast"), ("--bandwidth", "a size such as", "got fast")),
    "no bandwidth": (("--target", "cpu", "--bandwidth", "0GB"), ("--bandwidth", "more than 0", "got 0GB")),
    "memory": (("--target", "cpu", "--memory", "lots"), ("--memory", "got lots")),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_one_line(case: str, kvedge: Command, tiny) -> None:
    options, words = MISTAKES[case]
    check_error(kvedge("plan", tiny.hf, *options), *words)


def test_targets_lists_the_records(kvedge: Command) -> None:
    found = kvedge("targets", "--json").json
    assert [record["target"] for record in found] == [target.name for target in TARGETS]
    nano, thor, cpu = found[0], found[7], found[-1]
    assert (nano["memory_bytes"], nano["bandwidth_bytes_per_second"], nano["sms"]) == (8 * 2**30, 102 * 10**9, [87])
    assert thor["kinds"] == [kind.value for kind in Kind] and nano["shared"] is True
    assert nano["kinds"] == cpu["kinds"] == [kind.value for kind in Kind if kind is not Kind.FP8]
    assert nano["weights"] == ["fp16", "int4"] and nano["pages"] == [16, 32, 64, 128]
    assert cpu["pages"] is None and cpu["memory_bytes"] is None
    assert [record["target"] for record in found if record["checked"] == "run"] == ["cpu"]
    lines = kvedge("targets").out.splitlines()
    table, below = lines[2 : 2 + len(TARGETS)], lines[3 + len(TARGETS) :]
    for target, line, more in zip(TARGETS, table, below, strict=True):
        assert line.split()[0] == more.split()[0] == target.name
        assert target.engine.label in line and line.endswith(target.engine.checked)
        assert target.device in more and all(text in more for text in target.software)
    assert re.search(r" 8 GiB +102 GB/s +no fp8 +16 32 64 128 +fp16 int4 +compiled$", table[0])
    assert re.search(r" - +- +fp8 from SM89 +16 ", table[TARGETS.index(find_target("cuda"))])
    assert re.search(r" 128 GiB +273 GB/s +all +16 ", table[TARGETS.index(find_target("jetson-thor"))])
