"""The option of `run` and `chat` that keeps a conversation in a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvedge.targets.errors import require

if TYPE_CHECKING:
    from kvedge.runtime.engine import Engine
    from kvedge.runtime.session import Session

session_option = click.option(
    "--session",
    "session_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Go on with the conversation in FILE if it is there, and write it back at the end.",
)


def check_session_file(path: Path | None) -> None:
    """Refuse a file that could not be written in the end.

    Raises:
        KvedgeError: it is a folder, or in none.
    """
    if path is not None:
        require(not path.is_dir(), f"--session {path}", expected="a file, there or not", got="a folder")
        require(
            path.parent.is_dir(), f"--session {path}", expected="a file in a folder that exists", got="no such folder"
        )


def open_session(engine: Engine, path: Path | None) -> Session:
    """The conversation of a file, or a new one.

    Raises:
        KvedgeError: the file is damaged, or of another artifact.
    """
    if path is None or not path.exists():
        return engine.session()
    session = engine.restore(path)
    click.echo(f"(goes on with {path}: {session.num_tokens:,} tokens)", err=True)
    return session
