"""Whether a build fits the memory that is free now: where it does not, the system ends it without a word."""

from __future__ import annotations

from pathlib import Path

from kvedge.targets.devices import Target
from kvedge.targets.errors import require
from kvedge.targets.fit import Fit
from kvedge.targets.manifest import Manifest
from kvedge.targets.plan import plan_memory
from kvedge.targets.units import size
from kvedge.targets.weight_sizes import artifact_weights

MEMINFO = Path("/proc/meminfo")


def peak_bytes(target: Target, manifest: Manifest) -> int:
    """Bytes of the host's memory that a build takes at most, by the estimate of `kvedge plan`."""
    limits = manifest.limits
    assert limits is not None
    plan = plan_memory(manifest.cache, context=limits.context, chunk=limits.chunk, sessions=limits.sessions)
    fit = Fit(target=target, plan=plan, sizes=artifact_weights(manifest), memory=None, bandwidth=None)
    assert fit.peak is not None
    return fit.peak.device if target.shared else fit.peak.host


def free_bytes() -> int | None:
    """Memory that is free or can be made free, with the free swap; None where the system does not say."""
    if not MEMINFO.is_file():
        return None
    lines = dict(line.split(":", 1) for line in MEMINFO.read_text(encoding="ascii").splitlines())
    return sum(1024 * int(lines[name].split()[0]) for name in ("MemAvailable", "SwapFree") if name in lines)


def require_memory(target: Target, manifest: Manifest) -> None:
    """Refuse a build that would not fit.

    Raises:
        KvedgeError: how much it takes, how much there is, and what helps.
    """
    needed, free = peak_bytes(target, manifest), free_bytes()
    fix = "close other programs, add swap, build on a larger board with the same chip, or try anyway with --force"
    enough = free is None or needed <= free
    got = "" if free is None else f"{size(free)} of memory and swap"
    require(enough, "building the engine", expected=f"{size(needed)} free, by estimate", got=got, fix=fix)
