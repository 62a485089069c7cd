"""What one block of layers hands on to later ones, where a model is built as several engines."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Hidden:
    """Hidden states [B, N, *widths] of a step's new tokens.

    Args:
        name: of the graphs' output and inputs; dtype: as numpy calls it; widths: all dimensions from the third on.
    """

    name: str
    dtype: str
    widths: tuple[int, ...]
