"""Engines of the blocks of a graph, built one after the other; an interrupted build goes on where it was."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from kvedge.export.build.blocks import Blocks
from kvedge.export.build.builder import BuiltEngine, EngineJob
from kvedge.export.build.graph import Source
from kvedge.export.build.progress import Tell
from kvedge.targets import engine_file
from kvedge.targets.engine_file import Build, Part, Record, make_part, part_path
from kvedge.targets.errors import KvedgeError
from kvedge.targets.hidden import Hidden
from kvedge.targets.profiles import Profile, profiles, token_range

BuildOne = Callable[[EngineJob], BuiltEngine]


@dataclass(frozen=True, kw_only=True)
class PartsJob:
    """What to build.

    Args:
        source: the artifact; blocks: its graph, cut.
        made: what engines are tied to.
        workspace: most bytes of scratch that a layer may ask for, None for the library's own limit.
    """

    source: Source
    blocks: Blocks
    made: Build
    workspace: int | None

    @property
    def record(self) -> Record:
        """Of no part yet."""
        graph = engine_file.source_digest(self.source.manifest, self.made)
        return Record(build=self.made, graph=graph, workspace=self.workspace, parts=(), hidden=self.blocks.hidden)

    def file(self, end: str) -> Path:
        """One of the files beside the engine."""
        return engine_file.file_of(self.source.folder, self.made, end)

    def part(self, number: int) -> Path:
        """The file of a block."""
        return part_path(self.source.folder, self.made, number, len(self.blocks.graphs))


def build_parts(job: PartsJob, build_one: BuildOne, tell: Tell) -> tuple[Path, ...]:
    """Build what is not there yet, then write the record; the engine's files.

    Args:
        build_one: the builder; tell: is told how far the work got, where it has several parts.

    Raises:
        KvedgeError: what the builder says.
    """
    log, count = _Progress(job), len(job.blocks.graphs)
    for number, graph in enumerate(job.blocks.graphs):
        start, path = time.perf_counter(), job.part(number)
        data = job.source.as_bytes(graph, job.made)
        source = hashlib.sha256(data).hexdigest()
        there = log.has(path, source)
        if not there:
            _build_part(job, (data, path), build_one)
            log.add(make_part(path, source))
            _give_memory_back()
        if count > 1:
            how = "is there" if there else f"{time.perf_counter() - start:.0f} s"
            tell(f"block {number + 1} of {count}: {how}")
    log.finish()
    return tuple(map(job.part, range(count)))


def _build_part(job: PartsJob, given: tuple[bytes, Path], build_one: BuildOne) -> None:
    data, path = given
    manifest, cache = job.source.manifest, job.file(engine_file.TIMING_CACHE)
    assert manifest.limits is not None
    ranges = profiles(manifest.cache, manifest.limits)
    built = build_one(
        EngineJob(
            engine=job.made.engine,
            sm=job.made.sm,
            graph=data,
            folder=job.source.folder,
            profiles={name: with_hidden(profile, job.blocks.hidden) for name, profile in ranges.items()},
            workspace=job.workspace,
            timing_cache=cache.read_bytes() if cache.is_file() else b"",
        )
    )
    path.parent.mkdir(exist_ok=True)
    _forget_engine(job, path)
    engine_file.replace_file(path, built.engine)
    if built.timing_cache:
        engine_file.replace_file(cache, built.timing_cache)


def with_hidden(profile: Profile, hidden: tuple[Hidden, ...]) -> Profile:
    """A profile with the ranges of what blocks hand on."""
    return profile | {value.name: token_range(profile, value.widths) for value in hidden}


class _Progress:
    """What is built, kept in a record of its own until it is all."""

    def __init__(self, job: PartsJob) -> None:
        self._job, self._path = job, job.file(engine_file.UNFINISHED)
        found = (_parts_of(path, job.record) for path in (job.file(engine_file.RECORD), self._path))
        self._earlier = {part.name: part for parts in found for part in parts}
        self._record = job.record

    def has(self, path: Path, source: str) -> bool:
        """Whether an earlier build, finished or not, made this part of the same graph."""
        part = self._earlier.get(path.name)
        if part is None or part.source != source or not engine_file.is_whole(self._job.source.folder, part):
            return False
        self.add(part)
        return True

    def add(self, part: Part) -> None:
        """Note a part that is there."""
        self._record = replace(self._record, parts=(*self._record.parts, part))
        engine_file.write_record(self._path, self._record)

    def finish(self) -> None:
        """Make the record that of the engine, and remove parts of others in its place."""
        os.replace(self._path, self._job.file(engine_file.RECORD))
        for path in engine_file.all_parts(self._job.source.folder, self._job.made):
            if path.name not in {part.name for part in self._record.parts}:
                path.unlink()


def _parts_of(path: Path, wanted: Record) -> tuple[Part, ...]:
    """Parts in an earlier build's record, if all else in it is as wanted."""
    try:
        found = engine_file.read_record(path)
    except KvedgeError:
        return ()
    return found.parts if replace(found, parts=()) == wanted else ()


def _forget_engine(job: PartsJob, path: Path) -> None:
    """Remove the record of an engine that has this file: it is about to be another one's."""
    record = job.file(engine_file.RECORD)
    with suppress(KvedgeError):
        if path.name in {part.name for part in engine_file.read_record(record).parts}:
            record.unlink()


def _give_memory_back() -> None:
    """Let the next build have what this one took: glibc keeps freed memory, and it is as much as a builder needs."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
