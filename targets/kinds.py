"""The kinds of KV cache: how many bits a key and a value take, and how their scale is chosen."""

from __future__ import annotations

from enum import Enum

from kvedge.targets.errors import KvedgeError

EXACT = 0
"""Bits of a key or value that is never quantized."""


class ValueScale(Enum):
    """Which scale a quantized value vector v ~ scale * codes stores (research: EDEN, 2021; Lloyd-Max, 1982)."""

    LEAST_SQUARES = "least-squares"
    UNBIASED = "unbiased"


class Kind(Enum):
    """A cache kind by its command-line name; members know their bits."""

    FP = "fp"
    INT8 = "int8"
    K8V4 = "k8v4"
    INT4 = "int4"
    K4V3 = "k4v3"
    INT3 = "int3"
    K4V2 = "k4v2"
    K3V2 = "k3v2"
    INT2 = "int2"

    @property
    def k_bits(self) -> int:
        """Bits of a key code; 0 for exact keys."""
        return _BITS[self][0]

    @property
    def v_bits(self) -> int:
        """Bits of a value code; 0 for exact values."""
        return _BITS[self][1]

    @property
    def is_exact(self) -> bool:
        """True where nothing is ever packed."""
        return self.k_bits == EXACT

    @property
    def value_scale(self) -> ValueScale:
        """Good keys with 2-bit values want the unbiased scale: 1.3 to 2.5 times lower KL, measured on three models."""
        return ValueScale.UNBIASED if self in (Kind.K4V2, Kind.K3V2) else ValueScale.LEAST_SQUARES

    @property
    def hot_dtype(self) -> HotDtype:
        """How sinks and recent tokens are stored."""
        return HotDtype.FLOAT32 if self.is_exact else HotDtype.FLOAT16

    @classmethod
    def parse(cls, name: str) -> Kind:
        """Kind of a command-line name.

        Raises:
            KvedgeError: unknown name.
        """
        for kind in cls:
            if kind.value == name:
                return kind
        known = ", ".join(kind.value for kind in cls)
        fix = f"choose int8: {_NO_FP8}" if name == "fp8" else "choose another --kv"
        raise KvedgeError("unknown KV kind", expected=f"one of {known}", got=name, fix=fix)


# Of rotated vectors of 128 channels, root mean square: e4m3 2.57 %, int8 0.65 %.
_NO_FP8 = "the same bytes, and a quarter of fp8's error on rotated vectors"


class HotDtype(Enum):
    """Element type of a hot page."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return 4 if self is HotDtype.FLOAT32 else 2


_BITS = {
    Kind.FP: (EXACT, EXACT),
    Kind.INT8: (8, 8),
    Kind.INT4: (4, 4),
    Kind.INT3: (3, 3),
    Kind.INT2: (2, 2),
    Kind.K8V4: (8, 4),
    Kind.K4V3: (4, 3),
    Kind.K4V2: (4, 2),
    Kind.K3V2: (3, 2),
}
