"""Stand-ins of a Jetson's programs and files: scripts that print recorded lines, and a root of files."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from jetson_lines import MODEL, NV_TEGRA_RELEASE, NVPMODEL_CONF

STAND_IN = "_stand_in"


class StandIns:
    """A folder of programs that is all of PATH but for the system's own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder.mkdir()
        self.folder = folder
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def prints(self, name: str, text: str, *, code: int = 0) -> None:
        """A program of this name that prints a text and ends."""
        said = self.folder / f"{name}{STAND_IN}.txt"
        said.write_text(text)
        self._script(name, f"cat '{said}'\nexit {code}\n")

    def repeats(self, name: str, line: str) -> None:
        """A program that prints a line every 10 ms until it is ended, whatever interval it is asked for."""
        self._script(name, f"while :; do echo '{line}'; sleep 0.01; done\n")

    def ignores(self, name: str, line: str) -> None:
        """As repeats, and deaf to being asked to end."""
        self._script(name, f"trap '' TERM\nwhile :; do echo '{line}'; sleep 0.01; done\n")

    def waits(self, name: str) -> None:
        """A program that prints nothing and does not end."""
        self._script(name, "exec sleep 60\n")

    def pid(self, name: str) -> int | None:
        """The process of the program, None if it was never started."""
        file = self.folder / f"{name}{STAND_IN}.pid"
        return int(file.read_text()) if file.is_file() and file.read_text().strip() else None

    def arguments(self, name: str) -> str:
        """What it was started with."""
        return (self.folder / f"{name}{STAND_IN}.arguments").read_text().strip()

    def check_ended(self, name: str) -> None:
        """It was started, and soon is no more."""
        pid = self.pid(name)
        assert pid is not None, f"{name} was not started"
        for _ in range(200):
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.01)
        raise AssertionError(f"{name} still runs")

    def _script(self, name: str, body: str) -> None:
        script = self.folder / f"{name}{STAND_IN}"
        script.write_text(f"#!/bin/sh\necho \"$@\" > '{script}.arguments'\necho $$ > '{script}.pid'\n{body}")
        script.chmod(0o755)
        (self.folder / name).unlink(missing_ok=True)
        (self.folder / name).symlink_to(script)


def stand_in_root(folder: Path, *, mode: int = 2) -> Path:
    """The files of an Orin Nano with JetPack 6.2 that are read, in a power mode of this number."""
    files = {
        "proc/device-tree/model": MODEL,
        "etc/nv_tegra_release": NV_TEGRA_RELEASE,
        "etc/nvpmodel.conf": NVPMODEL_CONF,
        "var/lib/nvpmodel/status": f"pmode:{mode:04d}\n",
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
