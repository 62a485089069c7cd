"""What a Jetson draws while it is measured: `tegrastats` runs beside, and each of its lines is stamped as it comes.

Elsewhere nothing runs and nothing was read. Whatever goes wrong here is a note; the measurement goes on.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import fmean
from threading import Event, Thread
from typing import IO

from kvedge.runtime.jetson import Jetson
from kvedge.runtime.tegrastats import Reading, board_rails, read_line

INTERVAL = 200
"""Milliseconds between two readings."""

Span = tuple[float, float]
"""From when to when, seconds of time.monotonic(), which is the same in all processes."""

_PROGRAM = "tegrastats"
_FIRST_SECONDS = 5.0  # until the first line, before anything is measured
_END_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class BoardUse:
    """A board over some time: watts, millijoules, bytes of all its RAM in use, GPU load 0 to 1.

    None: no rail tells the board's power, or no line the GPU's load.
    """

    readings: int
    mean_watts: float | None
    peak_watts: float | None
    millijoules_per_token: float | None
    mean_ram: int
    peak_ram: int
    mean_gpu_load: float | None


@dataclass(frozen=True, kw_only=True)
class BoardFacts:
    """A board that was read.

    Args:
        rails: whose sum its watts are; empty where they are not known.
        notes: what could not be read, for people.
    """

    jetson: Jetson
    rails: tuple[str, ...]
    notes: tuple[str, ...]


class BoardMeter:
    """Readings of a board so far; `clock` tells the seconds at which they came."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._readings: list[tuple[float, Reading]] = []
        self._foreign: str | None = None
        self._failures: list[str] = []
        self._heard = Event()

    def listen(self, lines: Iterable[str]) -> None:
        """Take lines of tegrastats until there are no more."""
        for line in lines:
            reading = read_line(line)
            if reading is not None:
                self._readings.append((self._clock(), reading))
            elif self._foreign is None and line.strip():
                self._foreign = line.strip()
            self._heard.set()
        self._heard.set()

    def wait(self, seconds: float) -> None:
        """Until there was a line, or can be none any more."""
        self._heard.wait(seconds)

    def fail(self, why: str) -> None:
        """Note what went wrong."""
        self._failures.append(why)
        self._heard.set()

    def use(self, spans: Iterable[Span], tokens: int) -> BoardUse | None:
        """Over these times together, in which so many tokens were made; None where nothing was read in them."""
        spans = list(spans)
        found = [reading for at, reading in self._readings if any(began < at <= ended for began, ended in spans)]
        if not found:
            return None
        watts = [each.watts for each in found if each.watts is not None]
        loads = [each.gpu_load for each in found if each.gpu_load is not None]
        mean = fmean(watts) if watts else None
        seconds = sum(ended - began for began, ended in spans)
        return BoardUse(
            readings=len(found),
            mean_watts=mean,
            peak_watts=max(watts, default=None),
            millijoules_per_token=None if mean is None else 1000 * mean * seconds / tokens,
            mean_ram=round(fmean(each.ram_used for each in found)),
            peak_ram=max(each.ram_used for each in found),
            mean_gpu_load=fmean(loads) if loads else None,
        )

    def ram_rise(self, span: Span) -> int | None:
        """Most bytes of RAM in use during this time above what was in use before it; None where that was not read.

        On a Jetson what the GPU holds is in there, and in no process's resident size.
        """
        before = [reading.ram_used for at, reading in self._readings if at <= span[0]]
        during = [reading.ram_used for at, reading in self._readings if span[0] < at <= span[1]]
        return max(0, max(during) - before[-1]) if before and during else None

    def facts(self, jetson: Jetson) -> BoardFacts:
        """What was read of this board, and what could not be."""
        rails = self._readings[-1][1].rails if self._readings else {}
        return BoardFacts(jetson=jetson, rails=board_rails(rails), notes=tuple(self._notes(rails)))

    def _notes(self, rails: Iterable[str]) -> Iterator[str]:
        yield from self._failures
        if not self._readings and self._foreign is not None:
            yield f"{_PROGRAM}: expected lines with RAM in use; got {self._foreign[:80]!r}; no power was read"
        elif not self._readings and not self._failures:
            yield f"{_PROGRAM} printed nothing; no power was read"
        elif self._readings and not rails:
            yield f"{_PROGRAM} names no power rails (some releases: to root only); no power was read"
        elif self._readings and not board_rails(list(rails)):
            yield f"{_PROGRAM} names no rails known to be the whole board's, but {', '.join(rails)}; no power was read"


@contextmanager
def board_meter(jetson: Jetson | None) -> Iterator[BoardMeter]:
    """A meter that reads as long as this lasts; where there is no Jetson, one that reads nothing."""
    meter = BoardMeter()
    with ExitStack() as stack:
        if jetson is not None:
            stack.enter_context(_listening(meter))
            meter.wait(_FIRST_SECONDS)
        yield meter


@contextmanager
def _listening(meter: BoardMeter) -> Iterator[None]:
    process = _start(meter)
    if process is None:
        yield
        return
    assert process.stdout is not None
    listener = Thread(target=meter.listen, args=(process.stdout,), daemon=True)
    listener.start()
    try:
        yield
    finally:
        if process.poll() is not None:
            meter.fail(f"{_PROGRAM} ended on its own with {process.returncode}; what came later was not read")
        _end(process, listener, process.stdout)


def _start(meter: BoardMeter) -> subprocess.Popen[str] | None:
    command = [_PROGRAM, "--interval", str(INTERVAL)]
    out, err = subprocess.PIPE, subprocess.STDOUT
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, text=True, errors="replace")
    except OSError as error:
        meter.fail(f"{_PROGRAM} cannot be started ({error.strerror or error}); no power was read")
        return None


def _end(process: subprocess.Popen[str], listener: Thread, stdout: IO[str]) -> None:
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    listener.join(_END_SECONDS)
    if not listener.is_alive():
        stdout.close()
