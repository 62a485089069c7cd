"""Other engines that `kvedge bench --compare` runs beside its own artifacts, each with the model in its own form."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from kvedge.targets.errors import require

LLAMA_BENCH_VARIABLE = "KVEDGE_LLAMA_BENCH"
"""Environment variable: where llama.cpp's llama-bench is, if it is not on the PATH."""


def llama_bench() -> str | None:
    """llama.cpp's own benchmark."""
    return os.environ.get(LLAMA_BENCH_VARIABLE) or shutil.which("llama-bench")


@dataclass(frozen=True, kw_only=True)
class Peer:
    """An engine.

    Args:
        name: on the command line.
        model: what it takes for a model.
        installed: whether it can run here; install: how to get it.
        settings: how it is run, for people.
    """

    name: str
    model: str
    installed: Callable[[], bool]
    install: str
    settings: str


def _has(module: str) -> Callable[[], bool]:
    return lambda: importlib.util.find_spec(module) is not None


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            name="llama.cpp",
            model="a .gguf file",
            installed=lambda: llama_bench() is not None,
            install=f"build llama.cpp, and put its llama-bench on the PATH or in {LLAMA_BENCH_VARIABLE}",
            settings="llama-bench, flash attention, KV f16",
        ),
        Peer(
            name="ort-genai",
            model="a folder of onnxruntime_genai.models.builder",
            installed=_has("onnxruntime_genai"),
            install="pip install onnxruntime-genai",
            settings="greedy, as its genai_config.json says",
        ),
        Peer(
            name="transformers",
            model="a Hugging Face folder",
            installed=lambda: _has("transformers")() and _has("torch")(),
            install="pip install torch transformers",
            settings="bfloat16, its own cache",
        ),
    )
}


@dataclass(frozen=True)
class PeerModel:
    """A peer and the model that it runs."""

    peer: Peer
    model: Path

    @property
    def label(self) -> str:
        """For tables."""
        return self.peer.name


@dataclass(frozen=True, kw_only=True)
class PeerChoice:
    """Peers that can run, and those that were asked for and are not installed."""

    models: tuple[PeerModel, ...]
    missing: tuple[Peer, ...]


def parse_peers(options: Iterable[str]) -> PeerChoice:
    """Peers of options such as llama.cpp=model.gguf, several of them with commas between.

    Raises:
        KvedgeError: an unknown peer, one that is named twice, or no model for one that is installed.
    """
    parts = [part.strip().partition("=") for option in options for part in option.split(",") if part.strip()]
    names = [name for name, _, _ in parts]
    for name in names:
        require(name in PEERS, "--compare", expected=f"one of {', '.join(PEERS)}, as NAME=MODEL", got=name)
        require(names.count(name) == 1, "--compare", expected="each of them once", got=f"{name} again")
    installed = {name for name in names if PEERS[name].installed()}
    return PeerChoice(
        models=tuple(_with_model(PEERS[name], model) for name, _, model in parts if name in installed),
        missing=tuple(PEERS[name] for name in names if name not in installed),
    )


def _with_model(peer: Peer, model: str) -> PeerModel:
    name = peer.name
    require(bool(model), f"--compare {name}", expected=f"{name}=MODEL with {peer.model}", got="no model")
    path = Path(model).expanduser()
    require(path.exists(), f"--compare {name}", expected=peer.model, got=f"nothing at {path}")
    return PeerModel(peer, path)
