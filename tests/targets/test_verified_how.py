"""The page on Jetson says of every target how it was checked, and says the same as the targets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvedge.targets.devices import TARGETS, EngineKind, Target

PAGE = Path(__file__).parents[2] / "docs/jetson.md"
_, INTERPRETER, COMPILED, BUILT, RUN = range(5)


def table() -> dict[str, list[str]]:
    """Cells of a row by the target's name."""
    _, _, after = PAGE.read_text().partition("## Verified how")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in after.splitlines() if line[:2] == "| "]
    return {row[0].strip("`"): row for row in rows[1:]}


def chips(cell: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", cell)) if cell.startswith("SM") else ()


def test_one_row_for_each_target() -> None:
    assert list(table()) == [target.name for target in TARGETS]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_row_says_what_its_target_says(target: Target) -> None:
    row = table()[target.name]
    built, run = bool(chips(row[BUILT])), "yes" in row[RUN]
    if target.engine is EngineKind.ORT_CPU:
        assert run and target.engine.checked == "run"
    elif target.engine is EngineKind.TENSORRT_RTX:
        assert chips(row[BUILT].partition(", without")[0]) == target.sms
        assert target.engine.checked == "engine built" and not run
    else:
        assert chips(row[COMPILED]) == target.sms and row[INTERPRETER] == "yes"
        assert target.engine.checked == "compiled" and not (built or run)
