"""Measure an artifact on this device: load, prefill, decode at several depths, memory.

What makes the numbers honest: the engine warms up before, and that is reported apart; every run feeds other
random tokens; runs go round the depths, so that a machine that gets slower shows in the spread of them all;
fewer than 16 decode steps are refused.
"""

from __future__ import annotations

import os
import platform
import resource
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

from kvedge.runtime.engine import Engine, Row
from kvedge.runtime.sequence import Sequence as TokenSequence
from kvedge.runtime.show import MIN_DECODE_STEPS
from kvedge.targets import manifest as artifact
from kvedge.targets.errors import require
from kvedge.targets.manifest import Manifest

DEFAULT_DEPTHS = (0, 512, 2048)
ENGINE = "ONNX Runtime, CPU"

Progress = Callable[[int], None]
"""Told how many tokens were just fed."""

_STATUS = Path("/proc/self/status")
_PACKAGES = ("kvedge", "onnxruntime", "numpy")


@dataclass(frozen=True, kw_only=True)
class BenchJob:
    """What to measure.

    Args:
        folder: the artifact.
        depths: tokens in the cache before decoding starts; None for the usual ones that fit.
        gen: decode steps; runs: repetitions of everything.
        context: tokens of a cache without a window, None for the model's positions.
        threads: None for all cores.

    Raises:
        KvedgeError: too little to measure.
    """

    folder: Path
    depths: tuple[int, ...] | None
    gen: int
    runs: int
    context: int | None
    threads: int | None

    def __post_init__(self) -> None:
        enough = self.gen >= MIN_DECODE_STEPS
        require(
            enough,
            "--gen",
            expected=f"at least {MIN_DECODE_STEPS}: fewer do not measure decoding",
            got=self.gen,
        )
        require(self.runs >= 1, "--runs", expected="at least 1", got=self.runs)
        for depth in self.depths or ():
            require(depth >= 0, "--depth", expected="0 or more tokens", got=depth)


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Several measurements of one thing."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class DepthResult:
    """Speed at one depth, in tokens per second; `prefill` is None at depth 0."""

    depth: int
    prefill: Spread | None
    decode: Spread
    packed_pages_per_token: float


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """Everything that was measured; memory in bytes of resident memory of the process."""

    manifest: Manifest
    load_seconds: float
    warm_up_seconds: float
    threads: int
    resident_before: int
    resident_peak: int
    kv_planned: int
    kv_allocated: int
    fp16_kv: int
    depths: tuple[DepthResult, ...]


@dataclass(frozen=True)
class _Run:
    """One measurement at one depth."""

    prefill_seconds: float
    decode_seconds: float
    packed_pages: int


def run_bench(job: BenchJob, start: Callable[[int], Progress]) -> BenchResult:
    """Load and measure.

    Args:
        job: what to measure.
        start: given the number of tokens to come, returns who is told of them.

    Raises:
        KvedgeError: not an artifact, or a depth that does not fit.
    """
    depths = _fitting_depths(job)
    before, began = _resident(), time.perf_counter()
    engine = Engine.load(job.folder, context=job.context, threads=job.threads)
    load_seconds = time.perf_counter() - began
    warm_up_seconds = _warm_up(engine)
    runs = _measure_all(engine, job, depths, start(job.runs * sum(depth + job.gen for depth in depths)))
    return BenchResult(
        manifest=engine.manifest,
        load_seconds=load_seconds,
        warm_up_seconds=warm_up_seconds,
        threads=job.threads or usable_cores(),
        resident_before=before,
        resident_peak=_resident_peak(),
        kv_planned=engine.plan.kv_bytes,
        kv_allocated=engine.allocated_bytes,
        fp16_kv=engine.plan.fp16_bytes,
        depths=tuple(_summarize(depth, runs[depth], job.gen) for depth in depths),
    )


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def versions() -> dict[str, str]:
    """What the numbers were measured with."""
    found = {name: version(name) for name in _PACKAGES}
    return found | {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
    }


def _fitting_depths(job: BenchJob) -> tuple[int, ...]:
    """Depths to measure, smallest first."""
    cache = artifact.read(job.folder).cache
    if cache.is_endless:
        return tuple(sorted(set(job.depths or DEFAULT_DEPTHS)))
    room = (cache.max_positions if job.context is None else job.context) - job.gen
    for depth in job.depths or ():
        fix = "choose a smaller one, or export with --window"
        require(
            depth <= room,
            "--depth",
            expected=f"at most {room} with {job.gen} decode steps",
            got=depth,
            fix=fix,
        )
    fitting = {depth for depth in job.depths or DEFAULT_DEPTHS if depth <= room}
    require(bool(fitting), "--gen", expected=f"at most the context, {room + job.gen}", got=job.gen)
    return tuple(sorted(fitting))


def _warm_up(engine: Engine) -> float:
    """One short run that is not counted."""
    began, room = time.perf_counter(), engine.sequence().room
    depth = engine.plan.chunk if room is None else min(engine.plan.chunk, room - MIN_DECODE_STEPS)
    _measure(engine, max(0, depth), MIN_DECODE_STEPS, np.random.default_rng(0), lambda _: None)
    return time.perf_counter() - began


def _measure_all(engine: Engine, job: BenchJob, depths: Sequence[int], progress: Progress) -> dict[int, list[_Run]]:
    runs: dict[int, list[_Run]] = {depth: [] for depth in depths}
    for number in range(job.runs):
        for depth in depths:
            random = np.random.default_rng((number + 1, depth))
            runs[depth].append(_measure(engine, depth, job.gen, random, progress))
    return runs


def _measure(engine: Engine, depth: int, gen: int, random: np.random.Generator, progress: Progress) -> _Run:
    """Prefill `depth` random tokens into an empty sequence, then decode `gen` greedily."""
    sequence, vocab = engine.sequence(), engine.manifest.model.vocab_size
    ids = random.integers(0, vocab, depth + 1).tolist()
    try:
        began = time.perf_counter()
        _prefill(engine, sequence, ids[:-1], progress)
        prefilled = time.perf_counter()
        pages = _decode(engine, sequence, ids[-1], gen, progress)
        return _Run(prefilled - began, time.perf_counter() - prefilled, pages)
    finally:
        sequence.clear()


def _prefill(engine: Engine, sequence: TokenSequence, ids: list[int], progress: Progress) -> None:
    for first in range(0, len(ids), engine.plan.chunk):
        part = ids[first : first + engine.plan.chunk]
        engine.step([Row(sequence, part)], [len(part) - 1])
        progress(len(part))


def _decode(engine: Engine, sequence: TokenSequence, token: int, gen: int, progress: Progress) -> int:
    """Feed one token a step, each the likeliest after the last; packed pages read."""
    pages = 0
    for _ in range(gen):
        result = engine.step([Row(sequence, [token])], [0])
        token, pages = int(result.logits[0, 0].argmax()), pages + result.packed_pages_read
        progress(1)
    return pages


def _summarize(depth: int, runs: list[_Run], gen: int) -> DepthResult:
    return DepthResult(
        depth=depth,
        prefill=_spread(depth / run.prefill_seconds for run in runs) if depth else None,
        decode=_spread(gen / run.decode_seconds for run in runs),
        packed_pages_per_token=sum(run.packed_pages for run in runs) / (gen * len(runs)),
    )


def _spread(values: Iterable[float]) -> Spread:
    found = sorted(values)
    return Spread(median=statistics.median(found), low=found[0], high=found[-1])


def _resident() -> int:
    """Resident memory now; where the system does not say, its highest so far."""
    return _status("VmRSS") or _resident_peak()


def _resident_peak() -> int:
    """Highest resident memory of this process."""
    return _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _status(field: str) -> int | None:
    """Bytes of a line of Linux's process status, `VmRSS:  1234 kB`."""
    if not _STATUS.is_file():
        return None
    lines = _STATUS.read_text(encoding="utf-8").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), None)
