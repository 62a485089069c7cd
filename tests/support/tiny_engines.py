"""Engines of the tiny model with several caches, and a spy on what they are fed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from tiny_models import VOCAB, stream_logits, tiny_llama, write_artifact
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from kvedge.export.settings import CacheSettings
from kvedge.export.trace import trace
from kvedge.runtime.backend import StepOutput
from kvedge.runtime.engine import Engine, Row
from kvedge.runtime.sequence import Sequence
from kvedge.targets import manifest as artifact
from kvedge.targets.kinds import Kind

POSITIONS = 128
P7_FP = 2e-5
P7_INT3 = 2e-3
"""As where streams are cut: a value next to a code boundary may fall to either side."""

WORD = 256
"""Tokens from here on are whole words, those below are bytes."""
MARKS = {"<s>": 509, "<|im_start|>": 510, "<|im_end|>": 511}
END = MARKS["<|im_end|>"]


def _settings(kind: Kind, window: int | None = 37, sinks: int = 4) -> CacheSettings:
    return CacheSettings(kind=kind, window=window, sinks=sinks, recent=16, page=8)


SETTINGS = {
    "fp": _settings(Kind.FP),
    "int3": _settings(Kind.INT3),
    "fp, no window": _settings(Kind.FP, None),
    "int3, no window": _settings(Kind.INT3, None),
    "int4, no sinks": _settings(Kind.INT4, 48, 0),
    "k3v2, never packs": _settings(Kind.K3V2, 17),
}
TOLERANCE = {name: P7_FP if settings.kind is Kind.FP else P7_INT3 for name, settings in SETTINGS.items()}

Load = Callable[..., Engine]


@cache
def _traced():  # type: ignore[no-untyped-def]
    loaded = tiny_llama(max_positions=POSITIONS)
    return loaded, trace(loaded)


class Artifacts:
    """Artifacts of the tiny model in a folder of their own, made when they are first asked for."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def folder(self, name: str) -> Path:
        """The artifact of one of SETTINGS; nobody may change it."""
        target = self._root / name
        return target if target.is_dir() else write_artifact(*_traced(), SETTINGS[name], target)

    def load(self, name: str, **options: int) -> Engine:
        """Its engine: 32 tokens a step unless said otherwise."""
        return Engine.load(self.folder(name), **{"chunk": 32, "threads": 1} | options)

    def copy(self, name: str, *, eos_ids: tuple[int, ...] = (END,), template: str | None = None) -> Path:
        """A copy with a tokenizer, and with other end tokens and a chat template if given."""
        folder = self._root / f"copy {len(list(self._root.iterdir()))}"
        shutil.copytree(self.folder(name), folder)
        word_tokenizer().save(str(folder / artifact.TOKENIZER))
        (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
        if template:
            (folder / "chat_template.jinja").write_text(template)
        old = artifact.read(folder)
        (folder / artifact.MANIFEST).unlink()
        files = {path.name: artifact.describe(path) for path in folder.iterdir()}
        artifact.write(folder, replace(old, model=replace(old.model, eos_ids=eos_ids), files=files))
        return folder


@cache
def word_tokenizer() -> Tokenizer:
    """One token a byte, then words that no text is encoded to, then special tokens: the whole vocabulary."""
    words = [f"w{number}" for number in range(WORD, min(MARKS.values()))]
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *words, *MARKS]
    tokenizer = Tokenizer(models.BPE(vocab={text: number for number, text in enumerate(pieces)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in MARKS])
    assert tokenizer.get_vocab_size() == VOCAB
    return tokenizer


def tokens(length: int, seed: int = 1) -> list[int]:
    """Random token ids."""
    return np.random.default_rng(seed).integers(3, VOCAB, length).tolist()


def cuts_of(length: int, chunk: int) -> list[int]:
    """Ends of equal chunks."""
    return [*range(chunk, length, chunk), length]


def error(got: np.ndarray, want: np.ndarray) -> float:
    """Largest difference of logits, in their standard deviations."""
    return float(np.abs(got - want).max() / want.std())


def feed(engine: Engine, sequence: Sequence, ids: list[int]) -> None:
    """Feed tokens in chunks."""
    for first in range(0, len(ids), engine.plan.chunk):
        engine.step([Row(sequence, ids[first : first + engine.plan.chunk])], [0])


class Spy:
    """Remembers what an engine is fed, and the newest logits that it gave."""

    def __init__(self, engine: Engine) -> None:
        self.fed: list[int] = []
        self.logits = np.zeros(0, np.float32)
        self._step = engine.step
        engine.step = self.step  # type: ignore[method-assign]

    def step(self, rows: list[Row], logits_index: list[int]) -> StepOutput:
        """In the place of Engine.step."""
        result = self._step(rows, logits_index)
        self.fed += rows[0].ids
        self.logits = result.logits[0, -1].copy()
        return result

    def check(self, other: Engine, fed: list[int], tolerance: float = P7_INT3) -> None:
        """These tokens were fed, and the newest logits are those of another engine that got them at once."""
        assert self.fed == fed, f"fed {self.fed}, not {fed}"
        want = stream_logits(other, np.array(fed), cuts_of(len(fed), other.plan.chunk))[0][-1]
        assert error(self.logits, want) <= tolerance
