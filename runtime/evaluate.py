"""Quality of an artifact on a text: perplexity, and how far its predictions are from another artifact's.

Both are fed the same tokens in the same chunks; only one chunk of logits of each is ever held. A position
counts from `skip` on, where it has a next token in the text:

    perplexity   exp(mean -log p(next token))
    KL           mean over positions of sum over tokens of p log(p / q), p the reference, in nats, in float64
    top-1        share of positions where both find the same token likeliest
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvedge.runtime.engine import Engine, Row
from kvedge.runtime.sequence import Sequence
from kvedge.targets import manifest as artifact
from kvedge.targets.errors import KvedgeError, require
from kvedge.targets.manifest import Manifest

Progress = Callable[[int], None]
"""Told how many tokens were just fed."""

_BLOCK = 32  # positions whose logits are in float64 at a time


@dataclass(frozen=True, kw_only=True)
class EvalJob:
    """What to evaluate.

    Args:
        folder: the artifact; against: the reference, None for perplexity alone.
        text: file of UTF-8 text.
        num_tokens: first tokens of it that are fed; skip: how many of them only fill the cache.
        threads: None for all cores.

    Raises:
        KvedgeError: nothing is left to score.
    """

    folder: Path
    text: Path
    against: Path | None
    num_tokens: int
    skip: int
    threads: int | None

    def __post_init__(self) -> None:
        require(self.skip >= 0, "--skip", expected="0 or more tokens", got=self.skip)
        least = self.skip + 2
        fix = "feed more, or skip less"
        require(self.num_tokens >= least, "--tokens", expected=f"at least {least}", got=self.num_tokens, fix=fix)


@dataclass(frozen=True, kw_only=True)
class Quality:
    """One artifact on the text."""

    manifest: Manifest
    perplexity: float
    packed_pages_read: int


@dataclass(frozen=True, kw_only=True)
class EvalResult:
    """The artifact, its reference, and the distance; the last three are None without a reference."""

    num_tokens: int
    scored: int
    this: Quality
    reference: Quality | None
    kl: float | None
    top1: float | None


@dataclass
class _Sums:
    """What is summed over the scored positions."""

    scored: int = 0
    loss: float = 0.0
    reference_loss: float = 0.0
    kl: float = 0.0
    same: int = 0


@dataclass
class _Feeder:
    """An engine, its sequence, and the packed pages that it has read."""

    engine: Engine
    sequence: Sequence
    packed_pages_read: int = 0

    def logits(self, ids: list[int]) -> NDArray[np.float32]:
        """Feed tokens; logits [len(ids), vocab]."""
        result = self.engine.step([Row(self.sequence, ids)], range(len(ids)))
        self.packed_pages_read += result.packed_pages_read
        logits: NDArray[np.float32] = result.logits[0]
        return logits


def evaluate(job: EvalJob, start: Callable[[int], Progress]) -> EvalResult:
    """Feed the text and score it.

    Args:
        job: what to evaluate.
        start: given the number of tokens to come, returns who is told of them.

    Raises:
        KvedgeError: not an artifact, two that do not match, or a text that is too short.
    """
    text = _read_text(job.text)
    this = _load(job.folder, job)
    ids = _encode(this.engine, text, job)
    reference = None if job.against is None else _load(job.against, job)
    if reference is not None:
        _check_match(this.engine, reference.engine, text, ids)
    sums = _feed(this, reference, ids, job.skip, start(len(ids)))
    return _result(this, reference, sums, len(ids))


def _read_text(path: Path) -> str:
    require(
        path.is_file(),
        f"text {path}",
        expected="a file",
        got="a folder" if path.is_dir() else "nothing there",
    )
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise KvedgeError(f"text {path}", expected="UTF-8", got="other bytes", fix="convert it first") from None


def _load(folder: Path, job: EvalJob) -> _Feeder:
    """Load with a cache for the whole text, or as it is where it has a window."""
    manifest = artifact.read(folder)
    context = None if manifest.cache.is_endless or manifest.limits else job.num_tokens
    engine = Engine.load(folder, context=context, threads=job.threads)
    return _Feeder(engine, engine.sequence())


def _encode(engine: Engine, text: str, job: EvalJob) -> list[int]:
    ids = engine.text.encode(text)
    require(
        len(ids) >= job.num_tokens,
        f"text {job.text}",
        expected=f"at least {job.num_tokens} tokens",
        got=len(ids),
        fix="use a longer text, or a smaller --tokens",
    )
    return ids[: job.num_tokens]


def _check_match(this: Engine, reference: Engine, text: str, ids: list[int]) -> None:
    sizes = [engine.manifest.model.vocab_size for engine in (this, reference)]
    fix = "give two exports of the same model"
    require(sizes[0] == sizes[1], "--against", expected=f"a vocabulary of {sizes[0]}", got=sizes[1], fix=fix)
    same = reference.text.encode(text)[: len(ids)] == ids
    require(same, "--against", expected="the same tokenizer", got="other tokens of this text", fix=fix)


def _feed(this: _Feeder, reference: _Feeder | None, ids: list[int], skip: int, progress: Progress) -> _Sums:
    sums, chunk = _Sums(), min(feeder.engine.most_rows for feeder in (this, reference) if feeder)
    for first in range(0, len(ids), chunk):
        part = ids[first : first + chunk]
        logits = this.logits(part)
        wanted = None if reference is None else reference.logits(part)
        rows = range(max(first, skip) - first, min(first + len(part), len(ids) - 1) - first)
        for begin in range(rows.start, rows.stop, _BLOCK):
            block = slice(begin, min(begin + _BLOCK, rows.stop))
            following = ids[first + block.start + 1 : first + block.stop + 1]
            _score(sums, logits[block], None if wanted is None else wanted[block], following)
        progress(len(part))
    return sums


def _score(sums: _Sums, logits: NDArray[np.float32], wanted: NDArray[np.float32] | None, following: list[int]) -> None:
    """Add positions with logits [rows, vocab] and the tokens that follow them."""
    rows = np.arange(len(following))
    q = _log_softmax(logits)
    sums.scored += len(following)
    sums.loss -= float(q[rows, following].sum())
    if wanted is not None:
        p = _log_softmax(wanted)
        sums.reference_loss -= float(p[rows, following].sum())
        sums.kl += float((np.exp(p) * (p - q)).sum())
        sums.same += int((logits.argmax(-1) == wanted.argmax(-1)).sum())


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(-1, keepdims=True))
    return shifted


def _result(this: _Feeder, reference: _Feeder | None, sums: _Sums, num_tokens: int) -> EvalResult:
    return EvalResult(
        num_tokens=num_tokens,
        scored=sums.scored,
        this=_quality(this, sums.loss / sums.scored),
        reference=None if reference is None else _quality(reference, sums.reference_loss / sums.scored),
        kl=None if reference is None else sums.kl / sums.scored,
        top1=None if reference is None else sums.same / sums.scored,
    )


def _quality(feeder: _Feeder, loss: float) -> Quality:
    return Quality(
        manifest=feeder.engine.manifest,
        perplexity=math.exp(min(loss, 700.0)),  # beyond, float64 has no number for it
        packed_pages_read=feeder.packed_pages_read,
    )
