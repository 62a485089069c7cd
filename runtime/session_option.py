"""The option of `run` and `chat` that keeps a conversation in a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvedge.targets.errors import KvedgeError, require

if TYPE_CHECKING:
    from kvedge.runtime.engine import Engine
    from kvedge.runtime.session import Session

session_option = click.option(
    "--session",
    "session_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Go on with the conversation in FILE if it is there, and write it back.",
)


def check_session_file(path: Path | None) -> None:
    """Refuse a file that could not be written in the end.

    Raises:
        KvedgeError: it is a folder, or in none.
    """
    if path is None:
        return
    what, folder = f"--session {path}", path.resolve().parent
    require(not path.is_dir(), what, expected="a file, there or not", got="a folder")
    require(folder.is_dir(), what, expected="a file in a folder that exists", got="no such folder")
    require(os.access(folder, os.W_OK | os.X_OK), what, expected="a folder that can be written", got="a read-only one")


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


@contextmanager
def keeping(session: Session, path: Path | None) -> Iterator[None]:
    """Write the conversation to the file after the block, also when the user stops it: what was read is kept."""
    try:
        yield
    except KeyboardInterrupt:
        if path is not None:
            with suppress(KvedgeError):  # the interrupted step may have left nothing that can be saved
                session.save(path)
        raise
    if path is not None:
        session.save(path)
