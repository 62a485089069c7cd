"""`kvedge build`."""

from __future__ import annotations

import json
import resource
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType

import click

from kvedge.export.build.builder import build_engine
from kvedge.export.build.graph import Source
from kvedge.export.build.lock import building
from kvedge.export.build.memory import fewest_blocks, require_memory
from kvedge.export.build.parts import PartsJob, build_parts
from kvedge.export.build.progress import Stop, shown
from kvedge.plugins.cuda_device import Device
from kvedge.plugins.engine_package import import_engine
from kvedge.targets import manifest as artifact
from kvedge.targets.devices import EngineKind, Target, find_target
from kvedge.targets.engine_file import Build
from kvedge.targets.errors import KvedgeError, require
from kvedge.targets.manifest import Manifest
from kvedge.targets.supports import require_chip
from kvedge.targets.units import parse_size, size

_EXAMPLES = """
\b
Examples:
  kvedge build ./my-model-int3 --target jetson-orin-nano     on the board: TensorRT, for its chip
  kvedge build ./my-model-int3 --target jetson-orin-nano --blocks 4    as four engines, which takes less memory
  kvedge build ./my-model-rtx --target rtx                   for the card of this machine
  kvedge build ./my-model-rtx --target rtx --sm 86           for another one; no GPU is needed
"""


_LEAST_WORKSPACE = 16_000_000  # with less, even small layers have no way to be computed


@dataclass(frozen=True, kw_only=True)
class Result:
    """What was built: files, their bytes, seconds, and the highest resident bytes of this process."""

    engines: tuple[str, ...]
    bytes: int
    seconds: float
    peak_bytes: int


@click.command(epilog=_EXAMPLES)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--target", required=True, help="The device, see `kvedge targets`: its limits, and what is refused.")
@click.option("--sm", type=int, help="Compute capability x 10.  [default: that of this machine's GPU]")
@click.option("--blocks", type=int, help="Engines, one for each block of layers.  [default: as few as memory allows]")
@click.option("--workspace", help="Most scratch that a layer may ask for, such as 256MB.  [default: the target's]")
@click.option("--force", is_flag=True, help="Build although memory seems too small: one engine, or --blocks.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def build(
    folder: Path,
    target: str,
    sm: int | None,
    blocks: int | None,
    workspace: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Build an engine from the artifact DIR, which was exported for an engine that is built.

    It is written into DIR/engines, named after library, chip and version, and runs with just these. A builder needs
    several times the memory of the weights: where that is not free, the layers are cut into blocks, whose engines are
    built one after the other. A build that was interrupted between two of them goes on there.
    """
    device, manifest = find_target(target), artifact.load(folder)
    _check(folder, manifest, device)
    source = Source(folder, manifest)
    count = _count(device, source, blocks, force)
    limit = device.workspace if workspace is None else _size(workspace)
    package = import_engine(manifest.engine)
    made = Build(engine=manifest.engine, version=package.__version__, sm=_chip(device, sm))
    result = _build(PartsJob(source=source, blocks=source.blocks(count), made=made, workspace=limit), package)
    print(json.dumps(asdict(result)) if as_json else _text(result))


def _size(workspace: str) -> int:
    limit = parse_size("--workspace", workspace)
    require(limit >= _LEAST_WORKSPACE, "--workspace", expected=f"{size(_LEAST_WORKSPACE)} or more", got=workspace)
    return limit


def _count(target: Target, source: Source, asked: int | None, force: bool) -> int:
    """How many blocks to build."""
    if asked is None and not force:
        return fewest_blocks(target, source, _tell)
    count = 1 if asked is None else asked
    if not force:
        require_memory(target, source, count)
    return count


def _tell(text: str) -> None:
    click.echo(text, err=True)


def _check(folder: Path, manifest: Manifest, target: Target) -> None:
    what = f"artifact {folder}"
    nothing = f"there is nothing to build: `kvedge run {folder}`"
    fix = f"export it again with --target {target.name}" if target.engine.is_built else nothing
    require(manifest.engine.is_built, what, expected="one whose engine is built", got=manifest.engine.label, fix=fix)
    same = manifest.engine is target.engine
    require(same, what, expected=f"one for {target.engine.label}", got=manifest.engine.label, fix=fix)
    require_chip(target, manifest, what)


def _chip(target: Target, asked: int | None) -> int:
    """The chip to build for: TensorRT measures on the one that is there."""
    any_chip = target.engine is EngineKind.TENSORRT_RTX
    try:
        here = None if asked is not None and any_chip else Device().sm
    except KvedgeError as error:
        fix = "name the chip to build for, such as --sm 89" if any_chip else "build on the device"
        raise KvedgeError("no GPU to build for", expected=target.chips, got=str(error), fix=fix) from error
    sm = asked if here is None else here
    assert sm is not None
    require(asked in (None, sm), "--sm", expected=f"SM{sm}, which this machine has", got=f"SM{asked}")
    require(sm in target.sms, target.name, expected=target.chips, got=f"SM{sm}", fix="choose another --target")
    return sm


def _build(job: PartsJob, package: ModuleType) -> Result:
    stop, start = Stop(), time.perf_counter()
    with building(job.source.folder), stop.listening(), shown(stop, package) as monitor:
        paths = build_parts(job, lambda one: build_engine(package, one, monitor), _tell)
    return Result(
        engines=tuple(map(str, paths)),
        bytes=sum(path.stat().st_size for path in paths),
        seconds=time.perf_counter() - start,
        peak_bytes=1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    )


def _text(result: Result) -> str:
    took = f"{result.seconds:.0f} s, at most {size(result.peak_bytes)} of memory"
    more = "" if len(result.engines) == 1 else f" and {len(result.engines) - 1} more"
    return f"wrote {result.engines[0]}{more}: {size(result.bytes)} in {took}"
