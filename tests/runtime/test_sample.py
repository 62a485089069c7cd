"""Choosing tokens: greedy, temperature, nucleus, seeds."""

from __future__ import annotations

import re

import numpy as np
import pytest

from kvedge.runtime.sample import Sampler, Sampling
from kvedge.targets.errors import KvedgeError

PROBABILITIES = np.array([0.05, 0.5, 0.15, 0.3])
LOGITS = (np.log(PROBABILITIES) + 3.0).astype(np.float32)
DRAWS = 5_000
TOLERANCE = 4 * 0.5 / DRAWS**0.5
"""Four standard deviations of a frequency."""


def draw(sampling: Sampling, logits: np.ndarray = LOGITS, count: int = 100) -> list[int]:
    sampler = Sampler(sampling)
    return [sampler.choose(logits) for _ in range(count)]


def check_frequencies(sampling: Sampling, want: np.ndarray, logits: np.ndarray = LOGITS) -> None:
    tokens = draw(sampling, logits, DRAWS)
    got = np.bincount(tokens, minlength=len(want)) / DRAWS
    np.testing.assert_allclose(got, want / want.sum(), atol=TOLERANCE)
    assert set(tokens) == set(np.flatnonzero(want)), "a token that should never come, or one that never came"


@pytest.mark.parametrize(
    ("logits", "token"),
    [([1, 5, 2], 1), ([-3, -1, -2], 1), ([4, 0, 4], 0), ([7], 0), ([-np.inf, -9, -np.inf], 1)],
)
def test_greedy_takes_the_most_likely_token(logits: list[float], token: int) -> None:
    array = np.array(logits, np.float32)
    assert set(draw(Sampling(), array)) == {token}
    assert set(draw(Sampling(temperature=0, top_p=0.5, seed=1), array)) == {token}
    assert type(Sampler(Sampling()).choose(array)) is int


@pytest.mark.parametrize("temperature", [1e-6, 1e-2])
def test_little_heat_is_greedy(temperature: float) -> None:
    assert set(draw(Sampling(temperature=temperature, seed=1))) == {1}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperature_sharpens_and_flattens(temperature: float) -> None:
    check_frequencies(Sampling(temperature=temperature, seed=1), PROBABILITIES ** (1 / temperature))


def test_much_heat_is_uniform() -> None:
    check_frequencies(Sampling(temperature=1e9, seed=1), np.ones(4))


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [
        (1e-12, [1]),
        (0.49, [1]),
        (0.51, [1, 3]),
        (0.79, [1, 3]),
        (0.81, [1, 3, 2]),
        (0.96, [1, 3, 2, 0]),
        (1.0, [1, 3, 2, 0]),
    ],
)
def test_the_nucleus_is_the_smallest_set_that_reaches_top_p(top_p: float, kept: list[int]) -> None:
    want = np.zeros(4)
    want[kept] = PROBABILITIES[kept]
    check_frequencies(Sampling(temperature=1, top_p=top_p, seed=2), want)


def test_the_nucleus_is_taken_of_the_heated_probabilities() -> None:
    """At temperature 2 the most likely token has 0.386 of the whole, so that 0.45 needs another one."""
    want = PROBABILITIES**0.5 * [0, 1, 0, 1]
    check_frequencies(Sampling(temperature=2, top_p=0.45, seed=3), want)


def test_equal_tokens_are_cut_in_order() -> None:
    check_frequencies(Sampling(temperature=1, top_p=0.5, seed=4), np.array([1, 1, 0, 0]), np.zeros(4, np.float32))


@pytest.mark.parametrize("top_p", [0.999, 1.0])
def test_impossible_tokens_never_come(top_p: float) -> None:
    logits = np.array([-np.inf, 0, -np.inf, 0, -np.inf], np.float32)
    check_frequencies(Sampling(temperature=1, top_p=top_p, seed=5), np.array([0, 1, 0, 1, 0]), logits)


@pytest.mark.parametrize("offset", [-1e4, 1e4])
def test_large_logits_do_not_overflow(offset: float) -> None:
    want = np.exp([0.0, 1.0])
    check_frequencies(Sampling(temperature=1, seed=6), want, np.array([offset, offset + 1], np.float32))


def test_logits_are_left_as_they_are() -> None:
    logits = LOGITS.copy()
    draw(Sampling(temperature=0.7, top_p=0.6, seed=1), logits, 3)
    np.testing.assert_array_equal(logits, LOGITS)


def test_a_seed_makes_an_answer_repeatable() -> None:
    flat = np.zeros(64, np.float32)
    runs = [draw(Sampling(temperature=1, seed=seed), flat) for seed in (1, 1, 2, None, None)]
    assert runs[0] == runs[1]
    assert len({tuple(run) for run in runs}) == 4, "other seeds, and none, give other answers"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -0.1}, "temperature; expected 0 or more; got -0.1"),
        ({"temperature": float("nan")}, "temperature; expected 0 or more; got nan"),
        ({"top_p": 0.0}, "top-p; expected more than 0, at most 1; got 0.0"),
        ({"top_p": 1.01}, "top-p; expected more than 0, at most 1; got 1.01"),
        ({"top_p": -1.0}, "top-p; expected more than 0, at most 1; got -1.0"),
        ({"top_p": float("nan")}, "top-p; expected more than 0, at most 1; got nan"),
        ({"seed": -1}, "seed; expected 0 or more; got -1"),
    ],
    ids=str,
)
def test_numbers_out_of_range_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(KvedgeError, match=f"^{re.escape(message)}"):
        Sampling(**settings)  # type: ignore[arg-type]
