"""One sequence of tokens in the cache: how many there are, and its block tables."""

from __future__ import annotations

from kvedge.runtime.table import GroupTables, Held
from kvedge.targets.errors import require


class Sequence:
    """Tokens 0 to num_tokens - 1 of one session.

    Args:
        groups: block tables, one per group of layers.
        limit: most tokens that may ever be in it; None for an endless stream.
    """

    def __init__(self, groups: list[GroupTables], limit: int | None) -> None:
        self.groups = groups
        self.limit = limit
        self.num_tokens = 0
        self._high = 0  # most tokens that may ever have been in the ring: what is older than its reach is gone

    @property
    def room(self) -> int | None:
        """Tokens that may still be added; None for no limit."""
        return None if self.limit is None else self.limit - self.num_tokens

    @property
    def slack(self) -> int:
        """Tokens that may be rolled back right after they were added."""
        return min(tables.rules.slack for tables in self.groups)

    @property
    def is_whole(self) -> bool:
        """Whether the ring still holds what the next token reads.

        A step that was interrupted may have written its tokens without counting them; if they were more than
        the slack, they have overwritten older ones that are still in reach.
        """
        return self._high - self.num_tokens <= self.slack

    def reserve(self, num_new: int) -> None:
        """Make room in the tables for the next num_new tokens."""
        for tables in self.groups:
            tables.reserve(self.num_tokens, self.num_tokens + num_new)

    def begin(self, num_new: int) -> None:
        """From now on num_new tokens may be written, whether or not they get counted."""
        self._high = max(self._high, self.num_tokens + num_new)

    def advance(self, num_new: int) -> None:
        """Count num_new tokens that a step has written."""
        self.num_tokens += num_new
        self._high = max(self._high, self.num_tokens)

    def rollback(self, num_tokens: int) -> None:
        """Forget the newest num_tokens tokens.

        Raises:
            KvedgeError: more than the slack, or than there are.
        """
        left = self.num_tokens - num_tokens
        fits = num_tokens >= 0 and left >= 0 and self._high - left <= self.slack
        allowed = min(self.num_tokens, self.slack - (self._high - self.num_tokens))
        require(fits, "rollback", expected=f"0 to {allowed} tokens", got=num_tokens, fix="start a new session instead")
        self.num_tokens = left

    @property
    def high(self) -> int:
        """Most tokens that may ever have been written."""
        return self._high

    def held(self, num_tokens: int, high: int) -> list[Held]:
        """What the tables of each group would hold of num_tokens tokens, where up to `high` were written."""
        return [tables.held(num_tokens, high) for tables in self.groups]

    def resume(self, num_tokens: int, high: int) -> None:
        """Count tokens whose pages were put back."""
        self.num_tokens, self._high = num_tokens, high

    def clear(self) -> None:
        """Forget everything and give all pages back."""
        for tables in self.groups:
            tables.release()
        self.num_tokens = self._high = 0
