"""`kvedge build`."""

from __future__ import annotations

import json
import os
import resource
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType

import click

from kvedge.export.build.builder import EngineJob, build_engine
from kvedge.export.build.graph import graph_with_kernels
from kvedge.export.build.memory import require_memory
from kvedge.export.build.progress import Stop, shown
from kvedge.plugins.cuda_device import Device
from kvedge.plugins.engine_package import import_engine
from kvedge.targets import engine_file
from kvedge.targets import manifest as artifact
from kvedge.targets.devices import EngineKind, Target, find_target
from kvedge.targets.engine_file import Build
from kvedge.targets.errors import require
from kvedge.targets.manifest import Manifest
from kvedge.targets.profiles import profiles
from kvedge.targets.units import parse_size, size

_EXAMPLES = """
\b
Examples:
  kvedge build ./my-model-int3 --target jetson-orin-nano     on the board: TensorRT, for its chip
  kvedge build ./my-model-rtx --target rtx                   for the card of this machine
  kvedge build ./my-model-rtx --target rtx --sm 86           for another one; no GPU is needed
"""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What was built: bytes of the file, seconds, and the highest resident bytes of this process."""

    engine: str
    bytes: int
    seconds: float
    peak_bytes: int


@click.command(epilog=_EXAMPLES)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--target", required=True, help="The device, see `kvedge targets`: its limits, and what is refused.")
@click.option("--sm", type=int, help="Compute capability x 10.  [default: that of this machine's GPU]")
@click.option("--workspace", help="Most scratch that a layer may ask for, such as 256MB.  [default: the target's]")
@click.option("--force", is_flag=True, help="Build although memory seems too small.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def build(folder: Path, target: str, sm: int | None, workspace: str | None, force: bool, as_json: bool) -> None:
    """Build an engine from the artifact DIR, which was exported for an engine that is built.

    It is written into DIR/engines, named after library, chip and version, and runs with just these.
    """
    device, manifest = find_target(target), artifact.load(folder)
    _check(folder, manifest, device)
    if not force:
        require_memory(device, manifest)
    limit = device.workspace if workspace is None else parse_size("--workspace", workspace)
    package = import_engine(manifest.engine)
    made = Build(engine=manifest.engine, version=package.__version__, sm=_chip(device, sm))
    result = _build(folder, manifest, package, made, limit)
    print(json.dumps(asdict(result)) if as_json else _text(result))


def _check(folder: Path, manifest: Manifest, target: Target) -> None:
    what = f"artifact {folder}"
    fix = f"export it again with --target {target.name}"
    require(manifest.engine.is_built, what, expected="one whose engine is built", got=manifest.engine.label, fix=fix)
    same = manifest.engine is target.engine
    require(same, what, expected=f"one for {target.engine.label}", got=manifest.engine.label, fix=fix)


def _chip(target: Target, asked: int | None) -> int:
    """The chip to build for: TensorRT measures on the one that is there."""
    here = None if asked is not None and target.engine is EngineKind.TENSORRT_RTX else Device().sm
    sm = asked if here is None else here
    assert sm is not None
    require(asked in (None, sm), "--sm", expected=f"SM{sm}, which this machine has", got=f"SM{asked}")
    require(sm in target.sms, target.name, expected=target.chips, got=f"SM{sm}", fix="choose another --target")
    return sm


def _build(folder: Path, manifest: Manifest, package: ModuleType, made: Build, workspace: int | None) -> Result:
    path = engine_file.path_of(folder, made)
    cache = path.with_suffix(engine_file.TIMING_CACHE)
    assert manifest.limits is not None
    job = EngineJob(
        engine=made.engine,
        sm=made.sm,
        graph=_graph(folder, manifest, made),
        folder=folder,
        profiles=profiles(manifest.cache, manifest.limits),
        workspace=workspace,
        timing_cache=cache.read_bytes() if cache.is_file() else b"",
    )
    stop, start = Stop(), time.perf_counter()
    with stop.listening(), shown(stop, package) as monitor:
        built = build_engine(package, job, monitor)
    path.parent.mkdir(exist_ok=True)
    _replace(path, built.engine)
    if built.timing_cache:
        _replace(cache, built.timing_cache)
    engine_file.write_record(path, made, manifest)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Result(engine=str(path), bytes=len(built.engine), seconds=time.perf_counter() - start, peak_bytes=peak)


def _graph(folder: Path, manifest: Manifest, made: Build) -> bytes:
    """TensorRT for RTX takes the file as it is; TensorRT's plugin gets its kernels."""
    if made.engine is EngineKind.TENSORRT:
        return graph_with_kernels(folder, manifest, made.sm)
    return (folder / artifact.GRAPH).read_bytes()


def _replace(path: Path, data: bytes) -> None:
    """Write a file as a whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(data)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _text(result: Result) -> str:
    took = f"{size(result.bytes)} in {result.seconds:.0f} s, at most {size(result.peak_bytes)} of memory"
    return f"wrote {result.engine}: {took}"
