"""How far a build is, shown, and ended early by Ctrl-C: the builder itself would not listen."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

from rich.console import Console
from rich.progress import Progress, TaskID, TimeElapsedColumn

Tell = Callable[[str], None]
"""Says a line about how far the work got."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Whether the user wants no more."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note signals while the block runs, and do what they usually do after it."""
        heard = (number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN)
        before = {number: signal.signal(number, self._note) for number in heard}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            if self.signal is not None:
                signal.raise_signal(self.signal)  # also in the place of the error of a build that ended early

    def _note(self, number: int, _: FrameType | None) -> None:
        self.signal = number


@contextmanager
def shown(stop: Stop, trt: ModuleType) -> Iterator[Any]:
    """An IProgressMonitor of the library, with a bar for each phase on a terminal."""
    columns, console = (*Progress.get_default_columns()[:2], TimeElapsedColumn()), Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        yield _monitor(trt, bars, lambda: stop.signal is None)


def _monitor(trt: ModuleType, bars: Progress, wanted: Callable[[], bool]) -> Any:
    class Monitor(trt.IProgressMonitor):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self._tasks: dict[str, TaskID] = {}

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self._tasks[phase_name] = bars.add_task(phase_name, total=num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            bars.update(self._tasks[phase_name], completed=step + 1)
            return wanted()

        def phase_finish(self, phase_name: str) -> None:
            bars.remove_task(self._tasks.pop(phase_name))

    return Monitor()
