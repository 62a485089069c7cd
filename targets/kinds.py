"""The kinds of KV cache: what codes a key and a value take, and how their scale is chosen."""

from __future__ import annotations

from enum import Enum

from kvedge.targets.codebook import Code
from kvedge.targets.errors import KvedgeError, require

FLOATS_FROM_SM = 89
"""The first compute capability (x 10) that converts floats of 8 bits (PTX ISA, cvt with e4m3x2)."""

FLOAT_CHIPS = f"SM{FLOATS_FROM_SM} or newer"
# Of rotated vectors of 128 channels, root mean square: e4m3 2.57 %, int8 0.65 %.
USE_INT8 = "choose int8: the same bytes, and a quarter of fp8's error on rotated vectors"


class ValueScale(Enum):
    """Which scale a quantized value vector v ~ scale * codes stores (research: EDEN, 2021; Lloyd-Max, 1982)."""

    LEAST_SQUARES = "least-squares"
    UNBIASED = "unbiased"


class Kind(Enum):
    """A cache kind by its command-line name; members know their codes."""

    FP = "fp"
    FP16 = "fp16"
    INT8 = "int8"
    FP8 = "fp8"
    K8V4 = "k8v4"
    INT4 = "int4"
    K4V3 = "k4v3"
    INT3 = "int3"
    K4V2 = "k4v2"
    K3V2 = "k3v2"
    INT2 = "int2"

    @property
    def k_code(self) -> Code:
        """What a code of a key is."""
        return _CODES[self][0]

    @property
    def v_code(self) -> Code:
        """What a code of a value is."""
        return _CODES[self][1]

    @property
    def k_bits(self) -> int:
        """Bits of a key code; 0 for exact keys."""
        return self.k_code.bits

    @property
    def v_bits(self) -> int:
        """Bits of a value code; 0 for exact values."""
        return self.v_code.bits

    @property
    def is_exact(self) -> bool:
        """True where nothing is ever packed."""
        return self.k_code is Code.NONE

    @property
    def has_floats(self) -> bool:
        """True where codes are floats of 8 bits."""
        return self.k_code is Code.E4M3

    def is_read_by(self, sm: int) -> bool:
        """Whether kernels for a GPU of this compute capability (x 10) read such pages."""
        return not self.has_floats or sm >= FLOATS_FROM_SM

    def require_read_by(self, sm: int, what: str) -> None:
        """Refuse a GPU that does not read such pages.

        Raises:
            KvedgeError: it does not; `what` was asked for.
        """
        require(self.is_read_by(sm), what, expected=FLOAT_CHIPS, got=f"SM{sm}", fix=USE_INT8)

    @property
    def value_scale(self) -> ValueScale:
        """Good keys with 2-bit values want the unbiased scale: 1.3 to 2.5 times lower KL, measured on three models."""
        return ValueScale.UNBIASED if self in (Kind.K4V2, Kind.K3V2) else ValueScale.LEAST_SQUARES

    @property
    def hot_dtype(self) -> HotDtype:
        """How tokens are stored that are not packed: sinks and recent ones, or all."""
        return HotDtype.FLOAT32 if self is Kind.FP else HotDtype.FLOAT16

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
        raise KvedgeError("unknown KV kind", expected=f"one of {known}", got=name, fix="choose another --kv")


class HotDtype(Enum):
    """Element type of a hot page."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return 4 if self is HotDtype.FLOAT32 else 2


_CODES = {
    Kind.FP: (Code.NONE, Code.NONE),
    Kind.FP16: (Code.NONE, Code.NONE),
    Kind.INT8: (Code.UNIFORM, Code.UNIFORM),
    Kind.FP8: (Code.E4M3, Code.E4M3),
    Kind.INT4: (Code.NORMAL_4, Code.NORMAL_4),
    Kind.INT3: (Code.NORMAL_3, Code.NORMAL_3),
    Kind.INT2: (Code.NORMAL_2, Code.NORMAL_2),
    Kind.K8V4: (Code.UNIFORM, Code.NORMAL_4),
    Kind.K4V3: (Code.NORMAL_4, Code.NORMAL_3),
    Kind.K4V2: (Code.NORMAL_4, Code.NORMAL_2),
    Kind.K3V2: (Code.NORMAL_3, Code.NORMAL_2),
}
