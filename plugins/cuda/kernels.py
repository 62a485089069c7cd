"""The Triton kernels on the arrays of one step, with the signatures of kvedge.plugins.reference.

On the CPU they run in Triton's interpreter, which TRITON_INTERPRET=1 must ask for before this module is imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from kvedge.plugins.cuda.append import append_kernel
from kvedge.plugins.cuda.attention import Attention
from kvedge.plugins.cuda.constants import PAGES_A_SPLIT
from kvedge.plugins.cuda.seal import seal_kernel
from kvedge.plugins.cuda.step_tensors import StepTensors
from kvedge.plugins.cuda.variants import BLOCK, LayerForm, options
from kvedge.plugins.reference.attend import Attended
from kvedge.plugins.step import PagedStep
from kvedge.targets.spec import LayerSpec


@dataclass(frozen=True, kw_only=True)
class TritonKernels:
    """seal, attend and append of one device.

    Args:
        device: of the tensors; "cpu" for the interpreter.
        dot: type that products round their operands to.
        pages_a_split: pages that one program reads in a step of few tokens.
    """

    device: str = "cpu"
    dot: Any = tl.float16
    pages_a_split: int = PAGES_A_SPLIT

    def seal(self, layer: LayerSpec, step: PagedStep) -> None:
        """As kvedge.plugins.reference.seal."""
        if step.packed is None:
            return
        on = StepTensors(layer, step, self.device)
        grid = (triton.cdiv(on.new_tokens, layer.rules.page) + 1, on.batch * layer.kv_heads)
        scratch = on.empty(grid[0] * grid[1], layer.rules.page, layer.head_dim)
        constants = self._form(layer, step).constants(seal_kernel)
        seal_kernel[grid](**on.arguments(seal_kernel), scratch=scratch, **constants, **options(seal_kernel))
        on.copy_back()

    def append(self, layer: LayerSpec, step: PagedStep) -> None:
        """As kvedge.plugins.reference.append."""
        on = StepTensors(layer, step, self.device)
        grid = (triton.cdiv(on.new_tokens, BLOCK), on.batch * layer.kv_heads)
        constants = self._form(layer, step).constants(append_kernel)
        append_kernel[grid](**on.arguments(append_kernel), **constants, **options(append_kernel))
        on.copy_back()

    def attend(self, layer: LayerSpec, step: PagedStep, *, interleaved: bool) -> Attended:
        """As kvedge.plugins.reference.attend."""
        form = self._form(layer, step, interleaved)
        attention = Attention(StepTensors(layer, step, self.device), form, self.pages_a_split)
        attention.launch()
        return Attended(out=attention.out.cpu().numpy(), pages_read=attention.pages_read.cpu().numpy())

    def _form(self, layer: LayerSpec, step: PagedStep, interleaved: bool = False) -> LayerForm:
        return LayerForm(
            layer=layer,
            rotary_pairs=0 if step.sink_cos is None else int(step.sink_cos.shape[-1]),
            interleaved=interleaved,
            bias_pairs=0 if step.bias is None else len(step.bias.freqs),
            dot=self.dot,
        )
