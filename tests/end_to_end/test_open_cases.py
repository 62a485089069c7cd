"""Cases that users of other tools ran into: long prompts, biased keys, odd head sizes, saved sessions.

Small random models with sharp attention; every case reads packed pages and says so.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_families import VOCAB, oracle_logits, tiny_model
from tiny_models import stream_logits, write_artifact

from kvedge.export.source import LoadedModel
from kvedge.export.trace import trace
from kvedge.runtime.engine import Engine
from kvedge.targets.kinds import Kind
from kvedge.targets.plan import plan_memory
from kvedge.targets.settings import CacheSettings

BASE: dict[str, object] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "max_position_embeddings": 4096,
}
P3_TOLERANCE = 1e-4


def tokens(length: int) -> np.ndarray:
    return np.random.default_rng(1).integers(3, VOCAB, length)


def settings(kind: Kind, window: int | None = None) -> CacheSettings:
    return CacheSettings(kind=kind, window=window, sinks=4, recent=16, page=16)


def export(loaded: LoadedModel, chosen: CacheSettings, folder: Path) -> Path:
    traced = trace(loaded, max_positions=loaded.config.max_position_embeddings)
    return write_artifact(loaded, traced, chosen, folder)


def cuts_of(chunk: int, length: int) -> list[int]:
    return [*range(chunk, length, chunk), length]


def error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.abs(got - want).max() / want.std())


def relative_rms(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.sqrt(np.mean((got - want) ** 2)) / want.std())


# ---- A prompt longer than the window, in any pieces.

PIECES = (300, 1, 7, 63, 64, 65, 129)


@pytest.mark.parametrize(("kind", "tolerance"), [(Kind.FP, 2e-5), (Kind.INT3, 2e-3)], ids=["fp", "int3"])
def test_a_prompt_longer_than_a_native_window(kind: Kind, tolerance: float, tmp_path: Path) -> None:
    """A piece larger than a step is split; the window belongs to the model, so there are no sinks."""
    loaded = tiny_model("mistral", **BASE, sliding_window=64)
    folder, ids = export(loaded, settings(kind, 64), tmp_path / "out"), tokens(300)
    want, said = None, None
    for piece in PIECES:
        engine = Engine.load(folder, chunk=96)
        session, pages = engine.session(), 0
        for first in range(0, 299, piece):
            pages += session.feed(ids[first : min(first + piece, 299)].tolist()).packed_pages_read
        assert (
            engine.allocated_bytes
            == engine.plan.kv_bytes
            == plan_memory(engine.manifest.cache, context=1, chunk=96).kv_bytes
        )
        assert (pages > 0) == (kind is not Kind.FP)
        answer = session.generate([int(ids[299])], max_tokens=40)
        answer.text()
        session.close()
        logits = stream_logits(engine, np.array([*ids, *answer.token_ids]), cuts_of(min(piece, 96), 340))[0]
        want, said = (logits, answer.token_ids) if want is None else (want, said)
        assert error(logits, want) <= tolerance
        assert answer.token_ids == said
    if kind is Kind.FP:
        whole = np.array([*ids, *said])
        with torch.no_grad():
            single = loaded.model(input_ids=torch.from_numpy(whole)[None], use_cache=False).logits[0].numpy()
        original = oracle_logits(loaded, engine.manifest.cache, whole)
        # The original in float32 is itself 4e-5 (AMD) to 6e-5 (Intel) away from float64 here, this 1.3e-4 (AMD).
        assert error(want, original) <= max(P3_TOLERANCE, 5 * error(single, original))
        assert original[299:339].argmax(-1).tolist() == said


# ---- A large bias on the keys.


@cache
def biased(norm: float) -> LoadedModel:
    """Six rotary pairs of each head in the first and the last layer."""
    loaded = tiny_model("qwen2", **BASE, tie_word_embeddings=False)
    rng = np.random.default_rng(0)
    with torch.no_grad():
        for layer in loaded.model.model.layers:
            attention = layer.self_attn
            attention.q_proj.weight *= 0.5  # three times the initial ones, not six
            attention.k_proj.weight *= 0.5
            attention.k_proj.bias.zero_()
        for layer in (loaded.model.model.layers[0], loaded.model.model.layers[-1]):
            for head in layer.self_attn.k_proj.bias.view(2, 64):
                pairs = rng.choice(32, 6, replace=False)
                values = torch.from_numpy(rng.normal(size=(2, 6)).astype(np.float32))
                head[pairs], head[pairs + 32] = norm * values / values.norm()
    return loaded


def bias_error(folder: Path, norm: float = 200.0) -> float:
    """What three bits cost the model with a bias of this norm."""
    loaded, ids = biased(norm), tokens(200)
    engine = Engine.load(export(loaded, settings(Kind.INT3), folder), context=256)
    got, pages = stream_logits(engine, ids, cuts_of(64, 200))
    assert pages > 0
    return relative_rms(got[100:], oracle_logits(loaded, engine.manifest.cache, ids)[100:])


def test_a_large_key_bias_costs_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pairs that are left to the page mean cost nothing; all of it left in the codes costs nearly everything.

    The biased model is harder to quantize by itself: its attention is sharper, so fewer errors average out. It costs
    2.5 times what the model without a bias does, and would with every pair taken out, too.
    """
    zero, some = bias_error(tmp_path / "zero", 0.0), bias_error(tmp_path / "some")
    monkeypatch.setattr("kvedge.plugins.key_bias.KEPT_IN_CODES", 0.0)
    none = bias_error(tmp_path / "none")
    monkeypatch.setattr("kvedge.plugins.key_bias.KEPT_IN_CODES", float("inf"))
    everything = bias_error(tmp_path / "everything")
    assert some < 1.05 * none
    assert some < 0.36, "subtracting the bias in front of the rotary embedding gives 0.36"
    assert everything > 2 * some
    assert some < 3 * zero and everything > 5 * zero


# ---- Head sizes that are no powers of two, and rotary factors that depend on the length.

PHI3 = {
    "hidden_size": 384,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "original_max_position_embeddings": 64,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "short_factor": [1.0] * 48,
        "long_factor": [4.0] * 48,
    },
}
PHI = {"hidden_size": 320, "num_key_value_heads": 4, "partial_rotary_factor": 0.5, "max_position_embeddings": 256}
ODD_HEADS = {"phi3": (PHI3, 96), "phi": (PHI, 80)}


@cache
def odd_heads(name: str) -> LoadedModel:
    return tiny_model(name, **{**BASE, **ODD_HEADS[name][0], "num_hidden_layers": 2})


@pytest.mark.parametrize("name", ODD_HEADS)
def test_odd_head_sizes_are_not_padded(name: str, tmp_path: Path) -> None:
    engine = Engine.load(export(odd_heads(name), settings(Kind.INT3), tmp_path / "out"))
    head_dim = ODD_HEADS[name][1]
    for layer in engine.manifest.cache.layers:
        assert layer.head_dim == head_dim
        codes = 6 * 16 * head_dim / 8  # three bits each of K and V
        words = layer.packed_layout
        assert codes <= 4 * words.k_scales <= 1.25 * codes  # a page of 16 rounds up to whole words
        assert 4 * (words.head_words - words.k_scales) == 2 * (16 + 16 + head_dim)
    _, pages = stream_logits(engine, tokens(150), cuts_of(64, 150))
    assert pages > 0


@pytest.mark.parametrize("name", ODD_HEADS)
def test_odd_head_sizes_are_the_original(name: str, tmp_path: Path) -> None:
    """longrope takes one set of factors, that of the exported length: as the original on the whole text."""
    loaded, ids = odd_heads(name), tokens(150)
    engine = Engine.load(export(loaded, settings(Kind.FP), tmp_path / "out"))
    with torch.no_grad():
        want = loaded.model(input_ids=torch.from_numpy(ids)[None], use_cache=False).logits[0].numpy()
    for chunk in (1, 64, 65):
        got, _ = stream_logits(engine, ids, cuts_of(chunk, 150))
        assert error(got, want) <= P3_TOLERANCE


# ---- A session that is saved, and goes on in another process.

GO_ON = """
import sys, hashlib
import numpy as np
from kvedge.runtime.engine import Engine
engine = Engine.load(sys.argv[1])
session = engine.restore(sys.argv[2])
step, logits = engine.step, hashlib.sha256()
def spy(*arguments):
    result = step(*arguments)
    logits.update(result.logits.tobytes())
    return result
engine.step = spy
answer = session.generate([7], max_tokens=40)
answer.text()
print(logits.hexdigest(), *answer.token_ids)
"""


def test_another_process_goes_on_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = tiny_model("llama", **BASE)
    folder = export(loaded, settings(Kind.INT3, 48), tmp_path / "out")
    engine = Engine.load(folder)
    session, path = engine.session(), tmp_path / "talk.kv"
    assert session.feed(tokens(170).tolist()).packed_pages_read > 0
    session.save(path)
    assert path.stat().st_size < 1.1 * engine.allocated_bytes
    digest, step = hashlib.sha256(), engine.step

    def spy(*arguments):  # type: ignore[no-untyped-def]
        result = step(*arguments)
        digest.update(result.logits.tobytes())
        return result

    monkeypatch.setattr(engine, "step", spy)
    answer = session.generate([7], max_tokens=40)
    answer.text()
    command = [sys.executable, "-c", GO_ON, str(folder), str(path)]
    there = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert there == [digest.hexdigest(), *map(str, answer.token_ids)]
