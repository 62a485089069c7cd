"""Run an export against the original model before it is written.

Structure is checked on the unquantized cache, where it must agree to float32 noise; with quantization noise on
top, an error of one position would hide. Then the artifact's own kind is measured on a prompt long enough
that packed pages are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from kvedge.export.source import LoadedModel
from kvedge.export.trial import Trial
from kvedge.targets.errors import require
from kvedge.targets.spec import CacheSpec

EXACT_TOLERANCE = 2e-3
"""max |difference| / std(logits) of the unquantized cache: float32 noise, far below what a wrong position does."""

HALF_TOLERANCE = 5e-2
"""The same with weights rounded to float16."""

_STRUCTURE_TOKENS = 48
_COLLAPSE_KL = 2.0


@dataclass(frozen=True, kw_only=True)
class Report:
    """How an artifact compares with its original.

    Args:
        exact_error: max |difference| / std(logits), unquantized.
        kl: mean KL divergence in nats from the original, with the artifact's kind, on random tokens.
        top1: share of positions with the same most likely token.
        packed_pages_read: packed pages that this measurement read.
    """

    exact_error: float
    kl: float
    top1: float
    packed_pages_read: int


def verify_structure(loaded: LoadedModel, graph: Path, cache: CacheSpec, tolerance: float) -> float:
    """Error of the unquantized graph on random tokens, fed as a prompt, a chunk and a single token.

    Raises:
        KvedgeError: the graph disagrees with the original.
    """
    ids = _random_ids(cache, loaded, min(_STRUCTURE_TOKENS, _comparable_tokens(cache)))
    want = _original_logits(loaded, ids)
    trial = Trial(graph, cache, context=len(ids), chunk=len(ids))
    cuts = sorted({0, len(ids) // 2, max(0, len(ids) - 1), len(ids)})
    got = np.concatenate([trial.step(ids[a:b]) for a, b in pairwise(cuts)])
    error = float(np.abs(got - want).max() / want.std())
    require(
        error <= tolerance,
        f"the exported graph disagrees with {loaded.name}",
        expected=f"max |difference| / std of at most {tolerance}",
        got=f"{error:.2g}",
        fix="nothing was written; report this model, or look closer with --no-verify",
    )
    return error


def measure_kind(loaded: LoadedModel, graph: Path, cache: CacheSpec, exact_error: float) -> Report:
    """Compare the artifact's own kind with the original.

    Raises:
        KvedgeError: the quantized cache has collapsed.
    """
    ids = _random_ids(cache, loaded, min(_packing_tokens(cache), _comparable_tokens(cache)))
    want = _original_logits(loaded, ids)
    trial = Trial(graph, cache, context=len(ids), chunk=len(ids))
    got = trial.step(ids)
    kl, top1 = _compare(want, got)
    require(
        kl <= _COLLAPSE_KL,
        f"the quantized cache ruins {loaded.name}",
        expected=f"a KL divergence below {_COLLAPSE_KL} nats",
        got=f"{kl:.2f}",
        fix="choose more bits with --kv",
    )
    return Report(exact_error=exact_error, kl=kl, top1=top1, packed_pages_read=trial.packed_pages_read)


def _comparable_tokens(cache: CacheSpec) -> int:
    """Tokens after which the original, which forgets nothing but by its own windows, sees more than we do.

    A native sliding layer agrees with the original at any length; a user's window only while it is not full.
    """
    return min(rules.span(cache.max_positions) + rules.sinks for rules in cache.groups)


def _packing_tokens(cache: CacheSpec) -> int:
    """Tokens after which at least three pages have been read packed."""
    return max(rules.sinks + rules.recent + 4 * rules.page for rules in cache.groups)


def _random_ids(cache: CacheSpec, loaded: LoadedModel, count: int) -> list[int]:
    vocab = loaded.config.get_text_config().vocab_size
    return [int(i) for i in np.random.default_rng(0).integers(0, vocab, max(1, count))]


def _original_logits(loaded: LoadedModel, ids: list[int]) -> NDArray[np.float32]:
    with torch.no_grad():
        logits = loaded.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    return np.asarray(logits.float().numpy())


def _compare(want: NDArray[np.float32], got: NDArray[np.float32]) -> tuple[float, float]:
    """Mean KL divergence and top-1 agreement."""
    p, q = (_log_softmax(x.astype(np.float64)) for x in (want, got))
    kl = (np.exp(p) * (p - q)).sum(-1).mean()
    return float(kl), float((want.argmax(-1) == got.argmax(-1)).mean())


def _log_softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = x - x.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))
