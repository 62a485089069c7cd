"""Engines that were built from an artifact's graph, and the record beside each that says where it runs.

    engines/tensorrt-sm87-10.3.0.engine     the engine
    engines/tensorrt-sm87-10.3.0.json       its record
    engines/tensorrt-sm87-10.3.0.timing     what the builder measured: the next build is shorter

They lie in the artifact's folder, but are not part of it: built on a device, for its chip and its TensorRT.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from kvedge.targets import manifest as artifact
from kvedge.targets.devices import EngineKind
from kvedge.targets.errors import KvedgeError, require
from kvedge.targets.manifest import FileInfo, Manifest

FOLDER = "engines"
TIMING_CACHE = ".timing"

_BUILD = "build one on this device: `kvedge build {}`"


@dataclass(frozen=True, kw_only=True)
class Build:
    """What an engine is tied to.

    Args:
        engine: the library; version: its version, as it says it.
        sm: compute capability of the chip x 10.
    """

    engine: EngineKind
    version: str
    sm: int

    @property
    def stem(self) -> str:
        """File name without its end."""
        return f"{self.engine.value}-sm{self.sm}-{self.version}"

    def __str__(self) -> str:
        return f"{self.engine.label} {self.version} on SM{self.sm}"


def path_of(folder: Path, build: Build) -> Path:
    """The engine's file in an artifact folder, whether or not it is there."""
    return folder / FOLDER / f"{build.stem}.engine"


def write_record(engine: Path, build: Build, manifest: Manifest) -> None:
    """Write the record beside an engine."""
    body = asdict(build) | {
        "engine": build.engine.value,
        "graph": _graph(manifest),
        "file": asdict(artifact.describe(engine)),
    }
    engine.with_suffix(".json").write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


def find_engine(folder: Path, manifest: Manifest, build: Build) -> Path:
    """The whole engine that was built from this artifact for this chip and library.

    Raises:
        KvedgeError: there is none, only such for others, one of another export, or a damaged one.
    """
    engine, fix = path_of(folder, build), _BUILD.format(folder)
    others = ", ".join(sorted(path.stem for path in (folder / FOLDER).glob("*.engine"))) or "none"
    record = engine.with_suffix(".json")
    there = engine.is_file() and record.is_file()
    require(there, f"engine of {folder}", expected=f"one for {build}", got=others, fix=fix)
    try:
        body = json.loads(record.read_text(encoding="utf-8"))
        graph, info = body["graph"], FileInfo(**body["file"])
    except (ValueError, KeyError, TypeError):
        raise KvedgeError(f"{record}", expected="a record of an engine", got="something else", fix=fix) from None
    same = graph == _graph(manifest)
    require(same, f"{engine}", expected="an engine of this artifact", got="one of another export", fix=fix)
    whole = artifact.describe(engine) == info
    require(whole, f"{engine}", expected="the bytes that were built", got="others", fix=fix)
    return engine


def _graph(manifest: Manifest) -> str:
    return artifact.fingerprint(manifest)
