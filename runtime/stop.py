"""Text of an answer as it may be shown: whole characters, nothing from a stop string on."""

from __future__ import annotations

from kvedge.runtime.text import Streamer
from kvedge.targets.errors import require


class StopStrings:
    """Lets text through up to the first stop string; holds back what could be the beginning of one.

    At most one character less than the longest stop string is held back.

    Args:
        stop: texts that end an answer; where several begin, the earliest counts.

    Raises:
        KvedgeError: an empty one.
    """

    def __init__(self, stop: tuple[str, ...]) -> None:
        require(not isinstance(stop, str), "stop strings", expected="a tuple of them", got="one string")
        require(all(stop), "stop string", expected="some text", got="an empty one")
        self._stop = stop
        self._held = ""
        self.found = False

    def add(self, text: str) -> str:
        """What of the text so far, and not shown yet, is safe to show."""
        text = self._held + text
        starts = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        if starts:
            self.found, self._held = True, ""
            return text[: min(starts)]
        safe = len(text) - max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[safe:]
        return text[:safe]

    def rest(self) -> str:
        """What was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held


class AnswerText:
    """Turns an answer's tokens into the text that is shown.

    Args:
        streamer: None where there is no tokenizer, and so no text.
        stop: texts that end the answer.
    """

    def __init__(self, streamer: Streamer | None, stop: tuple[str, ...]) -> None:
        self._streamer, self._stop = streamer, StopStrings(stop)

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string has come."""
        return self._stop.found

    def add(self, token: int) -> str:
        """Text that may be shown now; may be empty."""
        return self._stop.add(self._streamer.add(token)) if self._streamer else ""

    def rest(self) -> str:
        """Text that was held back, when the answer has ended without a stop string."""
        return self._stop.rest()


def _overlap(text: str, stop: str) -> int:
    """Characters at the end of the text that begin the stop string without completing it."""
    longest = min(len(text), len(stop) - 1)
    return next((length for length in range(longest, 0, -1) if text.endswith(stop[:length])), 0)
