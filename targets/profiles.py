"""What an engine is built for: sizes that it cannot change afterwards."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StepLimits:
    """Sizes of pools, tables and steps.

    Args:
        context: most tokens that a session may hold where a layer has no window.
        chunk: most new tokens a step; sessions: most conversations at the same time.
    """

    context: int
    chunk: int
    sessions: int
