"""An answer while it streams: its text, its tokens, why it ended and what it took."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum


class FinishReason(Enum):
    """Why an answer ended."""

    STOP = "stop"  # an end-of-text token, or a stop string
    MAX_TOKENS = "max_tokens"  # as many tokens as were asked for
    LENGTH = "length"  # the context is full, and the cache has no window
    CANCELLED = "cancelled"  # the caller stopped reading, or called cancel()


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
    is_cancelled: bool = False
    _pieces: Iterator[str] = field(default_factory=lambda: iter(()))

    def __iter__(self) -> Iterator[str]:
        return self._pieces

    def text(self) -> str:
        """Read to the end."""
        return "".join(self)

    def cancel(self) -> None:
        """End the answer before its next step, also while the prompt is read: for signal handlers and other threads.

        A chat turn whose prompt was not read to its end never happened.
        """
        self.is_cancelled = True
