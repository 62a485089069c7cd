"""Filters of sampling, one by one and together; and stop strings, cut in every way."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from kvedge.runtime.sample import MAX_REPEAT_LAST, Sampler, Sampling
from kvedge.runtime.stop import StopStrings
from kvedge.targets.errors import KvedgeError

PROBABILITIES = np.array([0.05, 0.5, 0.15, 0.3])
LOGITS = np.log(PROBABILITIES).astype(np.float32)
DRAWS = 5_000
TOLERANCE = 4 * 0.5 / DRAWS**0.5
"""Four standard deviations of a frequency."""


def frequencies(sampling: Sampling, logits: np.ndarray = LOGITS, recent: tuple[int, ...] = ()) -> np.ndarray:
    sampler = Sampler(sampling)
    drawn = [sampler.choose(logits, recent) for _ in range(DRAWS)]
    return np.bincount(drawn, minlength=len(logits)) / DRAWS


def check(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(got, want / want.sum(), atol=TOLERANCE)
    assert set(np.flatnonzero(got)) == set(np.flatnonzero(want)), "a token that should never come, or one missing"


@pytest.mark.parametrize(
    ("k", "kept"), [(1, [1]), (2, [1, 3]), (3, [1, 3, 2]), (4, range(4)), (9, range(4)), (0, range(4))]
)
def test_top_k_keeps_the_likeliest(k: int, kept: list[int]) -> None:
    want = np.zeros(4)
    want[list(kept)] = PROBABILITIES[list(kept)]
    check(frequencies(Sampling(temperature=1, top_k=k, seed=1)), want)


def test_top_k_cuts_equal_tokens_in_order() -> None:
    logits = np.array([0, 1, 0, 0, 1], np.float32)
    check(frequencies(Sampling(temperature=1, top_k=3, seed=2), logits), np.exp(logits) * [1, 1, 0, 0, 1])


@pytest.mark.parametrize(
    ("min_p", "kept"),
    [(0.0, [0, 1, 2, 3]), (0.09, [0, 1, 2, 3]), (0.11, [1, 2, 3]), (0.31, [1, 3]), (0.61, [1]), (1.0, [1])],
)
def test_min_p_keeps_what_is_likely_beside_the_likeliest(min_p: float, kept: list[int]) -> None:
    want = np.zeros(4)
    want[kept] = PROBABILITIES[kept]
    check(frequencies(Sampling(temperature=1, min_p=min_p, seed=3)), want)


def test_min_p_is_taken_of_the_heated_probabilities() -> None:
    """At temperature 0.5 the second token has 0.36 of the first, not 0.6."""
    check(frequencies(Sampling(temperature=0.5, min_p=0.5, seed=4)), np.array([0, 1, 0, 0]))


def test_top_p_is_taken_of_what_top_k_left() -> None:
    """Of two tokens, the first has 0.625: 0.6 needs no other. Of all it has 0.5, and would need one."""
    check(frequencies(Sampling(temperature=1, top_k=2, top_p=0.6, seed=5)), np.array([0, 1, 0, 0]))
    check(frequencies(Sampling(temperature=1, top_p=0.6, seed=5)), PROBABILITIES * [0, 1, 0, 1])


@pytest.mark.parametrize("seed", range(20))
def test_the_filters_are_those_of_transformers(seed: int) -> None:
    """The same settings leave the same probabilities, penalty included."""
    torch = pytest.importorskip("torch")
    from transformers import generation as hf

    rng = np.random.default_rng(seed)
    logits = rng.normal(size=200).astype(np.float32) * 3
    recent = tuple(rng.integers(0, 200, 30).tolist())
    settings = Sampling(temperature=0.8, top_k=40, top_p=0.9, min_p=0.02, repeat_penalty=1.3, seed=1)
    scores, ids = torch.tensor(logits)[None], torch.tensor(recent)[None]
    for step in (
        hf.RepetitionPenaltyLogitsProcessor(settings.repeat_penalty),
        hf.TemperatureLogitsWarper(settings.temperature),
        hf.TopKLogitsWarper(settings.top_k),
        hf.TopPLogitsWarper(settings.top_p),
        hf.MinPLogitsWarper(settings.min_p),
    ):
        scores = step(ids, scores)
    want = scores.softmax(-1)[0].double().numpy()
    found: list[np.ndarray] = []
    sampler = Sampler(settings)
    sampler._draw = lambda p: found.append(p) or 0  # type: ignore[method-assign,func-returns-value]
    sampler.choose(logits, recent)
    np.testing.assert_allclose(found[0] / found[0].sum(), want, atol=1e-6)


@pytest.mark.parametrize("temperature", [0.0, 1e-9])
def test_a_penalty_drops_what_was_said(temperature: float) -> None:
    logits = np.array([2.0, 3.0, -1.0, -1.2], np.float32)

    def choose(penalty: float, recent: tuple[int, ...]) -> int:
        return Sampler(Sampling(temperature=temperature, repeat_penalty=penalty, seed=1)).choose(logits, recent)

    assert choose(1.0, (1, 1, 1)) == 1
    assert choose(1.4, (1,)) == choose(1.4, (1, 1, 1)) == 1, (
        "3 / 1.4 is still more than 2; how often makes no difference"
    )
    assert choose(1.6, (1,)) == 0
    assert choose(1.6, (1, 0)) == 1, "both are divided"
    assert choose(0.5, (0,)) == 0, "below 1 it draws to what was said"
    np.testing.assert_array_equal(logits, np.array([2.0, 3.0, -1.0, -1.2], np.float32))


def test_a_penalty_makes_negative_logits_smaller() -> None:
    logits = np.array([-1.0, -1.5], np.float32)
    assert Sampler(Sampling(repeat_penalty=1.4)).choose(logits, (0,)) == 0
    assert Sampler(Sampling(repeat_penalty=1.6)).choose(logits, (0,)) == 1


def test_a_penalty_looks_back_a_fixed_number_of_tokens() -> None:
    logits = np.array([3.0, 2.9, 0.0], np.float32)
    for length in (0, 1, 5, MAX_REPEAT_LAST):
        sampler = Sampler(Sampling(repeat_penalty=2, repeat_last=length))
        assert sampler.choose(logits, [0, *[2] * length]) == 0, "one token too far back"
        assert sampler.choose(logits, [0, *[2] * (length - 1)]) == int(length > 0)


def test_end_tokens_are_never_penalized() -> None:
    logits = np.array([3.0, 2.9], np.float32)
    assert Sampler(Sampling(repeat_penalty=2), spared=[0]).choose(logits, (0, 1)) == 0


@pytest.mark.parametrize("temperature", [1e-300, 1e-9])
def test_little_heat_does_not_overflow(temperature: float) -> None:
    logits = np.array([-1e4, 1e4, -np.inf], np.float32)
    assert Sampler(Sampling(temperature=temperature, seed=1)).choose(logits) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top_k": -1}, "top-k; expected 0 or more; got -1"),
        ({"min_p": -0.1}, "min-p; expected 0 to 1; got -0.1"),
        ({"min_p": 1.1}, "min-p; expected 0 to 1; got 1.1"),
        ({"min_p": float("nan")}, "min-p; expected 0 to 1; got nan"),
        ({"temperature": float("inf")}, "temperature; expected 0 or more; got inf"),
        ({"repeat_penalty": 0.0}, "repeat penalty; expected more than 0; got 0.0"),
        ({"repeat_penalty": float("inf")}, "repeat penalty; expected more than 0; got inf"),
        ({"repeat_last": -1}, "repeat last; expected 0 to 1024 tokens; got -1"),
        ({"repeat_last": 1025}, "repeat last; expected 0 to 1024 tokens; got 1025"),
        ({"seed": -1}, "seed; expected 0 or more; got -1"),
    ],
    ids=str,
)
def test_numbers_out_of_range_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(KvedgeError, match=f"^{re.escape(message)}$"):
        Sampling(**settings)  # type: ignore[arg-type]


# ---- stop strings

TEXTS = ["one END two", "no end here EN", "ENEND", "aab aaab", "", "END", "xEN", "💬 END", "abcabcabd"]
STOPS: list[tuple[str, ...]] = [(), ("END",), ("aab", "b a"), ("END", "EN"), ("abcabd",), ("💬", "E")]


def shown(text: str, stop: tuple[str, ...]) -> str:
    """Everything in front of the earliest stop string."""
    return text[: min([at for at in (text.find(s) for s in stop) if at >= 0], default=len(text))]


@pytest.mark.parametrize("stop", STOPS, ids=str)
@pytest.mark.parametrize("text", TEXTS)
def test_text_ends_where_a_stop_string_begins(text: str, stop: tuple[str, ...]) -> None:
    """Letter by letter."""
    strings, out = StopStrings(stop), ""
    for letter in text:
        out += strings.add(letter)
        if strings.found:
            break
        assert text.startswith(out) and len(shown(text, stop)) >= len(out), "text of a stop string was shown"
    want = shown(text, stop)
    assert strings.found == (want != text)
    # Letter by letter, a short stop string inside a longer one is complete first.
    assert out + strings.rest() == want or any(a in b for a, b in itertools.permutations(stop, 2))


@pytest.mark.parametrize("stop", STOPS, ids=str)
@pytest.mark.parametrize("text", TEXTS)
def test_pieces_may_be_cut_anywhere(text: str, stop: tuple[str, ...]) -> None:
    for first, second in itertools.combinations_with_replacement(range(len(text) + 1), 2):
        strings, out = StopStrings(stop), ""
        for piece in (text[:first], text[first:second], text[second:]):
            out += "" if strings.found else strings.add(piece)
        assert out + strings.rest() == shown(text, stop)


def test_little_is_held_back() -> None:
    strings = StopStrings(("END",))
    assert [strings.add(piece) for piece in ("abc", "E", "N", "x", "E")] == ["abc", "", "", "ENx", ""]
    assert (strings.rest(), strings.rest(), strings.found) == ("E", "", False)


@pytest.mark.parametrize(("stop", "message"), [(("a", ""), "an empty one"), ("END", "a tuple")])
def test_what_is_no_stop_string_is_refused(stop: tuple[str, ...], message: str) -> None:
    with pytest.raises(KvedgeError, match=message):
        StopStrings(stop)
