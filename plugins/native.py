"""The C kernels through ctypes, with the signatures of kvedge.plugins.reference: for tests and tools.

Inference goes through ONNX Runtime instead, which runs the same functions on its own threads.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvedge.plugins.library import library_path
from kvedge.plugins.reference.attend import Attended
from kvedge.plugins.reference.linear import Norm
from kvedge.plugins.schema import ACTIVATIONS, attributes
from kvedge.plugins.step import Floats, PagedStep
from kvedge.targets.errors import KvedgeError
from kvedge.targets.spec import LayerSpec

_INTS = (
    "batch",
    "new_tokens",
    "heads",
    "kv_heads",
    "head_dim",
    "page",
    "sinks",
    "recent",
    "window",
    "k_bits",
    "v_bits",
    "float_codes",
    "v_unbiased",
    "hot_is_half",
    "hot_pages",
    "packed_pages",
    "hot_slots",
    "packed_slots",
    "rotary_pairs",
    "rotary_interleaved",
    "bias_pairs",
)
_ARRAYS = ("q", "k", "v", "hot", "packed", "hot_table", "packed_table", "context", "num_new", "sink_cos", "sink_sin")
_NO_ACTIVATION = 0
_BIAS = ("bias_page", "bias_freqs", "bias_channels")


class _Shape(ctypes.Structure):
    """kvedge_shape of include/kvedge/paged_attention.h."""

    _fields_ = [(name, ctypes.c_int32) for name in _INTS] + [("scale", ctypes.c_float), ("softcap", ctypes.c_float)]


class _Projected(ctypes.Structure):
    """kvedge_projected of include/kvedge/paged_attention.h."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("q", "k", "v", "cos", "sin")]


class _Linear(ctypes.Structure):
    """kvedge_linear of include/kvedge/linear.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("weights", "x", "bias", "y", "gamma", "skip", "sum")),
        *((name, ctypes.c_int64) for name in ("rows", "inputs", "outputs")),
        ("bits", ctypes.c_int32),
        ("activation", ctypes.c_int32),
        ("epsilon", ctypes.c_float),
    ]


class _Step(ctypes.Structure):
    """kvedge_step of include/kvedge/paged_attention.h."""

    _fields_ = [(name, ctypes.c_void_p) for name in (*_ARRAYS, *_BIAS, "partial", "out", "pages_read")]


@dataclass(frozen=True)
class _Call:
    """Structs of one call, and the arrays that they point into."""

    shape: _Shape
    step: _Step
    out: Attended
    keep: tuple[Any, ...]


@dataclass(frozen=True)
class _Weights:
    """Weights in blocks as they are stored, with what the library must know of them."""

    stored: NDArray[np.uint8]
    bits: int
    outputs: int
    activation: int


@dataclass(frozen=True)
class NativeKernels:
    """The kernels of one loaded library, named as those of kvedge.plugins.reference."""

    library: ctypes.CDLL

    @property
    def cpu_isa(self) -> str:
        """Instruction set of the inner loops in use: baseline, avx2, avx512, avx512vnni, avx512amx or neondot."""
        return str(self.library.kvedge_cpu_isa().decode())

    @property
    def reads_integers(self) -> bool:
        """Whether packed pages are read as kvedge.plugins.reference.integers says."""
        return bool(self.library.kvedge_reads_integers())

    @property
    def many_rows(self) -> int | None:
        """Rows from which products go as kvedge.plugins.reference.linear_of_many says; None: never, here."""
        return int(self.library.kvedge_linear_many_rows()) or None

    def read(self, words: NDArray[np.int32]) -> int:
        """The exclusive or of words, a multiple of 64 of them: nothing but reading memory."""
        return int(self.library.kvedge_read(ctypes.c_void_p(words.ctypes.data), ctypes.c_int64(words.size)))

    def prepare(
        self,
        layer: LayerSpec,
        projected: tuple[Floats, Floats, Floats] | Floats,
        turn: tuple[Floats, Floats] | None,
        *,
        interleaved: bool,
    ) -> tuple[Floats, Floats, Floats]:
        """As kvedge.plugins.reference.prepare."""
        parts = projected if isinstance(projected, tuple) else (projected, None, None)
        batch, new = parts[0].shape[:2]
        arrays = [None if part is None else np.ascontiguousarray(part) for part in (*parts, *(turn or (None, None)))]
        pairs = 0 if turn is None else turn[0].shape[-1]
        facts = attributes(layer, interleaved=interleaved)
        shape = ctypes.byref(_Shape(**facts, batch=batch, new_tokens=new, rotary_pairs=pairs))
        made = [
            np.empty((batch, heads, new, layer.head_dim), np.float32) for heads in (layer.heads, *2 * [layer.kv_heads])
        ]
        source = _Projected(*(None if array is None else array.ctypes.data for array in arrays))
        targets = [ctypes.c_void_p(array.ctypes.data) for array in made]
        for task in range(self.library.kvedge_prepare_tasks(shape)):
            self.library.kvedge_prepare_task(shape, ctypes.byref(source), *targets, ctypes.c_int64(task))
        return made[0], made[1], made[2]

    def seal(self, layer: LayerSpec, step: PagedStep) -> None:
        """As kvedge.plugins.reference.seal."""
        self._tasks("seal", self._prepare(layer, step, interleaved=False))

    def attend(self, layer: LayerSpec, step: PagedStep, *, interleaved: bool) -> Attended:
        """As kvedge.plugins.reference.attend."""
        call = self._prepare(layer, step, interleaved=interleaved)
        pointers = ctypes.byref(call.shape), ctypes.byref(call.step)
        tasks = self.library.kvedge_attend_tasks(*pointers)
        scratch = np.empty(self.library.kvedge_attend_scratch(pointers[0], ctypes.c_int64(tasks)), np.float32)
        call.step.partial = scratch.ctypes.data
        self._tasks("attend", call)
        self.library.kvedge_attend_finish(*pointers)
        return call.out

    def append(self, layer: LayerSpec, step: PagedStep) -> None:
        """As kvedge.plugins.reference.append."""
        call = self._prepare(layer, step, interleaved=False)
        self.library.kvedge_append(ctypes.byref(call.shape), ctypes.byref(call.step))

    def linear(
        self,
        x: NDArray[np.float32],
        weights: NDArray[np.uint8],
        bits: int,
        outputs: int,
        bias: NDArray[np.float32] | None = None,
        norm: Norm | None = None,
    ) -> NDArray[np.float32]:
        """As kvedge.plugins.reference.linear, or linear_of_many from many_rows on, of weights as they are stored.

        With a norm, of what kvedge.plugins.reference.linear.normalized makes of x.
        """
        return self._product(x, _Weights(weights, bits, outputs, _NO_ACTIVATION), bias, norm)

    def gated(
        self, x: NDArray[np.float32], weights: NDArray[np.uint8], bits: int, outputs: int, activation: str
    ) -> NDArray[np.float32]:
        """As kvedge.plugins.reference.linear.gated of two products, of weights as they are stored, gate first."""
        return self._product(x, _Weights(weights, bits, outputs, 1 + ACTIVATIONS.index(activation)), None, None)

    def _product(self, x: Floats, of: _Weights, bias: Floats | None, norm: Norm | None) -> Floats:
        y = np.empty((len(x), of.outputs), np.float32)
        gamma, skip, epsilon = (None, None, 0.0) if norm is None else (norm.gamma, norm.skip, norm.epsilon)
        given = (of.stored, x, bias, y, gamma, skip, None)
        pointers = [None if array is None else array.ctypes.data for array in given]
        call = ctypes.byref(_Linear(*pointers, *x.shape, of.outputs, of.bits, of.activation, epsilon))
        scratch = np.empty(self.library.kvedge_linear_scratch(call), np.uint8)
        for phase in ("quantize", "product"):
            for task in range(getattr(self.library, f"kvedge_linear_{phase}_tasks")(call)):
                arguments = call, ctypes.c_void_p(scratch.ctypes.data), ctypes.c_int64(task)
                getattr(self.library, f"kvedge_linear_{phase}_task")(*arguments)
        return y

    def _tasks(self, phase: str, call: _Call) -> None:
        pointers = ctypes.byref(call.shape), ctypes.byref(call.step)
        for task in range(getattr(self.library, f"kvedge_{phase}_tasks")(*pointers)):
            getattr(self.library, f"kvedge_{phase}_task")(*pointers, ctypes.c_int64(task))

    def _prepare(self, layer: LayerSpec, step: PagedStep, *, interleaved: bool) -> _Call:
        """Fill the structs and let the library check them.

        Raises:
            KvedgeError: the library refuses the step.
        """
        call = _call(layer, step, interleaved=interleaved)
        message = ctypes.create_string_buffer(256)
        pointers = ctypes.byref(call.shape), ctypes.byref(call.step)
        if self.library.kvedge_check(*pointers, message, ctypes.c_size_t(256)):
            raise KvedgeError(message.value.decode())
        return call


def load(path: Path) -> NativeKernels:
    """Another copy of the library, which makes its own choice of instruction set (KVEDGE_CPU_ISA)."""
    library = ctypes.CDLL(str(path))
    sizes = (
        "seal_tasks",
        "attend_tasks",
        "page_words",
        "linear_scratch",
        "linear_many_rows",
        "linear_quantize_tasks",
        "linear_product_tasks",
    )
    for name in (f"kvedge_{size}" for size in sizes):
        getattr(library, name).restype = ctypes.c_int64
    library.kvedge_byte_codebook.restype = ctypes.c_float
    library.kvedge_cpu_isa.restype = ctypes.c_char_p
    return NativeKernels(library)


@cache
def native() -> NativeKernels:
    """The installed library."""
    return load(library_path())


def _call(layer: LayerSpec, step: PagedStep, *, interleaved: bool) -> _Call:
    rows, heads, new, dim = step.q.shape
    out = Attended(out=np.empty((rows, new, heads, dim), np.float32), pages_read=np.zeros(rows, np.int32))
    arrays = {name: getattr(step, name) for name in _ARRAYS} | {"out": out.out, "pages_read": out.pages_read}
    if step.bias is not None:
        arrays |= {"bias_page": step.bias.page, "bias_freqs": step.bias.freqs, "bias_channels": step.bias.channels}
    kept = {name: _contiguous(name, array) for name, array in arrays.items() if array is not None}
    return _Call(
        shape=_shape(layer, step, interleaved),
        step=_Step(**{name: array.ctypes.data for name, array in kept.items()}),
        out=out,
        keep=tuple(kept.values()),
    )


def _contiguous(name: str, array: Any) -> Any:
    """Pools are written in place, so they must not be copied."""
    if name in ("hot", "packed"):
        assert array.flags.c_contiguous
    return np.ascontiguousarray(array)


def _shape(layer: LayerSpec, step: PagedStep, interleaved: bool) -> _Shape:
    facts = attributes(layer, interleaved=interleaved)
    sizes = {
        "batch": step.q.shape[0],
        "new_tokens": step.q.shape[2],
        "hot_is_half": int(step.hot.dtype == np.float16),
        "hot_pages": step.hot.shape[0],
        "packed_pages": 0 if step.packed is None else step.packed.shape[0],
        "hot_slots": step.hot_table.shape[1],
        "packed_slots": 0 if step.packed_table is None else step.packed_table.shape[1],
        "rotary_pairs": 0 if step.sink_cos is None else step.sink_cos.shape[-1],
        "bias_pairs": 0 if step.bias is None else len(step.bias.freqs),
    }
    return _Shape(**facts, **sizes)
