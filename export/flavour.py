"""The graph that another engine than ONNX Runtime on the CPU runs, made of the one that was checked on the CPU."""

from __future__ import annotations

import os
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from kvedge.export.artifact import write_graph
from kvedge.export.timed import Timed
from kvedge.plugins.cuda.compile import require_compiler
from kvedge.targets import manifest as artifact
from kvedge.targets.devices import EngineKind, Target, find_target
from kvedge.targets.errors import require
from kvedge.targets.fit import Fit, require_room
from kvedge.targets.kinds import FLOAT_CHIPS
from kvedge.targets.plan import DEFAULT_CHUNK
from kvedge.targets.profiles import StepLimits, limits_plan
from kvedge.targets.spec import CacheSpec
from kvedge.targets.weight_sizes import WeightSizes


@dataclass(frozen=True, kw_only=True)
class Flavour:
    """What an artifact's graph is for.

    Args:
        target: name of the device that it is for; engine: what runs it.
        sms: compute capabilities x 10 of the device's chips, or of those asked for, where the engine takes kernels.
        context, chunk, sessions: sizes that a built engine has; context None for the model's positions.
    """

    target: str = "cpu"
    engine: EngineKind = EngineKind.ORT_CPU
    sms: tuple[int, ...] = ()
    context: int | None = None
    chunk: int | None = None
    sessions: int | None = None

    def chips(self, cache: CacheSpec) -> tuple[int, ...]:
        """Compute capabilities x 10 that kernels of a cache are compiled for: those that read all its layers."""
        return tuple(sm for sm in self.sms if all(layer.is_read_by(sm) for layer in cache.layers))

    def left_out(self, cache: CacheSpec) -> tuple[str, ...]:
        """What should be said of chips that get no kernels."""
        kept = self.chips(cache)
        chips = ", ".join(f"SM{sm}" for sm in self.sms if sm not in kept)
        return (f"no kernels for {chips}: fp8 pages need {FLOAT_CHIPS}",) if chips else ()

    def limits(self, cache: CacheSpec) -> StepLimits | None:
        """Sizes that the engine is built for.

        Raises:
            KvedgeError: more tokens than the model has positions.
        """
        if not self.engine.is_built:
            return None
        context, chunk = self.context or cache.max_positions, self.chunk or DEFAULT_CHUNK
        if not cache.is_endless:
            self.check_positions(cache.max_positions)
            chunk = min(chunk, context)
        return StepLimits(context=context, chunk=chunk, sessions=self.sessions or 1)

    def check_positions(self, most: int) -> None:
        """Check sizes against the model's positions, where not every layer has a window.

        Raises:
            KvedgeError: they are more.
        """
        context = most if self.context is None else self.context
        require(context <= most, "--context", expected=f"at most the model's {most} positions", got=context)
        chunk = 1 if self.chunk is None else self.chunk
        require(chunk <= context, "--chunk", expected=f"at most the context of {context} tokens", got=chunk)

    def require_room(self, cache: CacheSpec, weights: WeightSizes) -> None:
        """Refuse what the device's memory does not hold while it runs.

        Raises:
            KvedgeError: it is too much, of what.
        """
        limits = self.limits(cache)
        if limits is not None:
            plan, target = limits_plan(cache, limits), find_target(self.target)
            require_room(Fit(target=target, plan=plan, sizes=weights, memory=None, bandwidth=None))


def asked_flavour(device: Target | None, sms: tuple[int, ...], sizes: dict[str, int | None]) -> Flavour:
    """What the graph is for, by the device and by options.

    Raises:
        KvedgeError: a chip that the device does not have, a size below 1, or one that its engine chooses when it loads.
    """
    engine = device.engine if device else EngineKind.ORT_CPU
    chips = device.sms if device else ()
    for sm in sms:
        require(sm in chips, "--sm", expected=device.chips if device else "a --target with a GPU", got=f"SM{sm}")
    for name, number in sizes.items():
        if number is not None:
            fix = "give it when you load" if engine is EngineKind.ORT_CUDA else "leave it out"
            require(engine.is_built, name, expected="a --target whose engine is built", got=engine.label, fix=fix)
            require(number > 0, name, expected="at least 1", got=number)
    one = sizes["--sessions"] in (None, 1) or engine is not EngineKind.TENSORRT_RTX
    require(one, "--sessions", expected=f"1 for {engine.label}", got=sizes["--sessions"])
    context, chunk, sessions = sizes.values()
    require(
        engine.takes_kernels or not sms,
        "--sm",
        expected="it when you build: `kvedge build DIR --sm`",
        got=f"SM{max(sms, default=0)}",
    )
    taken = sms or chips if engine.takes_kernels else ()
    return Flavour(
        target=device.name if device else "cpu",
        engine=engine,
        sms=taken,
        context=context,
        chunk=chunk,
        sessions=sessions,
    )


def require_kernels(flavour: Flavour) -> None:
    """Refuse kernels that cannot be compiled here, before any work.

    Raises:
        KvedgeError: Triton is not installed, or is set to interpret.
    """
    if flavour.sms:
        require_compiler(f"kernels for {flavour.engine.label}")


def convert(folder: Path, cache: CacheSpec, flavour: Flavour, timed: Timed) -> tuple[str, ...]:
    """Turn the graph in a folder into the flavour's, with its kernels beside it; what should be said of that.

    Raises:
        KvedgeError: the flavour has no form for some of it, or a kernel cannot be compiled.
    """
    if flavour.engine is EngineKind.ORT_CPU:
        return ()
    model = ir.load(folder / artifact.GRAPH)
    with timed(f"for {flavour.engine.value}"):
        pairs = _rewrite(model, cache, flavour)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            write_graph(model, Path(scratch))
            for name in (artifact.WEIGHTS, artifact.GRAPH):
                os.replace(Path(scratch) / name, folder / name)
    sms = flavour.chips(cache)
    return (*flavour.left_out(cache), *(_write_kernels(folder, cache, pairs, sms, timed) if sms else ()))


def _rewrite(model: ir.Model, cache: CacheSpec, flavour: Flavour) -> dict[int, int]:
    """Rewrite the graph; pairs of the layers' key biases, by index."""
    from kvedge.export.gpu.graph import bias_pairs, make_gpu
    from kvedge.export.plain.graph import make_plain

    if flavour.engine is EngineKind.TENSORRT_RTX:
        limits = flavour.limits(cache)
        assert limits is not None
        make_plain(model, cache, limits)
        return {}
    pairs = bias_pairs(model, cache)
    make_gpu(model, cache)
    return pairs


def _write_kernels(
    folder: Path, cache: CacheSpec, pairs: dict[int, int], sms: tuple[int, ...], timed: Timed
) -> tuple[str, ...]:
    """Write bundles; what the compiler warned of, each once."""
    from kvedge.export.gpu.kernels import compile_kernels

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", UserWarning)
        for name, data in compile_kernels(cache, pairs, sms, timed).items():
            (folder / name).write_bytes(data)
    return tuple(dict.fromkeys(str(each.message) for each in found if each.category is UserWarning))
