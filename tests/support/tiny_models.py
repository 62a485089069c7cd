"""Tiny random Llama models, exported in memory, and the original with our reading rule as its attention.

Weights are scaled up after initialization: with default ones attention is nearly uniform, and an error of one
position hides below quantization noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from kvedge.export import artifact
from kvedge.export.attention import using_attention
from kvedge.export.fuse import fuse_for_ort
from kvedge.export.settings import CacheSettings, make_spec
from kvedge.export.source import LoadedModel
from kvedge.export.stamp import stamp
from kvedge.export.trace import TracedModel
from kvedge.runtime.engine import Engine, Row

ORACLE = "oracle"
VOCAB = 512


def tiny_llama(*, heads: int = 4, kv_heads: int = 2, max_positions: int = 128) -> LoadedModel:
    """A seeded two-layer model with sharp attention."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=16 * heads,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=max_positions,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).eval()
    scales = {"q_proj": 6.0, "k_proj": 6.0, "v_proj": 4.0, "o_proj": 4.0}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight *= scales.get(name.split(".")[-2], 1.0)
    return LoadedModel(model=model, tokenizer=None, name="tiny", config=config)


def write_artifact(loaded: LoadedModel, traced: TracedModel, settings: CacheSettings, folder: Path) -> Path:
    """An artifact folder from a model traced before, fused as an export does it."""
    fuse_for_ort(traced)
    positions = loaded.config.max_position_embeddings
    cache = make_spec(traced, settings, positions)
    folder.mkdir()
    artifact.write_graph(stamp(traced, cache), folder)
    artifact.write_rest(folder, loaded, artifact.Facts(kind=settings.kind, cache=cache, weights="fp32"))
    return folder


def stream_logits(engine: Engine, ids: np.ndarray, cuts: list[int]) -> tuple[np.ndarray, int]:
    """Logits [len(ids), vocab] of a stream fed in chunks that end at `cuts`, and the packed pages read."""
    sequence, out, pages, first = engine.sequence(), [], 0, 0
    for last in cuts:
        result = engine.step([Row(sequence, ids[first:last].tolist())], range(last - first))
        out.append(result.logits[0].copy())
        pages += result.packed_pages_read
        first = last
    sequence.clear()
    return np.concatenate(out), pages


def original_logits(loaded: LoadedModel, ids: np.ndarray, sinks: int, window: int | None) -> np.ndarray:
    """Logits [len(ids), vocab] of the original in float64, its attention reading sinks and window as P1 and P5 say."""
    model = loaded.model.double()
    try:
        with _oracle(model, sinks, window), torch.no_grad():
            return model(input_ids=torch.from_numpy(ids)[None], use_cache=False).logits[0].numpy()
    finally:
        loaded.model.float()


@contextmanager
def _oracle(model: torch.nn.Module, sinks: int, window: int | None) -> Iterator[None]:
    inv_freq = model.model.rotary_emb.inv_freq.double()

    def attend(module, query, key, value, mask, scaling, **_):  # type: ignore[no-untyped-def]
        group = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        order = torch.arange(query.shape[2])
        oldest = torch.zeros_like(order) if window is None else (order - window + 1).clamp_min(0)
        oldest = oldest.clamp_min(sinks)
        shift = (oldest - sinks).clamp_min(0)  # oldest visible - last sink - 1
        plain = query @ key.transpose(-1, -2)
        turned = _rotate(query, -shift[:, None] * inv_freq) @ key.transpose(-1, -2)
        is_sink = order[None, :] < sinks
        seen = (order[None, :] <= order[:, None]) & (is_sink | (order[None, :] >= oldest[:, None]))
        scores = torch.where(is_sink, turned, plain) * scaling
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        return (weights @ value).transpose(1, 2), None

    ALL_ATTENTION_FUNCTIONS.register(ORACLE, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(ORACLE, lambda **_: None)
    with using_attention(model, ORACLE):
        yield


def _rotate(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Rotate pairs (i, i + D/2) of x [..., N, D] by angle [N, D/2]."""
    a, b = x.chunk(2, -1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
