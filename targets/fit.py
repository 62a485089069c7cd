"""Whether a planned cache and its weights fit a target's memory, and how fast its bandwidth lets it decode.

    available    memory - what the system keeps, or less where the user allows less
    running      weights + page pools + scratch + libraries
    scratch      new tokens a step, of all sessions, x 16 rows as wide as the widest layer's queries, in fp32: residual,
                 norm, queries, keys and values, output, and three rows of an MLP four times as wide. An estimate; what
                 attention needs of its own takes the MLP's place.
    libraries    an estimate too: Python, numpy, ONNX Runtime and a tokenizer took 55 to 120 MB on x86-64; TensorRT's
                 and CUDA's about 600 MiB (an NVIDIA engineer, forum thread 56741)
    decode       at most bandwidth / (weights + hot and packed pages that a token reads) tokens a second, in one
                 session; weights that stay in a processor's cache are read faster

The most memory is needed before the first token.

    engine build   4 bytes a parameter: users report 3 to 4 (TensorRT-Edge-LLM, issue 30: 32 billion did not fit into
                   128 GB); at least three copies of the weights: NVIDIA names two in the host's memory, network and
                   engine, and tactics are timed with a third on the device. The layers' workspace and the libraries
                   come on top. With a card of its own memory, copies in the host's do not count there.
    ... for RTX    TensorRT for RTX builds without a card, and keeps 4 copies of the weights (two of them for a profile
                   each), 280 MiB of libraries, and 12 MiB a layer, or 50 MiB where it packs, for the graph: an estimate
                   from builds of SmolLM2-135M in fp16 (257 MiB) and of 1 to 12 layers alone.
    ... in blocks  one after the other: weights and layers of the largest block, workspace and libraries.
    load           ONNX Runtime: the weights once, fp16 ones on the CPU as stored and unpacked at a time (222 million
                   weights: files of 848, 424 and 239 MiB in fp32, fp16 and int8 peaked at 911, 1124 and 270 MiB).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvedge.targets.devices import EngineKind, Target
from kvedge.targets.errors import KvedgeError
from kvedge.targets.manifest import Manifest
from kvedge.targets.plan import MemoryPlan, seen_bytes
from kvedge.targets.settings import WeightType
from kvedge.targets.units import size
from kvedge.targets.weight_sizes import WeightSizes

STEP_ROWS = 16
BUILD_BYTES = 4  # a parameter
BUILD_COPIES = 3  # of the weights, two of them in the host's memory
RTX_COPIES = 4
RTX_LIBRARIES = 280 << 20
RTX_LAYER, RTX_PACKED_LAYER = 12 << 20, 50 << 20
_FLOAT = 4  # bytes: what lies between products is float32 on every engine
_CPU_LIBRARIES = 100_000_000
_GPU_LIBRARIES = 600 << 20


@dataclass(frozen=True, kw_only=True)
class Peak:
    """Bytes that are needed before the first token: while an engine is built, or while the model is loaded.

    Args:
        device: of the target's memory; host: of another memory that the host has beside it.
    """

    device: int
    host: int


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A plan on a target, in bytes; what depends on unknown weights or an unknown memory is None.

    Args:
        target: the device; plan: the cache; sizes: the weights.
        memory: bytes that may be used at most, None for all that the target has.
        bandwidth: bytes per second, None where nobody knows.
        manifest: of the artifact that is planned, None for a model that is not exported yet.
    """

    target: Target
    plan: MemoryPlan
    sizes: WeightSizes | None
    memory: int | None
    bandwidth: int | None
    manifest: Manifest | None = None

    @property
    def available(self) -> int | None:
        """Memory for all that follows."""
        limits = [] if self.memory is None else [self.memory]
        if self.target.memory is not None:
            limits.append(self.target.memory - self.target.system)
        return min(limits, default=None)

    @property
    def weights(self) -> int | None:
        """Weights in memory."""
        return None if self.sizes is None else round(self.sizes.stored * self._unpacking)

    @property
    def kv(self) -> int:
        """Page pools, each as often as the engine keeps it."""
        return self.target.engine.pools * self.plan.kv_bytes

    @property
    def scratch(self) -> int:
        """Tensors of the largest step."""
        width = max(layer.heads * layer.head_dim for layer in self.plan.cache.layers)
        return self.plan.sessions * self.plan.chunk * STEP_ROWS * width * _FLOAT

    @property
    def libraries(self) -> int:
        """Code and state of the engine."""
        return _CPU_LIBRARIES if self.target.engine is EngineKind.ORT_CPU else _GPU_LIBRARIES

    @property
    def running(self) -> int | None:
        """All of it, while tokens are made."""
        return None if self.weights is None else self.weights + self.kv + self.scratch + self.libraries

    @property
    def peak(self) -> Peak | None:
        """Engine build or load."""
        return self.peak_of(1.0)

    def peak_of(self, share: float) -> Peak | None:
        """Build of the engine of a block of layers that has this share of the weights; load, where none is built."""
        if self.sizes is None or self.weights is None:
            return None
        if self.target.engine is EngineKind.TENSORRT_RTX:
            return Peak(device=0, host=_build_for_rtx(self.plan, self.sizes, share))
        if self.target.engine.is_built:
            return _build(self.target, self.sizes, self.libraries, share)
        on_cpu = self.target.engine is EngineKind.ORT_CPU
        unpacked_from = self.sizes.stored if on_cpu and self.sizes.stored_as is WeightType.FP16 else 0
        return Peak(device=self.weights + unpacked_from + self.libraries, host=0 if on_cpu else self.sizes.stored)

    @property
    def blocks(self) -> int | None:
        """Least number of blocks of layers whose builds fit, one after the other; None where none is known to.

        Blocks count as equal: a tied embedding, which two of them have, is left out.
        """
        for count in range(1, len(self.plan.cache.layers) + 1):
            peak = self.peak_of(1 / count) if self.target.engine.is_built else None
            if peak and peak.device and self.available is not None and peak.device <= self.available:
                return count
        return None

    @property
    def left_for_pools(self) -> int | None:
        """Bytes of one set of page pools that fit beside all else; weights of unknown size count as none."""
        if self.available is None:
            return None
        others = (self.weights or 0) + self.scratch + self.libraries
        return max(0, self.available - others) // self.target.engine.pools

    def step_bytes(self, depth: int) -> int | None:
        """Bytes that one decoded token must read with `depth` tokens in its cache."""
        if self.sizes is None or self.sizes.step is None:
            return None
        return round(self.sizes.step * self._unpacking) + seen_bytes(self.plan.cache, depth)

    def most_tokens(self, depth: int) -> float | None:
        """Decoded tokens a second at most, in one session, with `depth` tokens in its cache."""
        read = self.step_bytes(depth)
        return None if read is None or self.bandwidth is None else self.bandwidth / read

    @property
    def full(self) -> int:
        """Tokens in a full cache before the last one that fits, or that still changes anything."""
        return self.plan.context - 1

    @property
    def _unpacking(self) -> float:
        on_cpu = self.target.engine is EngineKind.ORT_CPU
        return self.sizes.unpacking if self.sizes is not None and on_cpu else 1.0


def spare(available: int | None, needed: int | None) -> int | None:
    """Bytes left over, negative if they are too few; None where one of them is unknown."""
    return None if available is None or needed is None else available - needed


def require_room(fit: Fit) -> None:
    """Refuse what the target's memory does not hold while it runs; an unknown memory holds all.

    Raises:
        KvedgeError: how much it takes, and of what.
    """
    left = spare(fit.available, fit.running)
    if left is None or left >= 0:
        return
    assert fit.available is not None and fit.running is not None and fit.weights is not None
    others = f"{size(fit.kv)} of KV cache, {size(fit.scratch)} of scratch, {size(fit.libraries)} of libraries"
    raise KvedgeError(
        f"{fit.target.name} cannot hold it",
        expected=f"at most {size(fit.available)}, the rest of its memory is the system's",
        got=f"{size(fit.running)}: {size(fit.weights)} of weights, {others}",
        fix="take a smaller --context, --window or --chunk, fewer --sessions or bits; `kvedge plan --target` says more",
    )


def _build(target: Target, sizes: WeightSizes, libraries: int, share: float) -> Peak:
    """Peak of an engine's build."""
    assert target.workspace is not None
    in_all = round(share * max(BUILD_BYTES * sizes.parameters, BUILD_COPIES * sizes.stored))
    if target.shared:
        return Peak(device=in_all + target.workspace + libraries, host=0)
    return Peak(device=round(share * sizes.stored) + target.workspace + libraries, host=in_all)


def _build_for_rtx(plan: MemoryPlan, sizes: WeightSizes, share: float) -> int:
    """The host's memory at the peak of a build for TensorRT for RTX."""
    layers = sum(RTX_PACKED_LAYER if layer.rules.packs else RTX_LAYER for layer in plan.cache.layers)
    return round(share * (RTX_COPIES * sizes.stored + layers)) + RTX_LIBRARIES
