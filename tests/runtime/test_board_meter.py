"""What a Jetson drew, from lines that come at known times and from a stand-in of tegrastats."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from jetson_lines import RECORDED, TX2
from jetson_stand_ins import StandIns

from kvedge.runtime.board_meter import BoardMeter, board_meter
from kvedge.runtime.jetson import Jetson
from kvedge.targets.errors import KvedgeError

MIB = 1 << 20
BOARD = Jetson(model="NVIDIA Jetson", l4t="36.4.3", jetpack="6.2", power_mode="25W", clocks_fixed=None)
NANO, THOR = RECORDED[0], RECORDED[7]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIns:
    return StandIns(tmp_path / "programs", monkeypatch)


def line(milliwatts: int, ram: int, load: int | None = 50) -> str:
    gpu = "" if load is None else f"GR3D_FREQ {load}% "
    return f"RAM {ram}/7620MB {gpu}VDD_IN {milliwatts}mW/9999mW VDD_SOC 1mW/1mW"


def meter_of(*moments: tuple[float, str]) -> BoardMeter:
    """A meter that heard these lines at these seconds."""
    clock: Iterator[float] = iter([at for at, _ in moments])
    meter = BoardMeter(lambda: next(clock))
    meter.listen(text for _, text in moments)
    return meter


def test_means_and_peaks_within_spans() -> None:
    before, after = line(90_000, 7000), line(80_000, 7100)
    meter = meter_of(
        (1.0, before),
        (2.0, line(4000, 1000, 20)),
        (2.5, line(6000, 1500, 40)),
        (3.0, before),
        (4.2, line(8000, 1700, 90)),
        (9.0, after),
    )
    use = meter.use([(1.5, 2.75), (4.0, 4.75)], tokens=40)
    assert use is not None
    assert (use.readings, use.mean_watts, use.peak_watts) == (3, 6.0, 8.0)
    assert use.millijoules_per_token == pytest.approx(1000 * 6.0 * 2.0 / 40)
    assert (use.mean_ram, use.peak_ram) == (1400 * MIB, 1700 * MIB)
    assert use.mean_gpu_load == pytest.approx(0.5)


def test_a_reading_belongs_to_one_span_only() -> None:
    """What comes at the very end of one is not in the next as well."""
    meter = meter_of((2.0, line(4000, 1000)))
    assert meter.use([(1.0, 2.0)], 1) is not None
    assert meter.use([(2.0, 3.0)], 1) is None


def test_nothing_read_in_time() -> None:
    assert meter_of((1.0, line(4000, 1000))).use([(2.0, 3.0)], 16) is None
    assert meter_of().use([(2.0, 3.0)], 16) is None
    assert meter_of((1.0, line(4000, 1000))).use([], 16) is None


def test_a_line_without_load_or_known_rails() -> None:
    use = meter_of((1.0, line(4000, 1000, None)), (1.1, TX2)).use([(0.0, 2.0)], 10)
    assert use is not None
    assert (use.readings, use.mean_watts, use.mean_gpu_load) == (2, 4.0, 0.0)
    use = meter_of((1.0, TX2)).use([(0.0, 2.0)], 10)
    assert use is not None
    assert (use.mean_watts, use.peak_watts, use.millijoules_per_token) == (None, None, None)
    assert use.peak_ram == 3276 * MIB


def test_the_rise_of_ram() -> None:
    meter = meter_of(
        (1.0, line(1, 900)), (2.0, line(1, 1000)), (3.0, line(1, 1800)), (4.0, line(1, 1600)), (5.0, line(1, 3000))
    )
    assert meter.ram_rise((2.5, 4.5)) == 800 * MIB
    assert meter.ram_rise((0.5, 4.5)) is None, "nothing was read before"
    assert meter.ram_rise((3.1, 3.9)) is None, "nor meanwhile"
    assert meter.ram_rise((3.0, 4.5)) == 0, "others gave back more than this took"


def test_facts_name_the_rails() -> None:
    assert meter_of((1.0, NANO.line)).facts(BOARD).rails == ("VDD_IN",)
    assert meter_of((1.0, THOR.line)).facts(BOARD).rails == ("VIN",)
    agx = meter_of((1.0, RECORDED[2].line)).facts(BOARD)
    assert agx.rails == ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0") and agx.notes == ()


@pytest.mark.parametrize(
    ("lines", "note"),
    [
        ([], "printed nothing"),
        (["", "Segmentation fault"], "got 'Segmentation fault'"),
        (["RAM 3/4MB GR3D_FREQ 1%"], "names no power rails"),
        (["RAM 3/4MB GPU 12mW/12mW CV 3mW/3mW"], "but GPU, CV"),
    ],
)
def test_notes(lines: list[str], note: str) -> None:
    (found,) = meter_of(*((1.0 + at, text) for at, text in enumerate(lines))).facts(BOARD).notes
    assert note in found and found.startswith("tegrastats")


def test_it_listens_as_long_as_it_lasts(programs: StandIns) -> None:
    programs.repeats("tegrastats", NANO.line)
    began = time.monotonic()
    with board_meter(BOARD) as meter:
        time.sleep(0.1)
    use = meter.use([(began, time.monotonic())], 1)
    assert use is not None and use.readings >= 2
    assert (use.mean_watts, use.peak_ram) == (pytest.approx(NANO.watts), NANO.ram[0] * MIB)
    assert programs.arguments("tegrastats") == "--interval 200"
    assert meter.facts(BOARD).notes == ()
    programs.check_ended("tegrastats")


def test_the_first_line_comes_before_anything_is_measured(programs: StandIns) -> None:
    programs.repeats("tegrastats", NANO.line)
    with board_meter(BOARD) as meter:
        began = time.monotonic()
        time.sleep(0.1)
        assert meter.ram_rise((began, time.monotonic())) == 0


@pytest.mark.parametrize("error", [KvedgeError("damaged"), KeyboardInterrupt()])
def test_it_is_ended_when_something_fails(programs: StandIns, error: BaseException) -> None:
    programs.repeats("tegrastats", NANO.line)
    with pytest.raises(type(error)), board_meter(BOARD):
        raise error
    programs.check_ended("tegrastats")


def test_one_that_is_deaf_to_the_end_is_killed(programs: StandIns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvedge.runtime.board_meter._END_SECONDS", 0.2)
    programs.ignores("tegrastats", NANO.line)
    with board_meter(BOARD):
        pass
    programs.check_ended("tegrastats")


def test_without_the_program(programs: StandIns) -> None:
    with board_meter(BOARD) as meter:
        pass
    (note,) = meter.facts(BOARD).notes
    assert "cannot be started (No such file or directory)" in note


def test_one_that_ends_on_its_own(programs: StandIns) -> None:
    programs.prints("tegrastats", f"{NANO.line}\n", code=3)
    with board_meter(BOARD) as meter:
        time.sleep(0.1)
    facts = meter.facts(BOARD)
    assert facts.rails == ("VDD_IN",)
    assert [note for note in facts.notes if "ended on its own with 3" in note] == list(facts.notes)


def test_elsewhere_nothing_runs(programs: StandIns) -> None:
    programs.repeats("tegrastats", NANO.line)
    with board_meter(None) as meter:
        assert meter.use([(0.0, time.monotonic())], 1) is None
        assert meter.ram_rise((0.0, time.monotonic())) is None
    assert programs.pid("tegrastats") is None
