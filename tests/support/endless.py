"""Stream a text through an artifact, with stretches of generation, and watch memory: run as a process of its own.

usage: endless.py ARTIFACT TEXT_FILE TOKENS
Prints JSON: for each stretch of 1,000 tokens its perplexity and the resident bytes at its end; and the perplexity
of the last stretch in a fresh session that was fed only what is in the window. Only anonymous memory counts: pages
of the weights file appear as words occur for the first time, up to the size of the file.
"""

from __future__ import annotations

import gc
import json
import sys
from dataclasses import asdict, dataclass

import numpy as np

from kvedge.runtime.engine import Engine, Row
from kvedge.runtime.sequence import Sequence

CHUNK = 128
STRETCH = 1000
SCORED_EVERY = 4  # tokens: few logits, so that the measurement itself takes little memory
GENERATED = 40  # tokens of every stretch that the model writes itself


@dataclass
class Stretch:
    """num_tokens: in the cache at its end."""

    num_tokens: int
    perplexity: float
    resident_bytes: int


def resident_bytes() -> int:
    """Anonymous resident memory: all that was ever allocated."""
    with open("/proc/self/status", encoding="ascii") as stream:
        line = next(line for line in stream if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024


def feed(engine: Engine, sequence: Sequence, ids: list[int]) -> list[float]:
    """Feed text; negative log likelihood of every fourth token."""
    out: list[float] = []
    for first in range(0, len(ids), CHUNK):
        part = ids[first : first + CHUNK]
        scored = range(SCORED_EVERY - 1, len(part) - 1, SCORED_EVERY)
        logits = engine.step([Row(sequence, part)], scored).logits[0]
        out += [loss(row, part[index + 1]) for row, index in zip(logits, scored, strict=True)]
    return out


def loss(logits: np.ndarray, token: int) -> float:
    """Negative log likelihood of a token under logits [vocab]."""
    shifted = logits.astype(np.float64) - logits.max()
    return float(np.log(np.exp(shifted).sum()) - shifted[token])


def generate(engine: Engine, sequence: Sequence, token: int, count: int) -> None:
    for _ in range(count):
        token = int(engine.step([Row(sequence, [token])], [0]).logits[0, 0].argmax())


@dataclass
class Report:
    """fresh_perplexity: of the last stretch, with no past beyond the window."""

    stretches: list[Stretch]
    fresh_perplexity: float


def run(folder: str, text_file: str, num_tokens: int) -> Report:
    engine = Engine.load(folder, chunk=CHUNK)
    with open(text_file, encoding="utf-8", errors="ignore") as stream:
        ids = engine.text.encode_part(stream.read())
    sequence, stretches, at = engine.sequence(), [], 0
    while sequence.num_tokens < num_tokens:
        part = ids[at : at + STRETCH - GENERATED]
        losses, at = feed(engine, sequence, part), at + len(part)
        generate(engine, sequence, part[-1], GENERATED)
        gc.collect()
        stretches.append(Stretch(sequence.num_tokens, float(np.exp(np.mean(losses))), resident_bytes()))
    assert engine.allocated_bytes == engine.plan.kv_bytes
    sequence.clear()
    feed(engine, sequence, ids[at - 2 * len(part) : at - len(part)])
    return Report(stretches, float(np.exp(np.mean(feed(engine, sequence, part)))))


if __name__ == "__main__":
    print(json.dumps(asdict(run(sys.argv[1], sys.argv[2], int(sys.argv[3])))))
