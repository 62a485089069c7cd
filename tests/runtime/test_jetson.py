"""Noticing a Jetson, from files of a stand-in root and stand-ins of its programs."""

from __future__ import annotations

from pathlib import Path

import pytest
from jetson_lines import CLOCKS_SCALED, MODEL
from jetson_stand_ins import StandIns, stand_in_root

from kvedge.runtime import jetson
from kvedge.runtime.jetson import find_jetson

CLOCKS_FIXED = CLOCKS_SCALED.replace("MinFreq=115200 ", "MinFreq=2201600 ").replace(
    "MinFreq=306000000 ", "MinFreq=918000000 "
)
FOREIGN_CORE = "cpu2: Online=0 Governor=schedutil MinFreq=115200 MaxFreq=2201600 CurrentFreq=115200\n"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIns:
    return StandIns(tmp_path / "programs", monkeypatch)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return stand_in_root(tmp_path / "root")


def test_a_jetson(programs: StandIns, root: Path) -> None:
    programs.prints("nvpmodel", "NVPM WARN: fan mode is not set!\nNV Power Mode: 25W\n1\n")
    programs.prints("jetson_clocks", CLOCKS_SCALED)
    found = find_jetson(root)
    assert found is not None
    assert found.model == MODEL.rstrip("\0")
    assert (found.l4t, found.jetpack) == ("36.4.3", "6.2")
    assert found.power_mode == "25W", "what the program says goes before the file"
    assert found.clocks_fixed is False
    assert programs.arguments("nvpmodel") == "-q" and programs.arguments("jetson_clocks") == "--show"


@pytest.mark.parametrize(
    ("release", "l4t", "jetpack"),
    [
        ("# R39 (release), REVISION: 2.1, GCID: 46758480, BOARD: generic", "39.2.1", "7.2.1"),
        ("# R38 (release), REVISION: 4.0, GCID: 43443517", "38.4.0", "7.1"),
        ("# R35 (release), REVISION: 6.1", "35.6.1", "5"),
        ("# R36 (release), REVISION: 9.9", "36.9.9", "6"),
        ("# R77 (release), REVISION: 1.0", "77.1.0", None),
        ("something else", None, None),
    ],
)
def test_releases(programs: StandIns, root: Path, release: str, l4t: str | None, jetpack: str | None) -> None:
    (root / "etc/nv_tegra_release").write_text(release)
    found = find_jetson(root)
    assert found is not None and (found.l4t, found.jetpack) == (l4t, jetpack)


def test_no_jetson(programs: StandIns, tmp_path: Path) -> None:
    programs.prints("nvpmodel", "NV Power Mode: 25W\n1\n")
    assert find_jetson(tmp_path) is None
    (tmp_path / "proc/device-tree").mkdir(parents=True)
    (tmp_path / "proc/device-tree/model").write_text("Raspberry Pi 5 Model B Rev 1.0\0")
    assert find_jetson(tmp_path) is None
    assert programs.pid("nvpmodel") is None, "its programs are not asked elsewhere"


def test_in_a_container_the_model_is_enough(programs: StandIns, root: Path) -> None:
    for name in ("etc/nv_tegra_release", "etc/nvpmodel.conf", "var/lib/nvpmodel/status"):
        (root / name).unlink()
    found = find_jetson(root)
    assert found is not None
    assert (found.l4t, found.jetpack, found.power_mode, found.clocks_fixed) == (None, None, None, None)


def test_a_carrier_of_another_name(programs: StandIns, root: Path) -> None:
    (root / "proc/device-tree/model").write_text("Maker's Board\0")
    found = find_jetson(root)
    assert found is not None and found.model == "Maker's Board"


@pytest.mark.parametrize("mode", [(2, "MAXN_SUPER"), (3, "7W"), (9, "mode 9")])
def test_the_power_mode_from_its_file(programs: StandIns, tmp_path: Path, mode: tuple[int, str]) -> None:
    """Where the program is absent, or tells nothing."""
    root = stand_in_root(tmp_path / "other", mode=mode[0])
    first = find_jetson(root)
    programs.prints("nvpmodel", "NVPM ERROR: Error opening /sys/kernel/nvpmodel: 13\n", code=1)
    second = find_jetson(root)
    assert first is not None and second is not None
    assert first.power_mode == second.power_mode == mode[1]


def test_a_program_that_does_not_end(programs: StandIns, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jetson, "_SECONDS", 0.2)
    programs.waits("nvpmodel")
    found = find_jetson(root)
    assert found is not None and found.power_mode == "MAXN_SUPER"
    programs.check_ended("nvpmodel")


@pytest.mark.parametrize(
    ("shown", "fixed"),
    [
        (CLOCKS_FIXED, True),
        (CLOCKS_SCALED, False),
        (CLOCKS_FIXED.replace("MinFreq=918000000", "MinFreq=306000000"), False),
        (CLOCKS_FIXED + FOREIGN_CORE, True),
        (CLOCKS_FIXED.replace("GPU", "NPU"), None),
        ("Error: Run this script(/usr/bin/jetson_clocks) as a root user\n", None),
    ],
)
def test_clocks(programs: StandIns, root: Path, shown: str, fixed: bool | None) -> None:
    programs.prints("jetson_clocks", shown)
    found = find_jetson(root)
    assert found is not None and found.clocks_fixed is fixed
