"""Engines that were built from an artifact's graph, and the record of each that says where it runs.

    engines/tensorrt-sm87-10.3.0.engine         the engine, or
    engines/tensorrt-sm87-10.3.0.1of3.engine    one for each block of layers, to run one after the other
    engines/tensorrt-sm87-10.3.0.json           its record, written last
    engines/tensorrt-sm87-10.3.0.unfinished     the record of what an interrupted build has made: the next one goes on
    engines/tensorrt-sm87-10.3.0.timing         what the builder measured: the next build is shorter
    engines/tensorrt-rtx-sm89-1.7.1.kernels     what TensorRT for RTX compiled when it loaded: the next load is shorter

They lie in the artifact's folder, but are not part of it: built on a device, for its chip and its TensorRT.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvedge.targets import manifest as artifact
from kvedge.targets import names
from kvedge.targets.devices import EngineKind
from kvedge.targets.errors import KvedgeError, require
from kvedge.targets.hidden import Hidden
from kvedge.targets.manifest import FileInfo, Manifest

FOLDER = "engines"
ENGINE, RECORD, UNFINISHED, TIMING_CACHE, KERNEL_CACHE = ".engine", ".json", ".unfinished", ".timing", ".kernels"

_BUILD = "build one on this device: `kvedge build {} --target TARGET`, see `kvedge targets`"


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


@dataclass(frozen=True, kw_only=True)
class Part:
    """One file of an engine.

    Args:
        name: of the file; info: its bytes.
        source: SHA-256 of the graph that it was built from.
    """

    name: str
    info: FileInfo
    source: str


@dataclass(frozen=True, kw_only=True)
class Record:
    """What is known of an engine.

    Args:
        build: what it is tied to; graph: digest of what it is built from (`source_digest`).
        workspace: most bytes of scratch that a layer might ask for, None for the library's own limit.
        parts: one for each block of layers, in order; hidden: what they hand on.
    """

    build: Build
    graph: str
    workspace: int | None
    parts: tuple[Part, ...]
    hidden: tuple[Hidden, ...]


@dataclass(frozen=True, kw_only=True)
class EngineFiles:
    """A whole engine: its files in the order in which they run, and what they hand on."""

    parts: tuple[Path, ...]
    hidden: tuple[Hidden, ...]


def source_digest(manifest: Manifest, build: Build) -> str:
    """Digest of what an engine is built from: graph, weights, cache, sizes, and the kernels for its chip."""
    of_chip = {name for name in manifest.files if (found := names.kernels_of(name)) and found[1] == build.sm}
    kernels = sorted(manifest.files[name].sha256 for name in of_chip)
    return hashlib.sha256("".join((artifact.fingerprint(manifest), *kernels)).encode()).hexdigest()


def part_path(folder: Path, build: Build, number: int = 0, count: int = 1) -> Path:
    """The file of one of `count` blocks, from 0, in an artifact folder, whether or not it is there."""
    which = "" if count == 1 else f".{number + 1}of{count}"
    return folder / FOLDER / f"{build.stem}{which}{ENGINE}"


def file_of(folder: Path, build: Build, end: str) -> Path:
    """Another file of an engine: RECORD, UNFINISHED, TIMING_CACHE or KERNEL_CACHE."""
    return folder / FOLDER / f"{build.stem}{end}"


def make_part(path: Path, source: str) -> Part:
    """An engine's file as it is now."""
    return Part(name=path.name, info=artifact.describe(path), source=source)


def is_whole(folder: Path, part: Part) -> bool:
    """Whether a part is there as it was built."""
    path = folder / FOLDER / part.name
    return path.is_file() and artifact.describe(path) == part.info


def all_parts(folder: Path, build: Build) -> list[Path]:
    """Files of engines in any number of blocks that are tied to the same."""
    name = re.compile(rf"{re.escape(build.stem)}(\.\d+of\d+)?{re.escape(ENGINE)}")
    return sorted(path for path in (folder / FOLDER).glob(f"*{ENGINE}") if name.fullmatch(path.name))


def replace_file(path: Path, data: bytes | memoryview) -> None:
    """Write a file as a whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(data)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_record(path: Path, record: Record) -> None:
    """Write a record."""
    body = asdict(record)
    body["build"]["engine"] = record.build.engine.value
    replace_file(path, (json.dumps(body, indent=1) + "\n").encode())


def read_record(path: Path) -> Record:
    """Read a record.

    Raises:
        KvedgeError: it is none.
    """
    try:
        return _parse(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise KvedgeError(f"{path}", expected="a record of an engine", got="something else") from None


def find_engine(folder: Path, manifest: Manifest, build: Build) -> EngineFiles:
    """The whole engine that was built from this artifact for this chip and library.

    Raises:
        KvedgeError: there is none, only such for others, one of another export, or a damaged one.
    """
    path, fix = file_of(folder, build, RECORD), _BUILD.format(folder)
    others = ", ".join(sorted(each.stem for each in (folder / FOLDER).glob(f"*{RECORD}"))) or "none"
    require(path.is_file(), f"engine of {folder}", expected=f"one for {build}", got=others, fix=fix)
    try:
        record = read_record(path)
    except KvedgeError as error:
        raise KvedgeError(f"{error}", fix=fix) from None
    same = record.graph == source_digest(manifest, build)
    require(same, f"{path}", expected="an engine of this artifact", got="one of another export", fix=fix)
    for part in record.parts:
        there, file = is_whole(folder, part), path.with_name(part.name)
        require(there, f"{file}", expected="the bytes that were built", got="others", fix=fix)
    return EngineFiles(parts=tuple(path.with_name(part.name) for part in record.parts), hidden=record.hidden)


BUILT, UNFINISHED_BUILD, DAMAGED, FOREIGN, LOST = "built", "unfinished", "damaged", "of another export", "no record"


def engine_states(folder: Path, manifest: Manifest) -> dict[str, str]:
    """Engines in an artifact's folder by name, and how each is."""
    place = folder / FOLDER
    found: dict[str, str] = {}
    for end, whole in ((RECORD, BUILT), (UNFINISHED, UNFINISHED_BUILD)):
        for path in sorted(place.glob(f"*{end}")):
            found.setdefault(path.name.removesuffix(end), _state(folder, path, manifest, whole))
    for path in sorted(place.glob(f"*{ENGINE}")):
        if not any(path.name.startswith(name) for name in found):
            found[path.name.removesuffix(ENGINE)] = LOST
    return found


def _state(folder: Path, path: Path, manifest: Manifest, whole: str) -> str:
    try:
        record = read_record(path)
    except KvedgeError:
        return DAMAGED
    if record.graph != source_digest(manifest, record.build):
        return FOREIGN
    return whole if all(is_whole(folder, part) for part in record.parts) else DAMAGED


def _parse(body: dict[str, Any]) -> Record:
    return Record(
        build=Build(**body["build"] | {"engine": EngineKind(body["build"]["engine"])}),
        graph=body["graph"],
        workspace=body["workspace"],
        parts=tuple(Part(**part | {"info": FileInfo(**part["info"])}) for part in body["parts"]),
        hidden=tuple(Hidden(**each | {"widths": tuple(each["widths"])}) for each in body["hidden"]),
    )
