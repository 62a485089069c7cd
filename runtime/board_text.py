"""What `kvedge bench` says of a Jetson, and only there: columns, lines and records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from kvedge.targets.units import size

if TYPE_CHECKING:
    from kvedge.runtime.board_meter import BoardFacts, BoardUse
    from kvedge.runtime.jetson import Jetson

BOARD_HEADER = ("watts", "mJ a token")


def board_cells(use: BoardUse | None) -> tuple[str, ...]:
    """A row's part under BOARD_HEADER."""
    if use is None or use.mean_watts is None:
        return "-", "-"
    return f"{use.mean_watts:.1f} (peak {use.peak_watts:.1f})", f"{use.millijoules_per_token:.0f}"


def ram_text(ram_rise: int | None) -> str:
    """The end of a line about a load."""
    return "" if ram_rise is None else f"; the board's RAM in use rose by {size(ram_rise)}, the GPU's part included"


def board_lines(board: BoardFacts | None) -> Iterator[str]:
    """What it is and how it runs, what its watts are, and what could not be read."""
    from kvedge.runtime.board_meter import INTERVAL

    if board is None:
        return
    yield _board_text(board.jetson)
    if board.rails:
        rails = " + ".join(board.rails)
        yield f"watts are {rails}, all of the board, every {INTERVAL} ms while decoding; -: over between two readings"
    for note in board.notes:
        yield f"note: {note}"


def board_record(board: BoardFacts | None) -> dict[str, object]:
    """Its part of the result as JSON, nothing elsewhere."""
    from kvedge.runtime.board_meter import INTERVAL

    if board is None:
        return {}
    return {
        "jetson": asdict(board.jetson),
        "power": {"rails": list(board.rails), "interval_ms": INTERVAL, "notes": list(board.notes)},
    }


def _board_text(jetson: Jetson) -> str:
    clocks = {True: "clocks fixed", False: "clocks not fixed", None: "clocks unknown (jetson_clocks tells root only)"}
    software = "JetPack unknown" if jetson.jetpack is None else f"JetPack {jetson.jetpack}"
    release = "" if jetson.l4t is None else f" (Jetson Linux {jetson.l4t})"
    mode = jetson.power_mode or "unknown"
    return f"{jetson.model}, {software}{release}, power mode {mode}, {clocks[jetson.clocks_fixed]}"
