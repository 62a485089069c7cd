"""Lines of tegrastats that real boards printed."""

from __future__ import annotations

import pytest
from jetson_lines import RECORDED, TX2, Recorded

from kvedge.runtime.tegrastats import read_line

MIB = 1 << 20


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda each: f"{each.board}, {each.software}")
def test_a_recorded_line(recorded: Recorded) -> None:
    reading = read_line(recorded.line)
    assert reading is not None
    assert (reading.ram_used, reading.ram_total) == (recorded.ram[0] * MIB, recorded.ram[1] * MIB)
    assert reading.gpu_load == recorded.gpu_load
    assert reading.watts == pytest.approx(recorded.watts, abs=1e-9)
    assert all(name.startswith("V") for name in reading.rails)


def test_all_rails_are_kept() -> None:
    reading = read_line(RECORDED[0].line)
    assert reading is not None
    assert reading.rails == {"VDD_IN": 12479, "VDD_CPU_GPU_CV": 4667, "VDD_SOC": 2817}


def test_spaces_do_not_matter() -> None:
    """Some ways of logging pad the columns."""
    line = RECORDED[4].line
    assert read_line(f"  {line.replace(' ', '    ')}\n") == read_line(line)


@pytest.mark.parametrize("line", ["", "\n", "tegrastats: permission denied", "CRAM 1/2MB", "RAM usage unknown"])
def test_what_is_no_reading(line: str) -> None:
    assert read_line(line) is None


@pytest.mark.parametrize("line", [TX2, "RAM 3/4MB GR3D_FREQ 1%", "RAM 3/4MB GPU 12mW/12mW CPU 3mW/3mW"])
def test_power_of_unknown_rails_is_not_guessed(line: str) -> None:
    reading = read_line(line)
    assert reading is not None and reading.ram_used > 0
    assert reading.watts is None
