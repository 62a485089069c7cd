"""Artifacts of the tiny model for engines that are built."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from kvedge.export.flavour import Flavour, convert
from kvedge.targets import manifest as artifact
from kvedge.targets.devices import EngineKind
from kvedge.targets.manifest import describe


def for_engine(source: Path, folder: Path, engine: EngineKind, sms: tuple[int, ...] = ()) -> Path:
    """An artifact's copy for another engine, with files in the place of kernels."""
    shutil.copytree(source, folder)
    old = artifact.read(folder)
    flavour = Flavour(engine=engine, context=100, chunk=16)
    convert(folder, old.cache, flavour, lambda _: nullcontext())
    for sm in sms:
        (folder / f"kernels.0.sm{sm}.safetensors").write_bytes(b"\0kernels of %d\0" % sm)
    (folder / artifact.MANIFEST).unlink()
    files = {path.name: describe(path) for path in sorted(folder.iterdir())}
    artifact.write(folder, replace(old, engine=engine, limits=flavour.limits(old.cache), files=files))
    return folder
