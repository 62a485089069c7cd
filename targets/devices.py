"""The devices that artifacts are made for: one record each, and where its numbers come from.

Boards (peak bandwidths, as the modules' data sheets print them; a power mode may give less)

    Orin Nano     DS-11105-001: 8 GB 128-bit 68 GB/s, 4 GB 64-bit 34 GB/s. The Super power modes of JetPack 6.2 and
                  later clock the 8 GB memory at 3199 instead of 2133 MHz: "up to 102 GB/s" (developer kit's user
                  guide), and by the same clocks the 4 GB one at 51 GB/s.
    Orin NX       DS-10712-001: 8 and 16 GB, 102 GB/s.
    AGX Orin      DS-10662-001: 32 and 64 GB, 256-bit, up to 204.8 GB/s.
    Thor          NVIDIA's product page: T5000 128 GB and T4000 64 GB, LPDDR5X, 273 GB/s; compute capability 11.0.

Software: JetPack 6.2, for Orin, has TensorRT 10.3 and CUDA 12.6; JetPack 7.0 and 7.1, for Thor, TensorRT 10.13 and
CUDA 13.0; JetPack 7.2, for both, TensorRT 10.16 and CUDA 13.2.

What the system keeps of a board's memory is an assumption: 1.3 GiB, or 5 % where that is more. An Orin Nano of
8 GiB shows 7.3 to its system, of which 0.55 are in use without a desktop (dusty-nv/jetson-containers, issue 342); a
desktop takes about 0.8 GiB more.

Weights are those that each engine multiplies without unpacking all of them first: TensorRT has integer weights of
4 bits in a float product, TensorRT for RTX of 4 and 8 (its support matrix; not before SM86).

Pages of a GPU are powers of two from 16 on: a tensor core takes 16 rows, a Triton tile a power of two.

The builder's workspace is limited to 1/16 of a board's memory and to 4 GiB, because TensorRT's own limit is all of the
memory, which the host shares; on a card of unknown size to 1 GiB, on any Orin to what its smallest has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from kvedge.targets.errors import KvedgeError
from kvedge.targets.kinds import Kind
from kvedge.targets.settings import WeightType

GIB = 1 << 30
_SYSTEM_BYTES = 13 * GIB // 10
_SYSTEM_SHARE = 20  # one part in so many
_WORKSPACE_SHARE = 16
_MOST_WORKSPACE = 4 * GIB
_CARD_WORKSPACE = GIB


class EngineKind(Enum):
    """What executes the graph."""

    ORT_CPU = "ort-cpu"
    ORT_CUDA = "ort-cuda"
    TENSORRT = "tensorrt"
    TENSORRT_RTX = "tensorrt-rtx"

    @property
    def label(self) -> str:
        """Its name for people."""
        return _LABELS[self]

    @property
    def checked(self) -> str:
        """How far this version was tried with it: run, engine built (on no GPU), or compiled (only)."""
        return _CHECKED[self]

    @property
    def is_built(self) -> bool:
        """Whether an engine is built from the graph before it runs."""
        return self in (EngineKind.TENSORRT, EngineKind.TENSORRT_RTX)

    @property
    def takes_kernels(self) -> bool:
        """Whether kvedge's GPU kernels read its cache, compiled for each chip."""
        return self in (EngineKind.ORT_CUDA, EngineKind.TENSORRT)

    @property
    def pools(self) -> int:
        """Copies of each page pool: 2 where the engine cannot write in place."""
        return 2 if self is EngineKind.TENSORRT_RTX else 1


_LABELS = {
    EngineKind.ORT_CPU: "ONNX Runtime (CPU)",
    EngineKind.ORT_CUDA: "ONNX Runtime (CUDA)",
    EngineKind.TENSORRT: "TensorRT",
    EngineKind.TENSORRT_RTX: "TensorRT for RTX",
}
_CHECKED = {
    EngineKind.ORT_CPU: "run",
    EngineKind.ORT_CUDA: "compiled",
    EngineKind.TENSORRT: "compiled",
    EngineKind.TENSORRT_RTX: "engine built",
}


@dataclass(frozen=True, kw_only=True)
class Target:
    """One device, or one kind of device.

    Args:
        name: for the command line; device: for people.
        engine: what executes the graph there; software: versions that it comes in.
        sms: compute capabilities x 10, empty without a GPU.
        memory: bytes, None where it differs from machine to machine; shared: one memory for CPU and GPU.
        system: bytes of it that firmware and operating system keep, an assumption.
        bandwidth: bytes per second at most, None where it differs from machine to machine.
        pages: tokens a page, None for any multiple of 8.
        weights: how weights may be stored, the usual first.
        workspace: most bytes of scratch that a layer may ask of the engine's builder; None where nothing is built.
    """

    name: str
    device: str
    engine: EngineKind
    software: tuple[str, ...]
    sms: tuple[int, ...]
    memory: int | None
    shared: bool
    system: int
    bandwidth: int | None
    pages: tuple[int, ...] | None
    weights: tuple[WeightType, ...]
    workspace: int | None

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """KV caches that it reads: integer codes of any width need nothing special of a chip, floats of 8 bits do."""
        return tuple(kind for kind in Kind if self._reads(kind))

    def _reads(self, kind: Kind) -> bool:
        return not kind.has_floats or (self.engine.takes_kernels and any(map(kind.is_read_by, self.sms)))

    @property
    def chips(self) -> str:
        """Compute capabilities for people: SM87, or SM86, SM89 or SM120."""
        names = [f"SM{sm}" for sm in self.sms]
        return " or ".join(filter(None, (", ".join(names[:-1]), *names[-1:]))) or "no GPU"


_TILES = (16, 32, 64, 128)
_FP16_INT4 = (WeightType.FP16, WeightType.INT4)
_JETPACK_6 = "JetPack 6.2: TensorRT 10.3, CUDA 12.6"
_JETPACK_7_THOR = "JetPack 7.0 and 7.1: TensorRT 10.13, CUDA 13.0"
_JETPACK_7 = "JetPack 7.2: TensorRT 10.16, CUDA 13.2"


def _jetson(
    name: str,
    device: str,
    gib: int,
    *,
    bandwidth: int,
    sm: int = 87,
    software: tuple[str, ...] = (_JETPACK_6, _JETPACK_7),
) -> Target:
    """A board with `gib` GiB for CPU and GPU together, running TensorRT."""
    memory = gib * GIB
    return Target(
        name=name,
        device=f"{device}, {gib} GB",
        engine=EngineKind.TENSORRT,
        software=software,
        sms=(sm,),
        memory=memory,
        shared=True,
        system=max(_SYSTEM_BYTES, memory // _SYSTEM_SHARE),
        bandwidth=bandwidth,
        pages=_TILES,
        weights=_FP16_INT4,
        workspace=min(memory // _WORKSPACE_SHARE, _MOST_WORKSPACE),
    )


def _any_jetson(name: str, device: str, boards: tuple[Target, ...]) -> Target:
    """One of several boards with the same chip and software: which, and so its memory, is known on the board only."""
    first = boards[0]
    return replace(
        first,
        name=name,
        device=device,
        memory=None,
        system=0,
        bandwidth=None,
        workspace=min(board.workspace for board in boards if board.workspace is not None),
    )


def _thor(name: str, device: str, gib: int) -> Target:
    software = (_JETPACK_7_THOR, _JETPACK_7)
    return _jetson(name, device, gib, bandwidth=273_000_000_000, sm=110, software=software)


def _card(
    name: str,
    device: str,
    engine: EngineKind,
    *,
    sms: tuple[int, ...],
    software: tuple[str, ...],
    weights: tuple[WeightType, ...],
) -> Target:
    """Any graphics card of a kind: which one, and so its memory, is known on the machine only."""
    return Target(
        name=name,
        device=device,
        engine=engine,
        software=software,
        sms=sms,
        memory=None,
        shared=False,
        system=0,
        bandwidth=None,
        pages=_TILES,
        weights=weights,
        workspace=_CARD_WORKSPACE if engine.is_built else None,
    )


_DESKTOP_SMS = (75, 80, 86, 89, 90, 100, 120)

_ORINS = (
    _jetson("jetson-orin-nano", "Jetson Orin Nano", 8, bandwidth=102_000_000_000),
    _jetson("jetson-orin-nano-4gb", "Jetson Orin Nano", 4, bandwidth=51_000_000_000),
    _jetson("jetson-orin-nx", "Jetson Orin NX", 16, bandwidth=102_000_000_000),
    _jetson("jetson-orin-nx-8gb", "Jetson Orin NX", 8, bandwidth=102_000_000_000),
    _jetson("jetson-agx-orin", "Jetson AGX Orin", 64, bandwidth=204_800_000_000),
    _jetson("jetson-agx-orin-32gb", "Jetson AGX Orin", 32, bandwidth=204_800_000_000),
)

TARGETS = (
    *_ORINS,
    _any_jetson("jetson-orin", "any Jetson Orin", _ORINS),
    _thor("jetson-thor", "Jetson T5000 (Thor)", 128),
    _thor("jetson-thor-64gb", "Jetson T4000 (Thor)", 64),
    _card(
        "tensorrt-desktop",
        "NVIDIA card in an x86-64 machine, with the plugin",
        EngineKind.TENSORRT,
        sms=_DESKTOP_SMS,
        software=("TensorRT 10.3 to 11",),
        weights=_FP16_INT4,
    ),
    _card(
        "rtx",
        "RTX card, without a plugin",
        EngineKind.TENSORRT_RTX,
        sms=(86, 89, 120),
        software=("TensorRT for RTX 1",),
        weights=(WeightType.FP16, WeightType.INT8, WeightType.INT4),
    ),
    _card(
        "cuda",
        "NVIDIA card",
        EngineKind.ORT_CUDA,
        sms=_DESKTOP_SMS,
        software=("ONNX Runtime 1.24 or newer, CUDA provider",),
        weights=(WeightType.FP16, WeightType.FP32, WeightType.INT8, WeightType.INT4),
    ),
    Target(
        name="cpu",
        device="x86-64 or aarch64 machine, a Jetson's cores included",
        engine=EngineKind.ORT_CPU,
        software=("ONNX Runtime 1.24 or newer",),
        sms=(),
        memory=None,
        shared=True,
        system=0,
        bandwidth=None,
        pages=None,
        weights=tuple(WeightType),
        workspace=None,
    ),
)
"""All targets. A board that is sold with several memories has a name for each; the plain name is the larger one."""


def find_target(name: str) -> Target:
    """The target of that name.

    Raises:
        KvedgeError: there is none.
    """
    for target in TARGETS:
        if target.name == name.lower():
            return target
    like = [target.name for target in TARGETS if target.name.startswith(name.lower())]
    names = ", ".join(like or [target.name for target in TARGETS])
    raise KvedgeError("--target", expected=f"one of {names}", got=name, fix="`kvedge targets` says what they are")
