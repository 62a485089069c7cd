"""A session: one conversation, or one endless text, with its place in the cache."""

from __future__ import annotations

import time
from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvedge.runtime.engine import Row
from kvedge.runtime.sample import Sampler, Sampling
from kvedge.runtime.text import Message
from kvedge.targets.errors import require

if TYPE_CHECKING:
    from kvedge.runtime.engine import Engine

DEFAULT_MAX_TOKENS = 512


class FinishReason(Enum):
    """Why an answer ended."""

    STOP = "stop"  # an end-of-text token
    MAX_TOKENS = "max_tokens"  # as many tokens as were asked for
    LENGTH = "length"  # the context is full, and the cache has no window
    CANCELLED = "cancelled"  # the caller stopped reading


@dataclass(kw_only=True)
class Usage:
    """What one answer took: tokens, seconds, packed pages read."""

    prompt_tokens: int = 0
    answer_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_steps: int = 0
    decode_seconds: float = 0.0
    packed_pages_read: int = 0

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens per second."""
        return self.prompt_tokens / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode_rate(self) -> float:
        """Decode steps per second; 0 before the first."""
        return self.decode_steps / self.decode_seconds if self.decode_seconds else 0.0


@dataclass(kw_only=True)
class Answer:
    """An answer while it streams: iterate over it for text. `finish_reason` is set when it has ended."""

    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    usage: Usage = field(default_factory=Usage)
    _pieces: Iterator[str] = field(default_factory=lambda: iter(()))

    def __iter__(self) -> Iterator[str]:
        return self._pieces

    def text(self) -> str:
        """Read to the end."""
        return "".join(self)


class Session:
    """A conversation. Not for several threads at once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sequence = engine.sequence()
        self._pending: list[int] = []  # sampled, but not yet in the cache
        self._messages: list[Message] = []
        self._transcript = ""  # the conversation as text, as far as it was fed or generated

    @property
    def num_tokens(self) -> int:
        """Tokens in the cache, seen or already out of the window."""
        return self._sequence.num_tokens

    def generate(
        self, prompt: str | Many[int], *, max_tokens: int = DEFAULT_MAX_TOKENS, sampling: Sampling | None = None
    ) -> Answer:
        """Continue the text: feed the prompt, then stream what the model writes.

        Args:
            prompt: text or token ids, of any length.
            max_tokens: most tokens of the answer.
            sampling: greedy if None.

        Raises:
            KvedgeError: an empty prompt, or one that does not fit a cache without a window.
        """
        if isinstance(prompt, str):
            first = self.num_tokens == 0 and not self._pending
            prompt = self._engine.text.encode(prompt) if first else self._engine.text.encode_part(prompt)
        return self._answer(list(prompt), max_tokens, sampling)

    def chat(self, message: str, *, max_tokens: int = DEFAULT_MAX_TOKENS, sampling: Sampling | None = None) -> Answer:
        """Say something to the model in its own chat format, and stream its answer.

        Raises:
            KvedgeError: an empty message, no chat template, or no room.
        """
        require(bool(message.strip()), "prompt", expected="some text", got="an empty one")
        messages = [*self._messages, {"role": "user", "content": message}]
        rendered = self._engine.text.render(messages, add_generation_prompt=True)
        if not rendered.startswith(self._transcript):
            self.clear()  # the template rewrites earlier turns: feed the conversation again
        part = rendered[len(self._transcript) :]
        answer = self._answer(self._engine.text.encode_part(part), max_tokens, sampling)
        answer._pieces = self._remember(answer, answer._pieces, messages, rendered)
        return answer

    def feed(self, ids: Many[int]) -> Usage:
        """Put tokens into the cache without asking for an answer.

        Raises:
            KvedgeError: no tokens, or no room for them.
        """
        usage = Usage(prompt_tokens=len(ids))
        self._prefill(list(ids), usage)
        return usage

    def rollback(self, num_tokens: int) -> None:
        """Forget the newest tokens in the cache, at most a page of them.

        Raises:
            KvedgeError: more than can be forgotten.
        """
        self._sequence.rollback(num_tokens)
        self._pending = []

    def clear(self) -> None:
        """Forget everything; the session can be used again."""
        self._sequence.clear()
        self._pending, self._messages, self._transcript = [], [], ""

    def close(self) -> None:
        """Give the pages back."""
        self.clear()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, ids: list[int], max_tokens: int, sampling: Sampling | None) -> Answer:
        require(bool(ids), "prompt", expected="some text", got="an empty one")
        require(max_tokens > 0, "max tokens", expected="1 or more", got=max_tokens)
        self._check_room(len(self._pending) + len(ids))
        answer = Answer()
        answer._pieces = self._stream(answer, ids, max_tokens, Sampler(sampling or Sampling()))
        return answer

    def _stream(self, answer: Answer, ids: list[int], max_tokens: int, sampler: Sampler) -> Iterator[str]:
        answer.finish_reason = FinishReason.CANCELLED
        ids, self._pending = self._pending + ids, []
        answer.usage.prompt_tokens = len(ids)
        logits = self._prefill(ids, answer.usage)
        streamer = self._engine.text.streamer() if self._engine.text.has_tokenizer else None
        while True:
            token = sampler.choose(logits)
            if token in self._engine.manifest.model.eos_ids:
                answer.finish_reason = FinishReason.STOP
                return
            answer.token_ids.append(token)
            answer.usage.answer_tokens += 1
            self._pending = [token]
            if piece := streamer.add(token) if streamer else "":
                yield piece
            if reason := self._limit_reached(answer, max_tokens):
                answer.finish_reason = reason
                return
            logits = self._decode(token, answer.usage)
            self._pending = []

    def _limit_reached(self, answer: Answer, max_tokens: int) -> FinishReason | None:
        if len(answer.token_ids) >= max_tokens:
            return FinishReason.MAX_TOKENS
        return FinishReason.LENGTH if self._sequence.room == 0 else None

    def _prefill(self, ids: list[int], usage: Usage) -> NDArray[np.float32]:
        """Feed tokens in chunks; logits [vocab] after the last one."""
        require(bool(ids), "tokens", expected="at least 1", got=0)
        self._check_room(len(ids))
        start, chunk = time.perf_counter(), self._engine.plan.chunk
        for first in range(0, len(ids), chunk):
            part = ids[first : first + chunk]
            result = self._engine.step([Row(self._sequence, part)], [len(part) - 1])
            usage.packed_pages_read += result.packed_pages_read
        usage.prefill_seconds += time.perf_counter() - start
        return np.asarray(result.logits[0, 0])

    def _decode(self, token: int, usage: Usage) -> NDArray[np.float32]:
        start = time.perf_counter()
        result = self._engine.step([Row(self._sequence, [token])], [0])
        usage.decode_seconds += time.perf_counter() - start
        usage.decode_steps += 1
        usage.packed_pages_read += result.packed_pages_read
        return np.asarray(result.logits[0, 0])

    def _check_room(self, num_new: int) -> None:
        room = self._sequence.room
        require(
            room is None or num_new <= room,
            "prompt",
            expected=f"at most the {room} tokens left of a context of {self._sequence.limit}",
            got=num_new,
            fix="export with --window for an endless context, load with a larger context, or shorten the prompt",
        )

    def _remember(self, answer: Answer, pieces: Iterator[str], messages: list[Message], rendered: str) -> Iterator[str]:
        """Stream the answer, then keep the turn (also when the caller stops early)."""
        try:
            yield from pieces
        finally:
            said = self._engine.text.decode(answer.token_ids)
            self._messages = [*messages, {"role": "assistant", "content": said}]
            self._transcript = rendered + said
