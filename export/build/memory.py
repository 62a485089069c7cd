"""Whether a build fits the memory that is free now: where it does not, the system ends it without a word."""

from __future__ import annotations

from pathlib import Path

from kvedge.export.build.graph import Source
from kvedge.export.build.progress import Tell
from kvedge.targets.devices import Target
from kvedge.targets.errors import require
from kvedge.targets.fit import Fit
from kvedge.targets.manifest import Manifest
from kvedge.targets.profiles import limits_plan
from kvedge.targets.units import size
from kvedge.targets.weight_sizes import artifact_weights

_MARGIN = 1.15  # of a block's estimate: three blocks of SmolLM2-135M with int3 pages took 1.09 times as much
MEMINFO, SWAPS = Path("/proc/meminfo"), Path("/proc/swaps")


def peak_bytes(target: Target, manifest: Manifest, share: float = 1.0) -> int:
    """Bytes of the host's memory that the build of a block takes at most, by the estimate of `kvedge plan`.

    Args:
        share: of the weights that it has.
    """
    limits = manifest.limits
    assert limits is not None
    plan = limits_plan(manifest.cache, limits)
    fit = Fit(target=target, plan=plan, sizes=artifact_weights(manifest), memory=None, bandwidth=None)
    peak = fit.peak_of(share)
    assert peak is not None
    return peak.device if target.shared else peak.host


def free_bytes() -> int | None:
    """Memory that is free or can be made free, with the free swap on disks; None where the system does not say.

    Swap counts for as much as there is of memory at most: what the GPU holds is not swapped.
    """
    if not MEMINFO.is_file():
        return None
    lines = dict(line.split(":", 1) for line in MEMINFO.read_text(encoding="ascii").splitlines())
    available = 1024 * int(lines["MemAvailable"].split()[0])
    return available + min(available, _free_swap())


def _free_swap() -> int:
    """Bytes; compressed swap lies in the memory itself and adds none."""
    if not SWAPS.is_file():
        return 0
    lines = [line.split() for line in SWAPS.read_text(encoding="utf-8").splitlines()[1:]]
    return sum(1024 * (int(size) - int(used)) for name, _, size, used, *_ in lines if "zram" not in name)


def fewest_blocks(target: Target, source: Source, tell: Tell) -> int:
    """Blocks of layers whose builds, one after the other, fit the memory that is free.

    Raises:
        KvedgeError: not even those of single layers do.
    """
    free, one = free_bytes(), peak_bytes(target, source.manifest)
    if free is None or one <= free:
        return 1
    count = 2
    while count < source.cutter.most and _MARGIN * peak_bytes(target, source.manifest, source.share(count)) > free:
        count += 1
    require_memory(target, source, min(count, source.cutter.most))
    tell(f"in {count} blocks: {size(free)} free, one engine would take {size(one)}")
    return count


def require_memory(target: Target, source: Source, count: int) -> None:
    """Refuse a build in `count` blocks that would not fit.

    Raises:
        KvedgeError: how much it takes, how much there is, and what helps.
    """
    needed, free = peak_bytes(target, source.manifest, source.share(count)), free_bytes()
    fix = "close other programs, add swap, build on a larger board with the same chip, or try anyway with --force"
    enough = free is None or needed <= free
    got = "" if free is None else f"{size(free)} of memory and swap"
    what = "building the engine" if count == 1 else f"building the engine in {count} blocks"
    require(enough, what, expected=f"{size(needed)} free, by estimate", got=got, fix=fix)
