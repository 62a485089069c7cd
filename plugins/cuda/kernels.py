"""The Triton kernels on the arrays of one step, with the signatures of kvedge.plugins.reference.

On the CPU they run in Triton's interpreter, which TRITON_INTERPRET=1 must ask for before this module is imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from kvedge.plugins.cuda.append import append_kernel
from kvedge.plugins.cuda.attend import attend_kernel
from kvedge.plugins.cuda.constants import query_block
from kvedge.plugins.cuda.merge import merge_kernel
from kvedge.plugins.cuda.queries import queries_kernel
from kvedge.plugins.cuda.seal import seal_kernel
from kvedge.plugins.cuda.splits import Splits, splits_of
from kvedge.plugins.cuda.step_tensors import StepTensors
from kvedge.plugins.cuda.variants import BLOCK, LayerForm
from kvedge.plugins.reference.attend import Attended
from kvedge.plugins.step import PagedStep
from kvedge.targets.spec import LayerSpec

PAGES_A_SPLIT = 8
"""Pages that one program of a decoding step reads."""


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
        seal_kernel[grid](**on.arguments(seal_kernel), scratch=scratch, **constants)
        on.copy_back()

    def append(self, layer: LayerSpec, step: PagedStep) -> None:
        """As kvedge.plugins.reference.append."""
        on = StepTensors(layer, step, self.device)
        grid = (triton.cdiv(on.new_tokens, BLOCK), on.batch * layer.kv_heads)
        append_kernel[grid](**on.arguments(append_kernel), **self._form(layer, step).constants(append_kernel))
        on.copy_back()

    def attend(self, layer: LayerSpec, step: PagedStep, *, interleaved: bool) -> Attended:
        """As kvedge.plugins.reference.attend."""
        on, form = StepTensors(layer, step, self.device), self._form(layer, step, interleaved)
        splits = splits_of(on, self.pages_a_split)
        made = {
            "sums_of_splits": on.empty(on.rows, splits.count, layer.head_dim),
            "tops": on.empty(on.rows, splits.count),
            "totals": on.empty(on.rows, splits.count),
            "out": on.empty(on.batch, on.new_tokens, layer.heads, layer.head_dim),
        }
        on.named |= made | self._queries(on, form)
        on.named["pages_read"] = torch.zeros(on.batch, dtype=torch.int32, device=self.device)
        self._attend(on, form, splits)
        merge_kernel[(triton.cdiv(on.rows, BLOCK),)](
            **on.arguments(merge_kernel),
            splits=splits.count,
            packed_splits=splits.packed,
            **form.constants(merge_kernel),
        )
        return Attended(out=made["out"].cpu().numpy(), pages_read=on.named["pages_read"].cpu().numpy())

    def _queries(self, on: StepTensors, form: LayerForm) -> dict[str, torch.Tensor]:
        """Queries as they are, turned towards the sinks, and rotated."""
        made = {name: torch.empty_like(on.named["q"]) for name in ("plain", "turned", "rotated")}
        scale = float(form.layer.scale)
        queries_kernel[(triton.cdiv(on.rows, BLOCK),)](
            **on.arguments(queries_kernel), **made, scale=scale, **form.constants(queries_kernel)
        )
        return made

    def _attend(self, on: StepTensors, form: LayerForm, splits: Splits) -> None:
        """What every split sees."""
        layer, block = form.layer, query_block(form.layer, on.new_tokens)
        query_pages = (on.new_tokens + layer.rules.page - 2) // layer.rules.page + 1
        blocks = query_pages * (layer.rules.page // block.tokens)
        attend_kernel[(blocks, on.batch * layer.heads // block.heads, splits.count)](
            **on.arguments(attend_kernel),
            packed_splits=splits.packed,
            pages_a_split=splits.packed_pages,
            exact_pages_a_split=splits.exact_pages,
            **form.attend_constants(on.new_tokens),
        )

    def _form(self, layer: LayerSpec, step: PagedStep, interleaved: bool = False) -> LayerForm:
        return LayerForm(
            layer=layer,
            rotary_pairs=0 if step.sink_cos is None else int(step.sink_cos.shape[-1]),
            interleaved=interleaved,
            bias_pairs=0 if step.bias is None else len(step.bias.freqs),
            dot=self.dot,
        )
