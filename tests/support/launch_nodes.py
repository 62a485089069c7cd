"""Nodes of graphs for GPUs, and the same step for the Python side."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvedge.plugins import schema
from kvedge.plugins.cuda.variants import LayerForm
from kvedge.plugins.key_bias import KeyBias
from kvedge.plugins.step import PagedStep
from kvedge.targets.kinds import HotDtype
from kvedge.targets.spec import LayerSpec

FLOAT, HALF, INT32 = 0, 1, 3
"""nvinfer1::DataType."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """One layer's node, and the sizes of a step."""

    layer: LayerSpec
    batch: int = 1
    new_tokens: int = 1
    hot_slots: int = 4
    packed_slots: int = 6
    rotary_pairs: int = 0
    bias: KeyBias | None = None

    @property
    def bias_pairs(self) -> int:
        """Of the key bias."""
        return 0 if self.bias is None else len(self.bias.freqs)

    @property
    def form(self) -> LayerForm:
        """What its kernels are compiled for."""
        return LayerForm(
            layer=self.layer, rotary_pairs=self.rotary_pairs, interleaved=False, bias_pairs=self.bias_pairs
        )

    def step(self) -> PagedStep:
        """Arrays of the right shapes."""
        layer, b, n = self.layer, self.batch, self.new_tokens
        packs = layer.rules.packs
        angles = np.zeros((b, n, self.rotary_pairs), np.float32) if self.rotary_pairs else None
        new = [np.zeros((b, h, n, layer.head_dim), np.float32) for h in (layer.heads, layer.kv_heads, layer.kv_heads)]
        return PagedStep(
            q=new[0],
            k=new[1],
            v=new[2],
            hot=np.zeros(layer.hot_shape(5), layer.kind.hot_dtype.value),
            packed=np.zeros(layer.packed_shape(7), np.int32) if packs else None,
            hot_table=np.zeros((b, self.hot_slots), np.int32),
            packed_table=np.zeros((b, self.packed_slots), np.int32) if packs else None,
            context=np.zeros(b, np.int32),
            num_new=np.zeros(b, np.int32),
            sink_cos=angles,
            sink_sin=angles,
            bias=self.bias,
        )

    def tensors(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Inputs and outputs by name, in order, without those that are absent."""
        step = self.step()
        inputs = {name: getattr(step, name, None) for name in schema.INPUTS}
        if self.bias is not None:
            inputs |= {f"bias_{name}": getattr(self.bias, name) for name in ("page", "freqs", "channels")}
        outputs = {
            "out": np.zeros((self.batch, self.new_tokens, self.layer.heads * self.layer.head_dim), np.float32),
            "hot_out": step.hot,
            "packed_out": step.packed,
            "pages_read": np.zeros(self.batch, np.int32),
        }
        assert tuple(outputs) == schema.OUTPUTS
        return _present(inputs), _present(outputs)

    def type_of(self, name: str) -> int:
        """TensorRT's type of a tensor."""
        inputs, outputs = self.tensors()
        if name in ("hot", "hot_out"):
            return HALF if self.layer.kind.hot_dtype is HotDtype.FLOAT16 else FLOAT
        return INT32 if (inputs | outputs)[name].dtype == np.int32 else FLOAT


def _present(arrays: dict[str, np.ndarray | None]) -> dict[str, np.ndarray]:
    return {name: array for name, array in arrays.items() if array is not None}
