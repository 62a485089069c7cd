"""Runs `kvedge` commands in this process, and checks what they print."""

from __future__ import annotations

import io
import json
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvedge.runtime import cli


@dataclass(frozen=True)
class Result:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, object]:
        """Its output, if it ended well."""
        assert self.code == 0, self.err
        return json.loads(self.out)


Command = Callable[..., Result]


def command_runner(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """What runs `kvedge` with arguments and standard input."""

    def call(*arguments: object, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "argv", ["kvedge", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capfd.readouterr()
        return Result(code, out, err)

    return call


def check_error(result: Result, *words: str) -> None:
    """One line on stderr with these words, nothing on stdout, exit code 2."""
    assert result.code == 2, result
    assert result.out == ""
    assert result.err.startswith("error: ") and result.err.count("\n") == 1, result.err
    for word in words:
        assert word in result.err


def check_last_error(result: Result, *words: str) -> None:
    """As check_error, below the lines that show how far the work got."""
    lines = result.err.splitlines(keepends=True)
    for line in lines[:-1]:
        assert re.fullmatch(r"\w+( \w+)? +[\d.]+ s\n", line), result.err
    check_error(Result(result.code, result.out, lines[-1]), *words)


def hear_interrupts() -> None:
    """For a child before it runs: what a shell starts in the background, these tests too, is made deaf to Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def listing(folder: Path) -> list[Path]:
    """Everything in a folder."""
    return sorted(folder.rglob("*"))
