"""A session: one conversation, or one endless text, with its place in the cache."""

from __future__ import annotations

import time
from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvedge.runtime.answer import Answer, FinishReason, Usage
from kvedge.runtime.engine import Row
from kvedge.runtime.sample import Sampler, Sampling
from kvedge.targets.errors import require

if TYPE_CHECKING:
    from kvedge.runtime.engine import Engine
    from kvedge.runtime.template import Message

DEFAULT_MAX_TOKENS = 512


@dataclass(frozen=True, kw_only=True)
class _Turn:
    """The newest turn of a conversation that was fed: all messages, as rendered, and the answer to them."""

    messages: list[Message]
    rendered: str
    answer: Answer


class Session:
    """A conversation. Not for several threads at once.

    Text so far = tokens in the cache + pending ones. Whatever interrupts a step leaves that true.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sequence = engine.sequence()
        self._pending: list[int] = []  # text that is not in the cache yet
        self._turn: _Turn | None = None
        self._in_step = True  # the text so far is the conversation of _turn, and nothing else
        self._streaming: Answer | None = None

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
            KvedgeError: an empty prompt, unknown ids, or no room in a cache without a window.
        """
        if isinstance(prompt, str):
            first = self.num_tokens == 0 and not self._pending
            prompt = self._engine.text.encode(prompt) if first else self._engine.text.encode_part(prompt)
        ids = list(prompt)
        self._check(ids, max_tokens, self._sequence.room, len(self._pending))
        answer = Answer()
        answer._pieces = self._continue(answer, ids, max_tokens, Sampler(sampling or Sampling()))
        return answer

    def chat(self, message: str, *, max_tokens: int = DEFAULT_MAX_TOKENS, sampling: Sampling | None = None) -> Answer:
        """Say something to the model in its own chat format, and stream its answer.

        Where the cache does not hold the conversation as the template writes it now (the template rewrites
        earlier turns, or other text was fed in between), the whole conversation is fed again.

        Raises:
            KvedgeError: an empty message, no chat template, or no room.
        """
        require(bool(message.strip()), "prompt", expected="some text", got="an empty one")
        messages, transcript = self._history()
        messages.append({"role": "user", "content": message})
        rendered = self._engine.text.render(messages, add_generation_prompt=True)
        goes_on = self._in_step and rendered.startswith(transcript)
        ids = self._engine.text.encode_part(rendered[len(transcript) :] if goes_on else rendered)
        room, waiting = (self._sequence.room, len(self._pending)) if goes_on else (self._sequence.limit, 0)
        self._check(ids, max_tokens, room, waiting)
        turn = _Turn(messages=messages, rendered=rendered, answer=Answer())
        pieces = self._take_turn(turn, ids, max_tokens, Sampler(sampling or Sampling()))
        turn.answer._pieces = pieces if goes_on else self._from_the_start(pieces)
        return turn.answer

    def feed(self, ids: Many[int]) -> Usage:
        """Put tokens into the cache without asking for an answer.

        Raises:
            KvedgeError: no tokens, unknown ones, or no room for them.
        """
        usage = Usage()
        self._check(ids, 1, self._sequence.room, len(self._pending))
        self._in_step, self._streaming = False, None
        self._prefill(list(ids), usage)
        return usage

    def rollback(self, num_tokens: int) -> None:
        """Forget the newest tokens in the cache, at most a page of them.

        Raises:
            KvedgeError: more than can be forgotten.
        """
        self._sequence.rollback(num_tokens)
        self._pending, self._in_step, self._streaming = [], False, None

    def clear(self) -> None:
        """Forget everything; the session can be used again."""
        self._sequence.clear()
        self._pending, self._turn, self._in_step, self._streaming = [], None, True, None

    def close(self) -> None:
        """Give the pages back."""
        self.clear()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _history(self) -> tuple[list[Message], str]:
        """Messages so far, and the text that they were fed and answered as."""
        if self._turn is None:
            return [], ""
        said = self._engine.text.decode(self._turn.answer.token_ids)
        return [*self._turn.messages, {"role": "assistant", "content": said}], self._turn.rendered + said

    def _check(self, ids: Many[int], max_tokens: int, room: int | None, waiting: int) -> None:
        """Refuse a prompt before any of it is fed."""
        require(bool(ids), "prompt", expected="some text", got="an empty one")
        require(max_tokens > 0, "max tokens", expected="1 or more", got=max_tokens)
        self._engine.check_ids(ids)
        require(
            room is None or waiting + len(ids) <= room,
            "prompt",
            expected=f"at most the {room} tokens left of a context of {self._sequence.limit}",
            got=waiting + len(ids),
            fix="export with --window for an endless context, load with a larger context, or shorten the prompt",
        )

    def _continue(self, answer: Answer, ids: list[int], max_tokens: int, sampler: Sampler) -> Iterator[str]:
        """Raw text; a chat before it is no longer what the cache holds."""
        self._in_step, self._streaming = False, answer
        answer.finish_reason = FinishReason.CANCELLED
        yield from self._write(answer, self._prefill(ids, answer.usage), max_tokens, sampler)

    def _take_turn(self, turn: _Turn, ids: list[int], max_tokens: int, sampler: Sampler) -> Iterator[str]:
        """A turn of a chat. It counts once its prompt is fed; until then the conversation would be fed again."""
        self._in_step, self._streaming = False, turn.answer
        turn.answer.finish_reason = FinishReason.CANCELLED
        logits = self._prefill(ids, turn.answer.usage)
        self._turn, self._in_step = turn, True
        yield from self._write(turn.answer, logits, max_tokens, sampler)

    def _from_the_start(self, pieces: Iterator[str]) -> Iterator[str]:
        self._sequence.clear()
        self._pending = []
        yield from pieces

    def _write(self, answer: Answer, logits: NDArray[np.float32], max_tokens: int, sampler: Sampler) -> Iterator[str]:
        """Sample and feed tokens until something ends the answer, or another call took over the session."""
        streamer = self._engine.text.streamer() if self._engine.text.has_tokenizer else None
        while self._streaming is answer:
            token = sampler.choose(logits)
            if token in self._engine.manifest.model.eos_ids:
                answer.finish_reason = FinishReason.STOP
                return
            answer.token_ids.append(token)
            answer.usage.answer_tokens += 1
            self._pending = [token]
            if piece := streamer.add(token) if streamer else "":
                yield piece
            if self._streaming is not answer:
                return
            if reason := self._limit_reached(answer, max_tokens):
                answer.finish_reason = reason
                return
            logits = self._decode(answer.usage)

    def _limit_reached(self, answer: Answer, max_tokens: int) -> FinishReason | None:
        if len(answer.token_ids) >= max_tokens:
            return FinishReason.MAX_TOKENS
        return FinishReason.LENGTH if self._sequence.room == 0 else None

    def _prefill(self, ids: list[int], usage: Usage) -> NDArray[np.float32]:
        """Feed what is pending, then ids, in chunks; logits [vocab] after the last one."""
        self._pending += ids
        usage.prompt_tokens = len(self._pending)
        start = time.perf_counter()
        while True:
            logits = self._step(self._pending[: self._engine.plan.chunk], usage)
            if not self._pending:
                usage.prefill_seconds += time.perf_counter() - start
                return logits

    def _decode(self, usage: Usage) -> NDArray[np.float32]:
        start = time.perf_counter()
        logits = self._step(self._pending, usage)
        usage.decode_seconds += time.perf_counter() - start
        usage.decode_steps += 1
        return logits

    def _step(self, ids: list[int], usage: Usage) -> NDArray[np.float32]:
        """Feed the first pending tokens; logits [vocab] after them."""
        result = self._engine.step([Row(self._sequence, ids)], [len(ids) - 1])
        self._pending = self._pending[len(ids) :]
        usage.packed_pages_read += result.packed_pages_read
        return np.asarray(result.logits[0, 0])
