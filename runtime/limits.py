"""How large pools and steps are: as asked for, or as the engine was built."""

from __future__ import annotations

from kvedge.targets.errors import require
from kvedge.targets.manifest import Manifest
from kvedge.targets.plan import DEFAULT_CHUNK
from kvedge.targets.profiles import StepLimits


def step_limits(
    manifest: Manifest, *, context: int | None = None, sessions: int | None = None, chunk: int | None = None
) -> StepLimits:
    """Sizes for an artifact; None for the usual ones: the model's positions, one session, 256 tokens.

    Raises:
        KvedgeError: more than the model has positions, or other sizes than a built engine has.
    """
    built, most = manifest.limits, manifest.cache.max_positions
    if built is None:
        context = most if context is None else context
        fine = context > 0 and (context <= most or manifest.cache.is_endless)
        require(fine, "context", expected=f"1 to the model's {most} positions", got=context)
        chunk = DEFAULT_CHUNK if chunk is None else chunk
        return StepLimits(context=context, chunk=chunk, sessions=1 if sessions is None else sessions)
    asked = (("context", context, built.context), ("sessions", sessions, built.sessions), ("chunk", chunk, built.chunk))
    fix = "leave it out, or export again for another size"
    for name, number, of in asked:
        require(number in (None, of), name, expected=f"{of}, which the engine was built for", got=number, fix=fix)
    return built
