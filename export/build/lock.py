"""One build at a time in an artifact's folder, and a folder that can be written, known before the work."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvedge.targets.engine_file import FOLDER
from kvedge.targets.errors import KvedgeError

_LOCK = ".lock"


@contextmanager
def building(folder: Path) -> Iterator[None]:
    """Hold the folder of an artifact's engines while the block runs.

    Raises:
        KvedgeError: it cannot be written, or another build holds it.
    """
    place = folder / FOLDER
    try:
        place.mkdir(exist_ok=True)
        lock = (place / _LOCK).open("w")
    except OSError as error:
        fix = "copy the artifact to where you may write"
        raise KvedgeError(f"engines in {place}", expected="a place to write", got=error.strerror, fix=fix) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise KvedgeError(f"engines in {place}", got="another build at work", fix="wait for it") from None
        try:
            yield
        finally:
            (place / _LOCK).unlink()
            with suppress(OSError):
                place.rmdir()  # only where it is empty
