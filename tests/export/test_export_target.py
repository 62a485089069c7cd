"""`kvedge export --target`: what a target cannot run is refused before any work, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import Command, check_error
from shared_trace import share_traces

from kvedge.targets import manifest as artifact

RULES = ("--window", 48, "--sinks", 4, "--recent", 16, "--page", 16)

REFUSED: dict[str, tuple[tuple[object, ...], tuple[str, ...]]] = {
    "kind": (
        ("--target", "jetson-orin-nano", "--kv", "int4,fp8"),
        ("jetson-orin-nano cannot read KV kind fp8", "expected a chip that has fp8", "got SM87", "choose another --kv"),
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
    "no size": (("--target", "rtx", "--context", 0), ("--context", "expected at least 1", "got 0")),
    "sessions of RTX": (("--target", "rtx", "--sessions", 2), ("--sessions", "expected 1 for", "got 2")),
    "kind to come": (("--target", "jetson-thor", "--kv", "fp8"), ("no kernel yet", "got fp8")),
    "kind of a CPU": (("--target", "cpu", "--kv", "fp8"), ("cpu cannot read KV kind fp8", "got no GPU")),
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
