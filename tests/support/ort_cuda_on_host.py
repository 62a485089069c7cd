"""A process in which the true ONNX Runtime runs kvedge::PagedAttention of libkvedge_cuda.so, and the driver's stand-in
has each launch done by Triton's interpreter: streams against the reference.

    python ort_cuda_on_host.py PROVIDER FOLDER NAME...

Prints what is wrong with each stream by its name, null where nothing is.
"""

from __future__ import annotations

import ctypes
import json
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
import triton.language as tl
from kernel_cases import CASES
from launch_nodes import Node
from ort_cuda import job_of
from streams import Stream, against_reference, make_layer

from kvedge.plugins.cuda.signatures import signature
from kvedge.plugins.cuda.variants import LayerForm, Variant, variants
from kvedge.plugins.reference.attend import Attended
from kvedge.plugins.step import PagedStep
from kvedge.targets.kinds import Kind
from kvedge.targets.spec import LayerSpec

LENGTH, CHUNK = 45, 20
STREAMS = {
    "int3": Stream(make_layer(), LENGTH, chunk=CHUNK),
    "k4v2": Stream(make_layer(Kind.K4V2, window=None), LENGTH, chunk=CHUNK),
    "fp": Stream(make_layer(Kind.FP, softcap=1.5), LENGTH, chunk=CHUNK),
    "key bias": Stream(make_layer(head_dim=32), LENGTH, chunk=CHUNK, bias_norm=50.0),
    "head_dim 24": Stream(make_layer(Kind.INT8, **CASES["head_dim 24"]), LENGTH, chunk=CHUNK),
    "fp8": Stream(make_layer(Kind.FP8, window=None), LENGTH, chunk=CHUNK),
    "MQA": Stream(make_layer(Kind.INT4, **CASES["MQA"]), LENGTH, chunk=CHUNK),
}
TYPES = {"*fp32": torch.float32, "*fp16": torch.float16, "*i32": torch.int32}
OnLaunch = ctypes.CFUNCTYPE(None, ctypes.c_char_p, *(ctypes.c_uint,) * 3, ctypes.POINTER(ctypes.c_void_p))


class Launcher:
    """Does launches of a layer's kernels; products in float32, so that only the order of sums differs."""

    def __init__(self, form: LayerForm) -> None:
        self._variants = {f"{variant.name}_symbol": variant for variant in variants(form)}
        self._hot = form.layer.kind.hot_dtype
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._driver.stand_in_room.restype = ctypes.c_size_t
        self._callback = OnLaunch(self._launch)
        self._driver.stand_in_on_launch(self._callback)
        self.arrays: list[np.ndarray] = []
        self.errors: list[str] = []

    def _launch(self, symbol: bytes, x: int, y: int, z: int, parameters: Any) -> None:
        try:
            variant = self._variants[symbol.decode()]
            variant.kernel[(x, y, z)](**self._arguments(variant, parameters), **variant.constants)
        except Exception:  # it would be lost in the caller
            self.errors.append(traceback.format_exc())

    def _arguments(self, variant: Variant, parameters: Any) -> dict[str, Any]:
        types = signature(variant.kernel, variant.constants, self._hot)
        passed = {name: kind for name, kind in types.items() if kind != "constexpr"}
        return {name: self._value(kind, parameters[i]) for i, (name, kind) in enumerate(passed.items())}

    def _value(self, kind: str, at: int) -> Any:
        if kind not in TYPES:
            return (ctypes.c_float if kind == "fp32" else ctypes.c_int32).from_address(at).value
        address = ctypes.c_uint64.from_address(at).value
        if address == 0:
            return None
        room = self._room(address)
        return torch.frombuffer((ctypes.c_char * room).from_address(address), dtype=TYPES[kind])

    def _room(self, address: int) -> int:
        """Bytes from an address to the end of its tensor, or of what the driver gave."""
        for array in self.arrays:
            if array.ctypes.data <= address < array.ctypes.data + array.nbytes:
                return array.ctypes.data + array.nbytes - address
        room = int(self._driver.stand_in_room(ctypes.c_uint64(address)))
        assert room > 0, f"nothing is at {address:#x}"
        return room


class Operator:
    """A node's steps: seal, attend and append at once."""

    def __init__(self, node: Node, provider: str, folder: Path) -> None:
        form = node.form
        self._launcher = Launcher(
            LayerForm(
                layer=form.layer,
                rotary_pairs=form.rotary_pairs,
                interleaved=form.interleaved,
                bias_pairs=form.bias_pairs,
                dot=tl.float32,
            )
        )
        job, _ = job_of(folder, [[node]])
        options = ort.SessionOptions()
        options.add_session_config_entry("kvedge.kernels", job["kernels"])
        options.register_custom_ops_library(provider)
        self._session = ort.InferenceSession(job["model"], options, providers=["CPUExecutionProvider"])

    def attend(self, layer: LayerSpec, step: PagedStep, *, interleaved: bool) -> Attended:
        """One step; pools are written in place."""
        assert not interleaved
        batch, heads, tokens, dim = step.q.shape
        out, read = np.full((batch, tokens, heads * dim), np.nan, np.float32), np.full(batch, -1, np.int32)
        bias = {f"bias_{name}": array for name, array in vars(step.bias).items()} if step.bias else {}
        given = {name: array for name, array in (vars(step) | bias).items() if isinstance(array, np.ndarray)}
        arrays = {name: np.ascontiguousarray(array) for name, array in given.items()}
        self._launcher.arrays = [*arrays.values(), out, read]
        binding = self._session.io_binding()
        outputs = {"out": out, "hot_out": step.hot, "packed_out": step.packed, "pages_read": read}
        for port in self._session.get_inputs():
            array = arrays[port.name.removesuffix(".0")]
            binding.bind_ortvalue_input(port.name, ort.OrtValue.ortvalue_from_numpy(array))
        for port in self._session.get_outputs():
            array = outputs[port.name.removesuffix(".0")]
            binding.bind_ortvalue_output(port.name, ort.OrtValue.ortvalue_from_numpy(array))
        self._session.run_with_iobinding(binding)
        assert not self._launcher.errors, self._launcher.errors[0]
        return Attended(out=out.reshape(batch, tokens, heads, dim), pages_read=read)


def nothing(layer: LayerSpec, step: PagedStep) -> None:
    """What is left to do before and after."""


def fault_of(stream: Stream, provider: str, folder: Path) -> str | None:
    """What differs from the reference."""
    node = Node(layer=stream.layer, rotary_pairs=stream.layer.head_dim // 2, bias=stream.bias)
    operator = Operator(node, provider, folder)
    kernels = SimpleNamespace(seal=nothing, attend=operator.attend, append=nothing)
    try:
        against_reference(stream, kernels, CHUNK, tolerance=2e-6)
    except Exception:
        return traceback.format_exc()
    return None


if __name__ == "__main__":
    provider, folder, *names = sys.argv[1:]
    print(json.dumps({name: fault_of(STREAMS[name], provider, Path(folder) / name) for name in names}))
