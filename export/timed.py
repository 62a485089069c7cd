"""How far an export is, shown: its parts by name, each with its time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from rich.console import Console

Timed = Callable[[str], AbstractContextManager[None]]
"""Shows that a named part of the work goes on while its block runs."""


@contextmanager
def timed(what: str) -> Iterator[None]:
    """A spinner while it runs, a line with its time when it is done."""
    console, start = Console(stderr=True), time.perf_counter()
    if sys.stderr.isatty():
        with console.status(f"{what} ..."):
            yield
    else:
        yield
    console.print(f"{what:12} {time.perf_counter() - start:6.1f} s", highlight=False)
