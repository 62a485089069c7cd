"""A session: one conversation, or one endless text, with its place in the cache."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Many
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvedge.runtime import saved
from kvedge.runtime.answer import Answer, FinishReason, Usage
from kvedge.runtime.engine import Row
from kvedge.runtime.sample import MAX_REPEAT_LAST, Sampler, Sampling
from kvedge.runtime.saved import SavedSession
from kvedge.runtime.stop import AnswerText
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


@dataclass(frozen=True, kw_only=True)
class _Writer:
    """What one answer is written with."""

    max_tokens: int
    sampler: Sampler
    text: AnswerText


class _CancelledError(Exception):
    """The answer is no longer wanted."""


class Session:
    """A conversation. Not for several threads at once.

    Text so far = tokens in the cache + pending ones. Whatever interrupts a step leaves that true.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sequence = engine.sequence()
        weakref.finalize(self, self._sequence.clear)  # a forgotten session gives its pages back, too
        self._pending: list[int] = []  # text that is not in the cache yet
        self._settled = 0  # tokens in the cache that are known to be no longer pending
        self._turn: _Turn | None = None
        self._in_step = True  # the text so far is the conversation of _turn, and nothing else
        self._streaming: Answer | None = None
        # The newest tokens in the cache; what a rollback takes away leaves as many as a penalty may look at.
        self._recent: deque[int] = deque(maxlen=MAX_REPEAT_LAST + self._sequence.slack)

    @property
    def num_tokens(self) -> int:
        """Tokens in the cache, seen or already out of the window."""
        return self._sequence.num_tokens

    def generate(
        self,
        prompt: str | Many[int],
        *,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        sampling: Sampling | None = None,
        stop: tuple[str, ...] = (),
    ) -> Answer:
        """Continue the text: feed the prompt, then stream what the model writes.

        Args:
            prompt: text or token ids, of any length.
            max_tokens: most tokens of the answer.
            sampling: greedy if None.
            stop: texts that end the answer and are not part of its text. The cache and `Answer.token_ids`
                keep what the model wrote, the stop string included.

        Raises:
            KvedgeError: an empty prompt, unknown ids, no room in a cache without a window, or a stop string that is
                empty, or where there is no tokenizer.
        """
        self._settle()
        if isinstance(prompt, str):
            first = self.num_tokens == 0 and not self._pending
            prompt = self._engine.text.encode(prompt) if first else self._engine.text.encode_part(prompt)
        ids = list(map(int, prompt))
        self._check(ids, self._sequence.room, len(self._pending))
        answer = Answer()
        answer._pieces = self._continue(answer, ids, self._writer(max_tokens, sampling, stop))
        return answer

    def chat(
        self,
        message: str,
        *,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        sampling: Sampling | None = None,
        stop: tuple[str, ...] = (),
    ) -> Answer:
        """Say something to the model in its own chat format, and stream its answer.

        Where the cache does not hold the conversation as the template writes it now (the template rewrites
        earlier turns, or other text was fed in between), the whole conversation is fed again. The options are
        those of `generate`.

        Raises:
            KvedgeError: an empty message, no chat template, or no room.
        """
        self._settle()
        require(bool(message.strip()), "prompt", expected="some text", got="an empty one")
        messages, transcript = self._history()
        messages.append({"role": "user", "content": message})
        rendered = self._engine.text.render(messages, add_generation_prompt=True)
        goes_on = self._in_step and rendered.startswith(transcript)
        ids = self._engine.text.encode_part(rendered[len(transcript) :] if goes_on else rendered)
        room, waiting = (self._sequence.room, len(self._pending)) if goes_on else (self._sequence.limit, 0)
        self._check(ids, room, waiting)
        turn = _Turn(messages=messages, rendered=rendered, answer=Answer())
        pieces = self._take_turn(turn, ids, self._writer(max_tokens, sampling, stop))
        turn.answer._pieces = pieces if goes_on else self._from_the_start(pieces)
        return turn.answer

    def feed(self, ids: Many[int]) -> Usage:
        """Put tokens into the cache without asking for an answer.

        Raises:
            KvedgeError: no tokens, unknown ones, or no room for them.
        """
        self._settle()
        usage, ids = Usage(), list(map(int, ids))
        self._check(ids, self._sequence.room, len(self._pending))
        self._in_step, self._streaming = False, None
        self._prefill(ids, usage)
        return usage

    def rollback(self, num_tokens: int) -> None:
        """Forget the newest tokens in the cache, at most a page of them.

        Raises:
            KvedgeError: more than can be forgotten.
        """
        self._settle()
        self._sequence.rollback(num_tokens)
        self._pending, self._settled = [], self._sequence.num_tokens
        self._in_step, self._streaming = False, None
        for _ in range(min(num_tokens, len(self._recent))):
            self._recent.pop()

    def save(self, path: str | Path) -> None:
        """Write the conversation to a file, from which `Engine.restore` takes it up; this session goes on.

        The file is about as large as the pages in use, and the text of a chat: the window bounds the first.

        Raises:
            KvedgeError: the file cannot be written, or a step was interrupted.
        """
        self._settle()
        turn = self._turn
        talk = {
            "pending": self._pending,
            "recent": list(self._recent),
            "in_step": self._in_step,
            "turn": turn and {"messages": turn.messages, "rendered": turn.rendered, "answer": turn.answer.token_ids},
        }
        saved.write(
            Path(path), self._engine.manifest, SavedSession(pages=self._engine.take_pages(self._sequence), talk=talk)
        )

    @classmethod
    def restored(cls, engine: Engine, found: SavedSession) -> Session:
        """A session as it was when it was saved.

        Raises:
            KvedgeError: more tokens than the context.
        """
        session, talk, turn = cls(engine), found.talk, found.talk["turn"]
        engine.put_pages(session._sequence, found.pages)
        session._pending, session._settled = list(talk["pending"]), session.num_tokens
        session._in_step = talk["in_step"]
        session._recent.extend(talk["recent"])
        if turn is not None:
            answer = Answer(token_ids=turn["answer"])
            session._turn = _Turn(messages=turn["messages"], rendered=turn["rendered"], answer=answer)
        return session

    def clear(self) -> None:
        """Forget everything; the session can be used again."""
        self._empty()
        self._turn, self._in_step, self._streaming = None, True, None

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

    def _check(self, ids: Many[int], room: int | None, waiting: int) -> None:
        """Refuse a prompt before any of it is fed."""
        require(bool(ids), "prompt", expected="some text", got="an empty one")
        self._engine.check_ids(ids)
        require(
            room is None or waiting + len(ids) <= room,
            "prompt",
            expected=f"at most the {room} tokens left of a context of {self._sequence.limit}",
            got=waiting + len(ids),
            fix="export with --window for an endless context, load with a larger context, or shorten the prompt",
        )

    def _writer(self, max_tokens: int, sampling: Sampling | None, stop: tuple[str, ...]) -> _Writer:
        require(max_tokens > 0, "max tokens", expected="1 or more", got=max_tokens)
        text = self._engine.text
        return _Writer(
            max_tokens=max_tokens,
            sampler=Sampler(sampling or Sampling(), self._engine.manifest.model.eos_ids),
            text=AnswerText(text.streamer() if text.has_tokenizer or stop else None, stop),
        )

    def _continue(self, answer: Answer, ids: list[int], writer: _Writer) -> Iterator[str]:
        """Raw text; a chat before it is no longer what the cache holds."""
        self._in_step, self._streaming = False, answer
        answer.finish_reason = FinishReason.CANCELLED
        with suppress(_CancelledError):
            yield from self._write(answer, self._prefill(ids, answer.usage), writer)

    def _take_turn(self, turn: _Turn, ids: list[int], writer: _Writer) -> Iterator[str]:
        """A turn of a chat. It counts once its prompt is fed; until then the conversation would be fed again."""
        self._in_step, self._streaming = False, turn.answer
        turn.answer.finish_reason = FinishReason.CANCELLED
        with suppress(_CancelledError):
            logits = self._prefill(ids, turn.answer.usage)
            self._turn, self._in_step = turn, True
            yield from self._write(turn.answer, logits, writer)

    def _from_the_start(self, pieces: Iterator[str]) -> Iterator[str]:
        self._empty()
        yield from pieces

    def _empty(self) -> None:
        """Empty the cache."""
        self._sequence.clear()
        self._pending, self._settled = [], 0
        self._recent.clear()

    def _write(self, answer: Answer, logits: NDArray[np.float32], writer: _Writer) -> Iterator[str]:
        """Sample and feed tokens until something ends the answer, or another call took over the session."""
        while self._streaming is answer:
            token = writer.sampler.choose(logits, self._recent)
            ends = token in self._engine.manifest.model.eos_ids
            if piece := "" if ends else self._say(answer, token, writer):
                yield piece
            if self._streaming is not answer:
                return
            if reason := FinishReason.STOP if ends else self._limit_reached(answer, writer):
                if rest := writer.text.rest():
                    yield rest
                answer.finish_reason = reason
                return
            logits = self._decode(answer.usage)

    def _say(self, answer: Answer, token: int, writer: _Writer) -> str:
        """Add a token to the answer; text that can be shown now."""
        answer.token_ids.append(token)
        answer.usage.answer_tokens += 1
        self._pending = [token]
        return writer.text.add(token)

    def _limit_reached(self, answer: Answer, writer: _Writer) -> FinishReason | None:
        if writer.text.is_stopped:
            return FinishReason.STOP
        if len(answer.token_ids) >= writer.max_tokens:
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

    def _settle(self) -> None:
        """Take what steps have counted out of what is pending, also where an interrupt came in between."""
        done = self._sequence.num_tokens - self._settled
        self._recent.extend(self._pending[:done])
        self._pending, self._settled = self._pending[done:], self._sequence.num_tokens

    def _step(self, ids: list[int], usage: Usage) -> NDArray[np.float32]:
        """Feed the first pending tokens; logits [vocab] after them."""
        if self._streaming is not None and self._streaming.is_cancelled:
            raise _CancelledError
        result = self._engine.step([Row(self._sequence, ids)], [len(ids) - 1])
        self._settle()
        usage.packed_pages_read += result.packed_pages_read
        return np.asarray(result.logits[0, 0])
