"""`kvedge bench --compare`: real peers where they are installed, and what is said where they are not."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from commands import Command, check_error

from kvedge.runtime import peers
from kvedge.runtime.bench import PeerComparison
from kvedge.runtime.command_bench import _peer_text
from kvedge.runtime.peers import PEERS, parse_peers
from kvedge.targets.errors import KvedgeError


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv(peers.LLAMA_BENCH_VARIABLE, raising=False)


@pytest.mark.parametrize("name", PEERS)
def test_a_missing_peer_is_named_with_its_install_line(name: str, nothing_installed: None, tmp_path: Path) -> None:
    for option in (name, f"{name}={tmp_path}"):
        found = parse_peers([option])
        assert found.models == () and [peer.install for peer in found.missing] == [PEERS[name].install]


def test_the_others_run_beside_a_missing_one(kvedge: Command, tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv(peers.LLAMA_BENCH_VARIABLE, raising=False)
    options = ("--depth", 0, "--gen", 16, "--runs", 1, "--compare", f"llama.cpp,transformers={tiny.hf}")
    result = kvedge("bench", tiny.int3, *options, "--json")
    assert "note: llama.cpp is not installed and not compared; build llama.cpp" in result.err
    assert result.json["missing_peers"] == [{"peer": "llama.cpp", "install": PEERS["llama.cpp"].install}]
    (peer,) = result.json["peers"]
    assert peer["peer"] == "transformers" and re.fullmatch(r"transformers \S+, torch \S+", peer["version"])


def test_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(peers.LLAMA_BENCH_VARIABLE, "/somewhere/llama-bench")
    (tmp_path / "m.gguf").touch()
    found = parse_peers([f"llama.cpp={tmp_path}/m.gguf", f" transformers={tmp_path}"])
    assert [(one.label, one.model.name) for one in found.models] == [
        ("llama.cpp", "m.gguf"),
        ("transformers", tmp_path.name),
    ]
    for option, words in (
        ("vllm=x", "one of llama.cpp, ort-genai, transformers, as NAME=MODEL; got vllm"),
        (f"transformers={tmp_path},transformers={tmp_path}", "each of them once; got transformers again"),
        ("llama.cpp", "llama.cpp=MODEL with a .gguf file; got no model"),
        ("llama.cpp=none.gguf", "a .gguf file; got nothing at none.gguf"),
    ):
        with pytest.raises(KvedgeError, match=words):
            parse_peers([option])


def test_slower_is_called_slower() -> None:
    facts = {"folder": Path("a"), "peer": "llama.cpp", "depth": 512}
    fast = _peer_text(PeerComparison(**facts, prefill_ratio=2.0, decode_ratio=1.5))
    assert fast == "a decodes 1.50 times as fast as llama.cpp at depth 512, and reads the prompt 2.00 times as fast"
    level = _peer_text(PeerComparison(**facts, prefill_ratio=None, decode_ratio=0.996))
    assert level == "a decodes 1.00 times as fast as llama.cpp at depth 512"
    assert _peer_text(PeerComparison(**facts, prefill_ratio=0.9, decode_ratio=1.5)).endswith(": slower here")
    assert _peer_text(PeerComparison(**facts, prefill_ratio=None, decode_ratio=0.5)).endswith(": slower here")


def test_transformers_runs_beside(kvedge: Command, tiny) -> None:
    options = ("--depth", 0, "--depth", 60, "--gen", 16, "--runs", 2, "--compare", f"transformers={tiny.hf}")
    result = kvedge("bench", tiny.int3, *options, "--json").json
    (peer,) = result["peers"]
    assert (peer["peer"], peer["model"]) == ("transformers", str(tiny.hf))
    assert [depth["depth"] for depth in peer["depths"]] == [0, 60]
    assert peer["depths"][0]["prefill"] is None and peer["depths"][1]["prefill"]["median"] > 0
    assert all(depth["decode"]["median"] > 0 and depth["resident_peak"] > 1 << 26 for depth in peer["depths"])
    ratios = result["peer_comparisons"]
    assert [(ratio["peer"], ratio["depth"]) for ratio in ratios] == [("transformers", 0), ("transformers", 60)]
    assert ratios[1]["prefill_ratio"] > 0 and all(ratio["decode_ratio"] > 0 for ratio in ratios)


def test_what_a_peer_says_is_one_line(kvedge: Command, tiny, tmp_path: Path) -> None:
    result = kvedge("bench", tiny.int3, "--gen", 16, "--depth", 0, "--compare", f"transformers={tmp_path}")
    check_error(result, "transformers: ")
