"""Commands in this process."""

from __future__ import annotations

import pytest
from commands import Command, command_runner


@pytest.fixture
def kvedge(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs `kvedge` in this process."""
    return command_runner(monkeypatch, capfd)
