"""Measure artifacts on this device: load, time to the first token, prefill, decode at several depths, memory.

What makes the numbers honest: every artifact has a process of its own, which warms up before, and that is reported
apart; artifacts take turns within every round, so a machine that gets slower shows in the spread of them all;
every round feeds other random tokens, the same to all; fewer than 16 decode steps are refused; and where a packed
cache is slower than an exact one, that is said.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kvedge.runtime.bandwidth import read_bandwidth, token_bytes
from kvedge.runtime.bench_worker import Loaded, Run
from kvedge.runtime.board_meter import BoardFacts, BoardMeter, BoardUse, board_meter
from kvedge.runtime.jetson import Jetson
from kvedge.runtime.peers import PeerModel
from kvedge.runtime.show import MIN_DECODE_STEPS
from kvedge.targets import manifest as artifact
from kvedge.targets.errors import KvedgeError, require
from kvedge.targets.manifest import Manifest

SHORT_DEPTHS = (0, 512, 2048)

Progress = Callable[[int], None]
"""Told how many tokens were just fed."""

_CPU, _GOVERNOR = Path("/proc/cpuinfo"), Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_PACKAGES = ("kvedge", "onnxruntime", "numpy")


@dataclass(frozen=True, kw_only=True)
class BenchJob:
    """What to measure.

    Args:
        folders: artifacts, compared with each other.
        depths: tokens in the cache before decoding starts; None for the usual ones that fit.
        gen: decode steps; runs: repetitions of everything.
        context: tokens of a cache without a window, None for the model's positions.
        threads: None for all cores.
        peers: other engines with the same model, in turn with the artifacts.

    Raises:
        KvedgeError: too little to measure.
    """

    folders: tuple[Path, ...]
    depths: tuple[int, ...] | None
    gen: int
    runs: int
    context: int | None
    threads: int | None
    peers: tuple[PeerModel, ...] = ()

    def __post_init__(self) -> None:
        few = f"at least {MIN_DECODE_STEPS}: fewer do not measure decoding"
        require(self.gen >= MIN_DECODE_STEPS, "--gen", expected=few, got=self.gen)
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
    """Speed at one depth; rates in tokens per second. There is no prefill rate at depth 0.

    `token_bytes` must be read for a decoded token, which takes `bandwidth_share` of what the machine reads in that
    time; both are known of artifacts only. `board` is a Jetson while it decoded, all runs together.
    """

    depth: int
    first_token_seconds: Spread
    prefill: Spread | None
    decode: Spread
    packed_pages_per_token: float
    resident_peak: int
    token_bytes: int | None = None
    bandwidth_share: float | None = None
    board: BoardUse | None = None


@dataclass(frozen=True, kw_only=True)
class ArtifactResult:
    """All about one artifact.

    `ram_rise` is by how many bytes a Jetson's RAM in use rose, at most, while it was loaded and warmed up: the GPU's
    memory is in there.
    """

    folder: Path
    manifest: Manifest
    loaded: Loaded
    depths: tuple[DepthResult, ...]
    ram_rise: int | None = None


@dataclass(frozen=True, kw_only=True)
class PeerResult:
    """All about another engine; `version` is for people."""

    model: PeerModel
    version: str
    depths: tuple[DepthResult, ...]


@dataclass(frozen=True, kw_only=True)
class PeerComparison:
    """An artifact against another engine, at one depth: how many times as fast, medians within rounds.

    There is no prefill ratio at depth 0.
    """

    folder: Path
    peer: str
    depth: int
    prefill_ratio: float | None
    decode_ratio: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A packed artifact against the first exact one of the same model, at one depth.

    Args:
        decode_ratio: decode rate over that of the exact one, median within rounds.
        same_tokens: greedy tokens in front of the first that differs, median of rounds; of `tokens`.
    """

    folder: Path
    against: Path
    depth: int
    decode_ratio: float
    same_tokens: float
    tokens: int


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """Everything that was measured; `bandwidth` is that of reading memory, in bytes per second; `board` a Jetson."""

    artifacts: tuple[ArtifactResult, ...]
    peers: tuple[PeerResult, ...]
    comparisons: tuple[Comparison, ...]
    peer_comparisons: tuple[PeerComparison, ...]
    threads: int
    bandwidth: float
    board: BoardFacts | None = None


Runs = dict[int, list[Run]]
"""Runs by depth."""


def run_bench(job: BenchJob, start: Callable[[int], Progress], jetson: Jetson | None = None) -> BenchResult:
    """Load and measure.

    Args:
        job: what to measure.
        start: given the number of tokens to come, returns who is told of them.
        jetson: the board, which is read meanwhile; None elsewhere.

    Raises:
        KvedgeError: not an artifact, or a depth that does not fit.
    """
    manifests = [artifact.read(folder) for folder in job.folders]
    depths = _fitting_depths(job, manifests)
    threads = job.threads or usable_cores()
    with ExitStack() as stack:
        meter = stack.enter_context(board_meter(jetson))
        # One after another, so that each has the machine to itself while it loads.
        loads = [_load(folder, job, stack, meter) for folder in job.folders]
        peers = [_load_peer(model, threads, stack) for model in job.peers]
        workers = [load.worker for load in loads] + [worker for worker, _ in peers]
        bandwidth = read_bandwidth(threads)
        progress = start(job.runs * len(workers) * sum(max(depth, 1) + job.gen for depth in depths))
        runs = _measure_all(workers, job, depths, progress)
    own, others = runs[: len(loads)], runs[len(loads) :]
    found = [_summaries(each, job.gen, meter) for each in runs]
    facts = zip(job.folders, manifests, loads, found[: len(loads)], strict=True)
    results = tuple(_artifact_result(*each, bandwidth) for each in facts)
    peer_facts = zip(job.peers, peers, found[len(loads) :], strict=True)
    return BenchResult(
        artifacts=results,
        peers=tuple(PeerResult(model=model, version=version, depths=each) for model, (_, version), each in peer_facts),
        comparisons=tuple(_comparisons(results, own)),
        peer_comparisons=tuple(_peer_comparisons(job, own, others)),
        threads=threads,
        bandwidth=bandwidth,
        board=None if jetson is None else meter.facts(jetson),
    )


@dataclass(frozen=True, kw_only=True)
class _Load:
    """A process that has loaded an artifact; `ram_rise` as ArtifactResult says."""

    worker: _Worker
    loaded: Loaded
    ram_rise: int | None


def _load(folder: Path, job: BenchJob, stack: ExitStack, meter: BoardMeter) -> _Load:
    began = time.monotonic()
    worker = stack.enter_context(_artifact_worker(folder, job))
    loaded = Loaded(**worker.hear(lambda _: None))
    return _Load(worker=worker, loaded=loaded, ram_rise=meter.ram_rise((began, time.monotonic())))


def _load_peer(model: PeerModel, threads: int, stack: ExitStack) -> tuple[_Worker, str]:
    """A process that has loaded another engine, and the engine's version."""
    worker = stack.enter_context(_peer_worker(model, threads))
    return worker, worker.hear(lambda _: None)["version"]


def _artifact_result(
    folder: Path, manifest: Manifest, load: _Load, found: tuple[DepthResult, ...], bandwidth: float
) -> ArtifactResult:
    depths = tuple(_with_bytes(depth, manifest, bandwidth) for depth in found)
    return ArtifactResult(folder=folder, manifest=manifest, loaded=load.loaded, depths=depths, ram_rise=load.ram_rise)


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def device() -> dict[str, str]:
    """What it was measured on, as far as the system tells."""
    found = {"machine": f"{platform.system()} {platform.machine()}"}
    lines = _CPU.read_text(encoding="utf-8").splitlines() if _CPU.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith(("model name", "Model"))]
    if names:
        found["cpu"] = names[0]
    if _GOVERNOR.is_file():
        found["power"] = _GOVERNOR.read_text(encoding="utf-8").strip()
    return found


def versions() -> dict[str, str]:
    """What the numbers were measured with."""
    present = [name for name in _PACKAGES if find_spec(name)]
    return {name: version(name) for name in present} | {"python": platform.python_version()}


def _context(manifest: Manifest, job: BenchJob) -> int:
    """Most tokens that a session of an artifact without a window has."""
    if job.context is not None:
        return job.context
    return manifest.limits.context if manifest.limits else manifest.cache.max_positions


def _fitting_depths(job: BenchJob, manifests: list[Manifest]) -> tuple[int, ...]:
    """Depths to measure, smallest first."""
    usual = set(SHORT_DEPTHS)
    windows = {rules.window for manifest in manifests for rules in manifest.cache.groups}
    if None not in windows:
        widest = max(window for window in windows if window)
        usual = {0, widest, 4 * widest}
    contexts = [_context(manifest, job) for manifest in manifests if not manifest.cache.is_endless]
    room = min(contexts) - job.gen if contexts else None
    for depth in job.depths or ():
        fits = room is None or depth <= room
        fix = "choose a smaller one, or export with --window"
        require(fits, "--depth", expected=f"at most {room} with {job.gen} decode steps", got=depth, fix=fix)
    fitting = {depth for depth in job.depths or usual if room is None or max(depth, 1) <= room}
    require(bool(fitting), "--gen", expected="less than the context", got=job.gen)
    return tuple(sorted(fitting))


class _Worker:
    """A process that measures one artifact."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process, self._folder = process, folder

    def measure(self, depth: int, gen: int, seed: list[int], progress: Progress) -> Run:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, and hear() says how
            self._process.stdin.write(json.dumps({"depth": depth, "gen": gen, "seed": seed}) + "\n")
            self._process.stdin.flush()
        return Run(**self.hear(progress))

    def hear(self, progress: Progress) -> dict[str, Any]:
        """The next record that is not about progress.

        Raises:
            KvedgeError: the process says so, or ended.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            record = json.loads(line)
            if "error" in record:
                raise KvedgeError(record["error"])
            if "done" not in record:
                return dict(record)
            progress(record["done"])
        code = self._process.wait()
        raise KvedgeError(f"measuring {self._folder}", expected="a result", got=f"a process that ended with {code}")


@contextmanager
def _worker(module: str, facts: dict[str, object], source: Path, stderr: int | None = None) -> Iterator[_Worker]:
    command = [sys.executable, "-m", f"kvedge.runtime.{module}", json.dumps(facts)]
    safe = os.environ | {"PYTHONSAFEPATH": "1"}  # as -P, which Python 3.10 does not know: no modules of this folder
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True, env=safe
    )
    try:
        yield _Worker(process, source)
    finally:
        process.kill()
        process.communicate()


def _artifact_worker(folder: Path, job: BenchJob) -> AbstractContextManager[_Worker]:
    facts: dict[str, object] = {"folder": str(folder), "context": job.context, "threads": job.threads}
    return _worker("bench_worker", facts, folder)


def _peer_worker(model: PeerModel, threads: int) -> AbstractContextManager[_Worker]:
    facts: dict[str, object] = {"peer": model.peer.name, "model": str(model.model), "threads": threads}
    # What other engines print there is advice to programmers; what goes wrong is a record.
    return _worker("peer_worker", facts, model.model, stderr=subprocess.DEVNULL)


def _measure_all(workers: list[_Worker], job: BenchJob, depths: tuple[int, ...], progress: Progress) -> list[Runs]:
    """Runs of each worker; within a round and depth they take turns."""
    runs: list[Runs] = [{depth: [] for depth in depths} for _ in workers]
    for number in range(job.runs):
        for depth in depths:
            for worker, found in zip(workers, runs, strict=True):
                found[depth].append(worker.measure(depth, job.gen, [number + 1, depth], progress))
    return runs


def _summaries(runs: Runs, gen: int, meter: BoardMeter) -> tuple[DepthResult, ...]:
    return tuple(
        DepthResult(
            depth=depth,
            first_token_seconds=_spread(run.first_token_seconds for run in each),
            prefill=_spread(depth / run.first_token_seconds for run in each) if depth else None,
            decode=_spread(gen / run.decode_seconds for run in each),
            packed_pages_per_token=sum(run.packed_pages for run in each) / (gen * len(each)),
            resident_peak=max(run.resident_peak for run in each),
            board=_board_use(each, gen, meter),
        )
        for depth, each in runs.items()
    )


def _board_use(runs: list[Run], gen: int, meter: BoardMeter) -> BoardUse | None:
    began = [(run.decode_began, run.decode_seconds) for run in runs if run.decode_began is not None]
    return meter.use([(at, at + seconds) for at, seconds in began], gen * len(began))


def _with_bytes(result: DepthResult, manifest: Manifest, bandwidth: float) -> DepthResult:
    read = token_bytes(manifest, result.depth)
    return replace(result, token_bytes=read, bandwidth_share=read * result.decode.median / bandwidth)


def _comparisons(results: tuple[ArtifactResult, ...], runs: list[Runs]) -> Iterator[Comparison]:
    """Every packed artifact against an exact one of its model and weights: of float16 if there is one."""
    exact: dict[tuple[str, str], int] = {}
    for number, result in sorted(enumerate(results), key=lambda each: each[1].manifest.kind.hot_dtype.itemsize):
        if result.manifest.is_exact:
            exact.setdefault(_model_of(result), number)
    for number, result in enumerate(results):
        other = exact.get(_model_of(result))
        if other is None or result.manifest.is_exact:
            continue
        for depth, own in runs[number].items():
            pairs = list(zip(own, runs[other][depth], strict=True))
            yield Comparison(
                folder=result.folder,
                against=results[other].folder,
                depth=depth,
                decode_ratio=statistics.median(b.decode_seconds / a.decode_seconds for a, b in pairs),
                same_tokens=statistics.median(_same(a.token_ids, b.token_ids) for a, b in pairs),
                tokens=len(own[0].token_ids),
            )


def _model_of(result: ArtifactResult) -> tuple[str, str]:
    return result.manifest.model.name, result.manifest.model.weights


def _peer_comparisons(job: BenchJob, own: list[Runs], others: list[Runs]) -> Iterator[PeerComparison]:
    for folder, ours in zip(job.folders, own, strict=True):
        for model, theirs in zip(job.peers, others, strict=True):
            for depth, runs in ours.items():
                pairs = list(zip(runs, theirs[depth], strict=True))
                prefill = statistics.median(b.first_token_seconds / a.first_token_seconds for a, b in pairs)
                yield PeerComparison(
                    folder=folder,
                    peer=model.label,
                    depth=depth,
                    prefill_ratio=prefill if depth else None,
                    decode_ratio=statistics.median(b.decode_seconds / a.decode_seconds for a, b in pairs),
                )


def _same(a: list[int], b: list[int]) -> int:
    """Tokens in front of the first that differs."""
    return next((number for number, (one, other) in enumerate(zip(a, b, strict=True)) if one != other), len(a))


def _spread(values: Iterable[float]) -> Spread:
    found = sorted(values)
    return Spread(median=statistics.median(found), low=found[0], high=found[-1])
