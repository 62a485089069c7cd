"""Commands in this process, and an artifact for them to stumble over."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from commands import Command, command_runner


@pytest.fixture
def kvedge(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs `kvedge` in this process."""
    return command_runner(monkeypatch, capfd)


@pytest.fixture
def broken(tiny, tmp_path: Path) -> Path:
    """A copy of the int3 artifact, to damage."""
    return shutil.copytree(tiny.int3, tmp_path / "broken")
