"""Choosing the next token from logits [vocab].

The steps, each on what the one before it left:

    repetition penalty   logits of recent tokens: positive ones divided by it, others multiplied (Keskar et al., 2019)
    temperature          logits divided by it; at 0 the likeliest token is taken and the rest is skipped
    top-k                the k likeliest tokens
    top-p                the likeliest tokens whose share of what is left first reaches p (Holtzman et al., 2020)
    min-p                tokens with at least min-p times the probability of the likeliest (Nguyen et al., 2024)

This is the order of Hugging Face transformers. llama.cpp has the same one, but for the temperature, which it
puts last: only top-p notices. Equally likely tokens are cut in the order of their ids.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvedge.targets.errors import require

DEFAULT_REPEAT_LAST = 64
MAX_REPEAT_LAST = 1024
"""Most tokens that a repetition penalty looks back on: a session keeps no more of them."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are chosen.

    Args:
        temperature: 0 for the most likely token each time; else logits are divided by it.
        top_k: keep that many of the most likely tokens; 0 for all.
        top_p: keep the most likely tokens whose probabilities first reach this sum; 1 for all.
        min_p: keep tokens with this share of the highest probability; 0 for all.
        repeat_penalty: more than 1 makes tokens of the recent text less likely, less than 1 more; 1 changes nothing.
        repeat_last: tokens that count as recent, of the prompt or of the answer.
        seed: makes a sampled answer repeatable; None for a new one each time.

    Raises:
        KvedgeError: a number out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    repeat_last: int = DEFAULT_REPEAT_LAST
    seed: int | None = None

    def __post_init__(self) -> None:
        warm = self.temperature >= 0 and math.isfinite(self.temperature)
        require(warm, "temperature", expected="0 or more", got=self.temperature)
        require(self.top_k >= 0, "top-k", expected="0 or more", got=self.top_k)
        require(0 < self.top_p <= 1, "top-p", expected="more than 0, at most 1", got=self.top_p)
        require(0 <= self.min_p <= 1, "min-p", expected="0 to 1", got=self.min_p)
        fine = self.repeat_penalty > 0 and math.isfinite(self.repeat_penalty)
        require(fine, "repeat penalty", expected="more than 0", got=self.repeat_penalty)
        known = 0 <= self.repeat_last <= MAX_REPEAT_LAST
        require(known, "repeat last", expected=f"0 to {MAX_REPEAT_LAST} tokens", got=self.repeat_last)
        require(self.seed is None or self.seed >= 0, "seed", expected="0 or more", got=self.seed)


class Sampler:
    """Draws tokens; holds the state of the random numbers of one answer.

    Args:
        sampling: how.
        spared: tokens that are never penalized. End tokens belong here: a chat format repeats them in every
            turn, and an answer whose end is made unlikely does not end.
    """

    def __init__(self, sampling: Sampling, spared: Collection[int] = ()) -> None:
        self._sampling = sampling
        self._spared = frozenset(spared)
        self._random = np.random.default_rng(sampling.seed)

    def choose(self, logits: NDArray[np.float32], recent: Collection[int] = ()) -> int:
        """Token id from logits [vocab], which are left as they are; `recent` tokens in order, the newest last."""
        how = self._sampling
        logits = self._penalized(logits, recent)
        if how.temperature == 0:
            return int(logits.argmax())
        scaled = (logits.astype(np.float64) - logits.max()) / how.temperature
        weights = np.exp(_top_k(scaled, how.top_k))
        return self._draw(_min_p(_nucleus(weights / weights.sum(), how.top_p), how.min_p))

    def _penalized(self, logits: NDArray[np.float32], recent: Collection[int]) -> NDArray[np.float32]:
        how = self._sampling
        if how.repeat_penalty == 1 or how.repeat_last == 0:
            return logits
        seen = list(set(list(recent)[-how.repeat_last :]) - self._spared)
        changed = logits.copy()
        changed[seen] = np.where(logits[seen] > 0, logits[seen] / how.repeat_penalty, logits[seen] * how.repeat_penalty)
        return changed

    def _draw(self, probabilities: NDArray[np.float64]) -> int:
        cumulated = probabilities.cumsum()
        at = np.searchsorted(cumulated, self._random.random() * cumulated[-1], side="right")
        return int(min(at, probabilities.nonzero()[0][-1]))


def _top_k(logits: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """Make all but the k likeliest tokens impossible."""
    if k == 0 or k >= len(logits):
        return logits
    smallest = np.partition(logits, -k)[-k]
    kept = np.where(logits > smallest, logits, -np.inf)
    ties = np.flatnonzero(logits == smallest)
    kept[ties[: k - np.count_nonzero(logits > smallest)]] = smallest
    return kept


def _nucleus(probabilities: NDArray[np.float64], top_p: float) -> NDArray[np.float64]:
    """Zero what lies outside the smallest set of tokens that reaches top_p."""
    if top_p >= 1:
        return probabilities
    order = np.argsort(-probabilities, kind="stable")
    before = probabilities[order].cumsum() - probabilities[order]
    kept = np.zeros_like(probabilities)
    inside = order[before < top_p]
    kept[inside] = probabilities[inside]
    return kept


def _min_p(probabilities: NDArray[np.float64], min_p: float) -> NDArray[np.float64]:
    """Zero what is unlikely beside the likeliest token."""
    return np.where(probabilities >= min_p * probabilities.max(), probabilities, 0.0)
