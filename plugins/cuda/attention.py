"""Attention of one step, launched as often as one likes: buffers are made once."""

from __future__ import annotations

import torch
import triton

from kvedge.plugins.cuda.attend import attend_kernel
from kvedge.plugins.cuda.constants import query_block
from kvedge.plugins.cuda.merge import merge_kernel
from kvedge.plugins.cuda.queries import queries_kernel
from kvedge.plugins.cuda.splits import splits_of
from kvedge.plugins.cuda.step_tensors import StepTensors
from kvedge.plugins.cuda.variants import BLOCK, MERGED_ROWS, LayerForm, options


class Attention:
    """Attention of the new tokens of a step over its pools, which append and seal may change between launches."""

    def __init__(self, on: StepTensors, form: LayerForm, pages_a_split: int) -> None:
        layer, q = form.layer, on.named["q"]
        self._on, self._form, self._splits = on, form, splits_of(on, pages_a_split)
        self.out = on.empty(on.batch, on.new_tokens, layer.heads, layer.head_dim)
        self.pages_read = torch.zeros(on.batch, dtype=torch.int32, device=on.device)
        count = self._splits.count
        on.named |= {
            **{name: torch.empty_like(q) for name in ("plain", "turned", "rotated")},
            "sums_of_splits": on.empty(on.rows, count, layer.head_dim),
            "tops": on.empty(on.rows, count),
            "totals": on.empty(on.rows, count),
            "out": self.out,
            "pages_read": self.pages_read,
        }

    def launch(self) -> None:
        """Queries, splits, and what they saw taken together; pages_read grows."""
        on, form, splits = self._on, self._form, self._splits
        scale = float(form.layer.scale)
        queries_kernel[triton.cdiv(on.rows, BLOCK),](
            **on.arguments(queries_kernel),
            scale=scale,
            **form.constants(queries_kernel),
            **options(queries_kernel),
        )
        attend_kernel[self._grid()](
            **on.arguments(attend_kernel),
            packed_splits=splits.packed,
            pages_a_split=splits.packed_pages,
            exact_pages_a_split=splits.exact_pages,
            **form.attend_constants(on.new_tokens),
            **options(attend_kernel),
        )
        merge_kernel[triton.cdiv(on.rows, MERGED_ROWS),](
            **on.arguments(merge_kernel),
            splits=splits.count,
            packed_splits=splits.packed,
            **form.merge_constants(),
            **options(merge_kernel),
        )

    def _grid(self) -> tuple[int, int, int]:
        """Query blocks, blocks of heads, splits."""
        layer, on, block = self._form.layer, self._on, query_block(self._form.layer, self._on.new_tokens)
        blocks = (on.new_tokens + block.tokens - 2) // block.tokens + 1  # wherever in a block the first is
        return blocks, on.batch * layer.heads // block.heads, self._splits.count
