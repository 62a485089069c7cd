"""A plan on a target, as `kvedge plan --target` prints it: lines for people, a record for programs."""

from __future__ import annotations

from collections.abc import Iterator

from kvedge.targets.devices import GIB, Target
from kvedge.targets.fit import BUILD_BYTES, BUILD_COPIES, STEP_ROWS, Fit, Peak, spare
from kvedge.targets.supports import artifact_objections, engine_note, objections
from kvedge.targets.units import size

_UNKNOWN = "unknown"
_COPIES = (
    f"estimate: {BUILD_BYTES} bytes a parameter (users report 3 to 4), at least {BUILD_COPIES} copies of the weights"
)


def target_record(target: Target) -> dict[str, object]:
    """What a target is, in bytes and bytes per second; None where it differs from machine to machine."""
    return {
        "target": target.name,
        "device": target.device,
        "engine": target.engine.label,
        "software": list(target.software),
        "checked": target.engine.checked,
        "sms": list(target.sms),
        "memory_bytes": target.memory,
        "shared": target.shared,
        "system_bytes": target.system,
        "bandwidth_bytes_per_second": target.bandwidth,
        "kinds": [kind.value for kind in target.kinds],
        "pages": None if target.pages is None else list(target.pages),
        "weights": [weights.value for weights in target.weights],
        "workspace_bytes": target.workspace,
        "pools": target.engine.pools,
    }


def fit_record(fit: Fit) -> dict[str, object]:
    """The same of a plan on it. `fits` and `build_fits` are None where a memory or the weights are unknown."""
    peak = fit.peak
    peak_bytes = None if peak is None else peak.device
    return {
        "target": fit.target.name,
        "available_bytes": fit.available,
        "system_bytes": fit.target.system,
        "weights_bytes": fit.weights,
        "kv_bytes": fit.kv,
        "scratch_bytes": fit.scratch,
        "library_bytes": fit.libraries,
        "running_bytes": fit.running,
        "fits": _is_enough(fit.available, fit.running),
        "peak_of": _peak_name(fit.target),
        "peak_bytes": peak_bytes,
        "peak_fits": _is_enough(fit.available, peak_bytes),
        "peak_host_bytes": peak and peak.host,
        "build_blocks": fit.blocks,
        "bandwidth_bytes_per_second": fit.bandwidth,
        "decode": [
            {"depth": depth, "token_bytes": fit.step_bytes(depth), "most_tokens_per_second": fit.most_tokens(depth)}
            for depth in (0, fit.full)
        ],
        "objections": _objections(fit),
        "engine_note": engine_note(fit.target),
    }


def fit_lines(fit: Fit) -> list[str]:
    """What the plan means on its target, one line a thing."""
    target = fit.target
    lines = [f"on {target.name} ({target.device}; {target.engine.label}, {target.chips}):"]
    lines += [f"  {name:14}{value:>10}  {note}".rstrip() for name, value, note in _rows(fit)]
    lines += [f"  cannot run there: {reason}" for reason in _objections(fit)]
    note = engine_note(target)
    return [*lines, f"  note: {note}"] if note else lines


def memory_text(target: Target) -> str:
    """Memory as it is sold: 8 GiB."""
    return "-" if target.memory is None else f"{target.memory // GIB} GiB"


def bandwidth_text(bandwidth: int | None) -> str:
    """102 GB/s."""
    return "-" if bandwidth is None else f"{bandwidth / 1e9:.4g} GB/s"


def _rows(fit: Fit) -> Iterator[tuple[str, str, str]]:
    target, plan = fit.target, fit.plan
    if target.memory is not None:
        shared = ", shared with the CPU" if target.shared else ""
        yield "memory", size(target.memory), f"{memory_text(target)}{shared}"
        yield (
            "system",
            size(target.system),
            "assumed: firmware, kernel, Ubuntu without a desktop (that takes 0.9 GB more)",
        )
    yield "weights", _size(fit.weights), fit.sizes.stored_as.value if fit.sizes else ""
    twice = (
        ""
        if target.engine.pools == 1
        else f"{target.engine.pools} copies of each pool: the engine does not write in place"
    )
    yield "KV cache", size(fit.kv), twice
    yield (
        "scratch",
        size(fit.scratch),
        f"estimate: {plan.sessions * plan.chunk} new tokens x {STEP_ROWS} rows of its width in fp32",
    )
    yield "libraries", size(fit.libraries), "estimate: the engine's code and state"
    yield "running", _size(fit.running), _verdict(fit.available, fit.running)
    yield from _peak_rows(fit)
    yield from _decode_rows(fit)


def _peak_rows(fit: Fit) -> Iterator[tuple[str, str, str]]:
    peak, name = fit.peak, _peak_name(fit.target)
    if peak is None:
        return
    if peak.device:
        verdict = f"{_verdict(fit.available, peak.device)}{_in_blocks(fit)}"
        yield name, size(peak.device), f"{verdict}; {_device_rule(fit, peak)}"
    if peak.host:
        rule = _COPIES if fit.target.engine.is_built else "the file that is read"
        yield name, size(peak.host), f"of the host's own memory; {rule}"


def _in_blocks(fit: Fit) -> str:
    """Where one engine cannot be built: how many can, one after the other."""
    if fit.blocks in (None, 1):
        return ""
    peak = fit.peak_of(1 / fit.blocks)
    assert peak is not None
    return f"; in {fit.blocks} blocks of layers about {size(peak.device)}, which fits"


def _decode_rows(fit: Fit) -> Iterator[tuple[str, str, str]]:
    for depth, cache in ((0, "an empty cache"), (fit.full, f"a full cache ({fit.plan.visible_tokens:,} tokens)")):
        read, most = fit.step_bytes(depth), fit.most_tokens(depth)
        if read is None:
            yield "decode", _UNKNOWN, "which weights a token reads is not known"
            return
        if most is None:
            yield "decode", _UNKNOWN, f"{cache}: {size(read)} a token; name the memory's bandwidth with --bandwidth"
        else:
            speed = bandwidth_text(fit.bandwidth)
            yield "decode at most", f"{most:.1f}", f"tokens/s with {cache}: {speed} / {size(read)}"


def _verdict(available: int | None, needed: int | None) -> str:
    left = spare(available, needed)
    if available is None or left is None:
        return "name what may be used with --memory" if available is None else ""
    if left < 0:
        return f"does not fit: {size(-left)} more than the {size(available)} available"
    return f"fits: {size(left)} of {size(available)} left"


def _is_enough(available: int | None, needed: int | None) -> bool | None:
    left = spare(available, needed)
    return None if left is None else left >= 0


def _peak_name(target: Target) -> str:
    return "engine build" if target.engine.is_built else "load"


def _device_rule(fit: Fit, peak: Peak) -> str:
    if not fit.target.engine.is_built:
        unpacked = fit.weights is not None and peak.device > fit.weights + fit.libraries
        return "weights as stored and unpacked, libraries" if unpacked else "weights, libraries"
    workspace = f"{size(fit.target.workspace or 0)} workspace, libraries"
    return f"{_COPIES}, {workspace}" if fit.target.shared else f"estimate: weights, {workspace}"


def _objections(fit: Fit) -> list[str]:
    if fit.manifest is not None:
        return artifact_objections(fit.target, fit.manifest)
    return objections(fit.target, fit.plan.cache, fit.sizes.stored_as if fit.sizes else None)


def _size(num_bytes: int | None) -> str:
    return _UNKNOWN if num_bytes is None else size(num_bytes)
