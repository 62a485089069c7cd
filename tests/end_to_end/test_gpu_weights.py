"""SmolLM2's graph for GPUs with the integers of its file; ONNX Runtime's CPU provider and op stand in for a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gpu_graphs import BatchTrial, gpu_model, keep_half_rounding, load, stand_in_cpu_op

from kvedge.export import artifact
from kvedge.export.fuse import fuse_for_ort
from kvedge.export.quantize import quantize_model
from kvedge.export.settings import CacheSettings, make_spec
from kvedge.export.source import load_model
from kvedge.export.stamp import stamp
from kvedge.export.trace import TracedModel, trace
from kvedge.plugins.reference.linear import Blocks
from kvedge.targets.kinds import Kind
from kvedge.targets.settings import WeightType
from kvedge.targets.spec import CacheSpec

TOKENS, CHUNK, SKIP = 768, 128, 256
MEGABYTE = 10**6


def write(traced: TracedModel, blocks: dict[str, Blocks], positions: int, folder: Path) -> CacheSpec:
    copy = TracedModel(traced.model.clone(), traced.ropes, traced.layer_rope, traced.layers, traced.key_biases)
    fuse_for_ort(copy, blocks)
    cache = make_spec(copy, CacheSettings(kind=Kind.INT4, window=None, sinks=64), positions)
    folder.mkdir()
    artifact.write_graph(stamp(copy, cache), folder)
    return cache


def log_probabilities(trial: BatchTrial, ids: list[int]) -> np.ndarray:
    """float64 [tokens, vocab]."""
    logits = np.concatenate([trial.step([ids[at : at + CHUNK]])[0] for at in range(0, TOKENS, CHUNK)])
    assert trial.pages_read > 0
    shifted = (logits - logits.max(-1, keepdims=True)).astype(np.float64)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def divergence(p: np.ndarray, q: np.ndarray) -> float:
    """Mean KL divergence in nats."""
    return float((np.exp(p) * (p - q)).sum(-1)[SKIP:].mean())


@pytest.mark.slow
def test_integers_of_the_file_are_kept(smollm2_gguf: Path, prose: Path, tmp_path: Path) -> None:
    """Against the file's own values in float32, and against the CPU's artifact, whose activations have 8 bits.

    Measured: 0.00004 and 0.0034 nats.
    """
    loaded = load_model(str(smollm2_gguf), trust_remote_code=False)
    quantized = quantize_model(loaded.model, WeightType.INT4)
    assert quantized is not None and loaded.tokenizer is not None
    traced = trace(loaded)
    positions = loaded.config.max_position_embeddings
    cache = write(traced, quantized.blocks, positions, tmp_path / "int4")
    write(traced, {}, positions, tmp_path / "floats")
    ids = loaded.tokenizer.encode(prose.read_text()[: 8 * TOKENS])[:TOKENS]
    model = gpu_model(tmp_path / "int4", cache)
    stored = sum(value.const_value.nbytes for value in model.graph.initializers.values())
    assert stored < 135 * MEGABYTE
    models = {
        "floats": (load(tmp_path / "floats"), "floats"),
        "cpu": (load(tmp_path / "int4"), "int4"),
        "gpu": (keep_half_rounding(stand_in_cpu_op(model)), "int4"),
    }
    floats, cpu, gpu = (
        log_probabilities(BatchTrial(model, tmp_path / folder, cache, batch=1, context=TOKENS), ids)
        for model, folder in models.values()
    )
    assert divergence(floats, gpu) <= 0.0002
    assert divergence(cpu, gpu) <= 0.006
