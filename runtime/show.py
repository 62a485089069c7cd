"""How commands show things: spinners on stderr, sizes and rates as people read them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

MIN_DECODE_STEPS = 16
"""Fewer steps than this say nothing about decoding speed."""


@contextmanager
def spinner(what: str) -> Iterator[None]:
    """A spinner while the block runs; nothing where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status(f"{escape(what)} ..."):
        yield


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int], Callable[[int], None]]]:
    """A bar on stderr: call what it gives with the number of tokens to come, the result with each part done.

    Nothing is shown where stderr is no terminal.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(escape(what), total=None)

        def start(total: int) -> Callable[[int], None]:
            progress.update(task, total=total)
            return lambda done: progress.advance(task, done)

        yield start


def decode_rate(steps: int, seconds: float) -> float | None:
    """Decode steps per second, or None if they are too few to tell."""
    return steps / seconds if steps >= MIN_DECODE_STEPS and seconds > 0 else None
