"""What a user asks of a cache, and the rules that it makes of one layer: the same for `export` and `plan`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kvedge.targets.errors import require
from kvedge.targets.kinds import RUNNABLE, Kind
from kvedge.targets.spec import DEFAULT_KIND, DEFAULT_PAGE, DEFAULT_RECENT, DEFAULT_SINKS, PageRules


class WeightType(Enum):
    """How weights are stored in an artifact. The CPU engine computes in float32 with either."""

    FP32 = "fp32"
    FP16 = "fp16"

    @property
    def itemsize(self) -> int:
        """Bytes of a stored weight."""
        return 4 if self is WeightType.FP32 else 2


@dataclass(frozen=True, kw_only=True)
class CacheSettings:
    """The cache as asked for on the command line.

    Args:
        kind: bits of keys and values.
        window: keys that a query sees besides the sinks; None for all.
        sinks: first tokens that are never forgotten; recent: newest tokens that stay exact.
        page: tokens a page.

    Raises:
        KvedgeError: a kind that this version has no kernel for, or numbers that cannot work.
    """

    kind: Kind = DEFAULT_KIND
    window: int | None = None
    sinks: int = DEFAULT_SINKS
    recent: int = DEFAULT_RECENT
    page: int = DEFAULT_PAGE

    def __post_init__(self) -> None:
        known = ", ".join(kind.value for kind in RUNNABLE)
        name = self.kind.value
        require(self.kind in RUNNABLE, f"--kv {name} has no kernel yet", expected=f"one of {known}", got=name)
        layer_rules(None, self)

    def check_positions(self, max_positions: int) -> None:
        """Check window and sinks against the model's positions, before any long work.

        Raises:
            KvedgeError: together they are more.
        """
        layer_rules(None, self).check_positions(max_positions)


def layer_rules(native_window: int | None, settings: CacheSettings) -> PageRules:
    """Rules of a layer.

    A layer with a sliding window of its own keeps the smaller of both windows, and gets no sinks: what it
    forgets is part of the model.

    Args:
        native_window: the model's own window for this layer, the current token included; None for all.
        settings: what the user asked for.
    """
    windows = [window for window in (native_window, settings.window) if window is not None]
    return PageRules(
        page=settings.page,
        sinks=settings.sinks if native_window is None else 0,
        recent=settings.recent,
        window=min(windows, default=None),
        exact=settings.kind.is_exact,
    )
