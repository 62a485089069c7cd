"""Layers of the same form together, as commands show them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import groupby
from typing import TypeVar

Item = TypeVar("Item")


def group_alike(items: Iterable[Item], key: Callable[[Item], Hashable]) -> list[list[Item]]:
    """Items of the same key together, in order of first use."""
    groups: dict[Hashable, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def number_ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as ranges: 0-4, 6-10."""
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
