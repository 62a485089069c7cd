"""Which kernels a layer needs, and what each is compiled for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import triton.language as tl

from kvedge.plugins.cuda.append import append_kernel
from kvedge.plugins.cuda.attend import attend_kernel
from kvedge.plugins.cuda.constants import constants_of, layer_constants, padded, query_block
from kvedge.plugins.cuda.merge import merge_kernel
from kvedge.plugins.cuda.queries import queries_kernel
from kvedge.plugins.cuda.seal import bias_rows_kernel, seal_kernel
from kvedge.targets.spec import LayerSpec

BLOCK = 16
"""New tokens, or rows of queries, of one program that appends or prepares."""

MERGED_ROWS = 4
"""Rows of one program that merges: in a decoding step there are no more rows than query heads."""

MANY_TOKENS = 1024
"""Stands for a prompt."""


_WARPS = {attend_kernel: 8, seal_kernel: 8, bias_rows_kernel: 1}
_USUAL_WARPS = 4
_UNFUSED = (seal_kernel,)
"""Products and sums may not be one operation where codes must be those of the reference."""


def options(kernel: Any) -> dict[str, int | bool]:
    """How a kernel is compiled, ahead of time or when it is launched; the interpreter takes no notice."""
    return {
        "num_warps": _WARPS.get(kernel, _USUAL_WARPS),
        "num_stages": 1,
        "enable_fp_fusion": kernel not in _UNFUSED,
    }


@dataclass(frozen=True, kw_only=True)
class LayerForm:
    """What kernels know of a layer beside its LayerSpec.

    Args:
        rotary_pairs: of the turn towards the sinks, 0 where queries meet them as they are.
        bias_pairs: of a key bias that is kept out of the codes.
        dot: type that products round their operands to.
    """

    layer: LayerSpec
    rotary_pairs: int
    interleaved: bool
    bias_pairs: int
    dot: Any = tl.float16

    def constants(self, kernel: Any, **more: Any) -> dict[str, Any]:
        """Constants of one kernel."""
        known = {
            **layer_constants(self.layer),
            "PAIRS": self.rotary_pairs,
            "TURNS": self.rotary_pairs > 0,
            "INTERLEAVED": self.interleaved,
            "BIAS_PAIRS": self.bias_pairs,
            "BIAS_PAIRS_P": padded(max(1, self.bias_pairs)),
            "DOT": self.dot,
            "BLOCK": BLOCK,
        }
        return constants_of(kernel, **(known | more))

    def attend_constants(self, new_tokens: int) -> dict[str, Any]:
        """Constants of attend in a step of so many new tokens."""
        block = query_block(self.layer, new_tokens)
        return self.constants(
            attend_kernel,
            BLOCK=block.tokens,
            BLOCK_HEADS=1 << (block.heads - 1).bit_length(),
            HEADS_OF_BLOCK=block.heads,
        )

    def merge_constants(self) -> dict[str, Any]:
        """Constants of merge."""
        return self.constants(merge_kernel, BLOCK=MERGED_ROWS)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One kernel to compile."""

    name: str
    kernel: Any
    constants: dict[str, Any]


def variants(form: LayerForm) -> Iterator[Variant]:
    """All kernels of a layer."""
    packs = form.layer.rules.packs
    if packs and form.bias_pairs:
        yield _variant("bias_rows", bias_rows_kernel, form)
    yield _variant("queries", queries_kernel, form)
    if packs:
        yield _variant("seal", seal_kernel, form)
    for name, new_tokens in (("decode", 1), ("prefill", MANY_TOKENS)):
        yield Variant(name=f"attend_{name}", kernel=attend_kernel, constants=form.attend_constants(new_tokens))
    yield Variant(name="merge", kernel=merge_kernel, constants=form.merge_constants())
    yield _variant("append", append_kernel, form)


def _variant(name: str, kernel: Any, form: LayerForm) -> Variant:
    return Variant(name=name, kernel=kernel, constants=form.constants(kernel))
