"""Choosing the next token from logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvedge.targets.errors import require


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are chosen.

    Args:
        temperature: 0 for the most likely token each time; else logits are divided by it.
        top_p: keep the most likely tokens whose probabilities first reach this sum (nucleus sampling,
            Holtzman et al., 2020); 1 for all.
        seed: makes a sampled answer repeatable; None for a new one each time.

    Raises:
        KvedgeError: a number out of range.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        require(self.temperature >= 0, "temperature", expected="0 or more", got=self.temperature)
        require(self.seed is None or self.seed >= 0, "seed", expected="0 or more", got=self.seed)
        require(0 < self.top_p <= 1, "top-p", expected="more than 0, at most 1", got=self.top_p)


class Sampler:
    """Draws tokens; holds the state of the random numbers of one answer."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._random = np.random.default_rng(sampling.seed)

    def choose(self, logits: NDArray[np.float32]) -> int:
        """Token id from logits [vocab]."""
        if self._sampling.temperature == 0:
            return int(logits.argmax())
        scaled = logits.astype(np.float64) / self._sampling.temperature
        weights = np.exp(scaled - scaled.max())
        return self._draw(_nucleus(weights / weights.sum(), self._sampling.top_p))

    def _draw(self, probabilities: NDArray[np.float64]) -> int:
        cumulated = probabilities.cumsum()
        at = np.searchsorted(cumulated, self._random.random() * cumulated[-1], side="right")
        return int(min(at, probabilities.nonzero()[0][-1]))


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
