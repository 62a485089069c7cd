"""The arrays of one step on a device, as arguments of kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from kvedge.plugins.cuda.constants import constants_of
from kvedge.plugins.reference.rotation import dct_matrix, split
from kvedge.plugins.step import PagedStep
from kvedge.targets.spec import LayerSpec
from kvedge.targets.visibility import sink_pages

Arguments = dict[str, Any]


class StepTensors:
    """A PagedStep of one layer on a device, of arrays or of tensors; where these are there already, they are shared."""

    def __init__(self, layer: LayerSpec, step: PagedStep, device: str) -> None:
        self.layer, self.step, self.device = layer, step, device
        self.batch, self.new_tokens = int(step.q.shape[0]), int(step.q.shape[2])
        arrays = {name: array for name, array in vars(step).items() if name != "bias"}
        arrays["dct"] = dct_matrix(split(layer.head_dim)[1])
        self.named: dict[str, Any] = {
            name: None if array is None else self._tensor(array) for name, array in arrays.items()
        }
        packed = self.named["packed"]
        self.named["packed_halves"] = None if packed is None else packed.view(torch.float16)
        self.named |= self._bias()

    @property
    def rows(self) -> int:
        """Queries of all heads, padding included."""
        return self.batch * self.layer.heads * self.new_tokens

    @property
    def packed_slots(self) -> int:
        """Columns of the packed block table."""
        return 0 if self.step.packed_table is None else int(self.step.packed_table.shape[1])

    @property
    def ring_pages(self) -> int:
        """Pages of the ring of recent tokens."""
        rules = self.layer.rules
        return int(self.step.hot_table.shape[1]) - sink_pages(rules.sinks, rules.page)

    def arguments(self, kernel: Any) -> Arguments:
        """Tensors and sizes that a kernel has parameters for."""
        rules = self.layer.rules
        return constants_of(
            kernel,
            **self.named,
            sinks=rules.sinks,
            recent_pages=rules.recent // rules.page,
            window=rules.window or 0,
            hot_slots=int(self.step.hot_table.shape[1]),
            packed_slots=self.packed_slots,
            new_tokens=self.new_tokens,
            rows=self.rows,
        )

    def empty(self, *shape: int) -> torch.Tensor:
        """Room for floats."""
        return torch.empty(shape, dtype=torch.float32, device=self.device)

    def copy_back(self) -> None:
        """What kernels changed in the pools, to the arrays; nothing to do where they share memory."""
        for name in ("hot", "packed"):
            tensor, array = self.named[name], getattr(self.step, name)
            if tensor is not None and tensor.device.type != "cpu" and isinstance(array, np.ndarray):
                array[...] = tensor.cpu().numpy()

    def _tensor(self, array: Any) -> torch.Tensor:
        return torch.as_tensor(array, device=self.device)

    def _bias(self) -> dict[str, torch.Tensor | None]:
        """The key bias, and the row of each channel in its table."""
        names, bias = ("bias_page", "bias_freqs", "bias_channels", "bias_rows"), self.step.bias
        if bias is None or len(bias.freqs) == 0:
            return dict.fromkeys(names)
        rows = np.full(self.layer.head_dim, -1, np.int32)
        rows[bias.channels] = np.arange(len(bias.channels))
        arrays = (bias.page, bias.freqs, bias.channels, rows)
        return {name: self._tensor(np.ascontiguousarray(array)) for name, array in zip(names, arrays, strict=True)}
