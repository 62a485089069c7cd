"""`kvedge bench` where a Jetson is found, with a stand-in of tegrastats, and where none is."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import Command, check_error, hear_interrupts
from jetson_lines import RECORDED
from jetson_stand_ins import StandIns, stand_in_root

from kvedge.runtime import jetson

NANO = RECORDED[0]
COLUMNS = ("watts", "mJ a token")
LONG = 1000
"""Decoded tokens that take longer than the stand-in's 10 ms from line to line, on any machine."""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIns:
    return StandIns(tmp_path / "programs", monkeypatch)


@pytest.fixture
def on_a_jetson(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, find = stand_in_root(tmp_path / "root"), jetson.find_jetson
    monkeypatch.setattr(jetson, "find_jetson", lambda: find(root))


def test_a_jetson_as_json(kvedge: Command, tiny, programs: StandIns, on_a_jetson: None) -> None:
    programs.repeats("tegrastats", NANO.line)
    result = kvedge("bench", tiny.int3, "--depth", 100, "--gen", LONG, "--runs", 1, "--json").json
    assert result["jetson"] == {
        "model": "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super",
        "l4t": "36.4.3",
        "jetpack": "6.2",
        "power_mode": "MAXN_SUPER",
        "clocks_fixed": None,
    }
    assert result["power"] == {"rails": ["VDD_IN"], "interval_ms": 200, "notes": []}
    (artifact,) = result["artifacts"]
    assert artifact["ram_rise"] == 0, "the stand-in's RAM does not change"
    (depth,) = artifact["depths"]
    board = depth["board"]
    assert board["readings"] >= 1
    assert [board["mean_watts"], board["peak_watts"]] == pytest.approx([NANO.watts, NANO.watts])
    assert board["millijoules_per_token"] == pytest.approx(1000 * NANO.watts / depth["decode"]["median"])
    assert board["peak_ram"] == NANO.ram[0] << 20 and board["mean_gpu_load"] == pytest.approx(0.63)
    programs.check_ended("tegrastats")


def test_a_jetson_as_text(kvedge: Command, tiny, programs: StandIns, on_a_jetson: None) -> None:
    programs.repeats("tegrastats", NANO.line)
    text = kvedge("bench", tiny.int3, "--depth", 100, "--gen", LONG, "--runs", 1).out
    for words in (*COLUMNS, "12.5 (peak 12.5)", "JetPack 6.2 (Jetson Linux 36.4.3), power mode MAXN_SUPER"):
        assert words in text, text
    assert "watts are VDD_IN" in text and "RAM in use rose by 0 B" in text and "clocks unknown" in text


def test_a_jetson_without_tegrastats(kvedge: Command, tiny, programs: StandIns, on_a_jetson: None) -> None:
    """The run goes on, and says so."""
    result = kvedge("bench", tiny.int3, "--depth", 0, "--gen", 16, "--runs", 1)
    assert result.code == 0
    header = result.out.splitlines()[0]
    assert all(column in header for column in COLUMNS)
    assert "note: tegrastats cannot be started" in result.out and "watts are" not in result.out


def test_elsewhere_nothing_is_said(
    kvedge: Command, tiny, tmp_path: Path, programs: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs.repeats("tegrastats", NANO.line)
    find = jetson.find_jetson
    monkeypatch.setattr(jetson, "find_jetson", lambda: find(tmp_path / "no such root"))
    options = ("bench", tiny.int3, "--depth", 0, "--gen", 16, "--runs", 1)
    text, result = kvedge(*options).out, kvedge(*options, "--json").json
    assert not [word for word in (*COLUMNS, "JetPack", "RAM in use", "note:") if word in text]
    assert not {"jetson", "power"} & set(result)
    assert "ram_rise" not in result["artifacts"][0] and "board" not in result["artifacts"][0]["depths"][0]
    assert programs.pid("tegrastats") is None


def test_an_error_ends_tegrastats(kvedge: Command, broken: Path, programs: StandIns, on_a_jetson: None) -> None:
    programs.repeats("tegrastats", NANO.line)
    weights = broken / "model.onnx.data"
    weights.write_bytes(weights.read_bytes()[:-1])
    check_error(kvedge("bench", broken), "damaged artifact")
    programs.check_ended("tegrastats")


def test_ctrl_c_ends_tegrastats(tiny, tmp_path: Path, programs: StandIns) -> None:
    programs.repeats("tegrastats", NANO.line)
    root = stand_in_root(tmp_path / "root")
    code = (
        "from pathlib import Path; from kvedge.runtime import cli, jetson; find = jetson.find_jetson; "
        f"jetson.find_jetson = lambda: find(Path({str(root)!r})); cli.main()"
    )
    command = [sys.executable, "-c", code, "bench", str(tiny.int3), "--gen", "100000", "--runs", "50"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=hear_interrupts
    ) as process:
        for _ in range(1000):
            if programs.pid("tegrastats") is not None:
                break
            time.sleep(0.01)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 130
    programs.check_ended("tegrastats")
