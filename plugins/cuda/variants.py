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
"""New tokens, or rows of queries, of one program that appends, prepares or merges."""

MANY_TOKENS = 1024
"""Stands for a prompt."""


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


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One kernel to compile.

    Args:
        warps: threads of a program, in warps of 32.
        fuses: whether products and sums may be one operation; not where codes must be those of the reference.
    """

    name: str
    kernel: Any
    constants: dict[str, Any]
    warps: int
    fuses: bool


def variants(form: LayerForm) -> Iterator[Variant]:
    """All kernels of a layer."""
    if form.layer.rules.packs and form.bias_pairs:
        constants = form.constants(bias_rows_kernel)
        yield Variant(name="bias_rows", kernel=bias_rows_kernel, constants=constants, warps=1, fuses=True)
    yield Variant(name="queries", kernel=queries_kernel, constants=form.constants(queries_kernel), warps=4, fuses=True)
    if form.layer.rules.packs:
        yield Variant(name="seal", kernel=seal_kernel, constants=form.constants(seal_kernel), warps=8, fuses=False)
    for name, new_tokens in (("decode", 1), ("prefill", MANY_TOKENS)):
        constants = form.attend_constants(new_tokens)
        yield Variant(name=f"attend_{name}", kernel=attend_kernel, constants=constants, warps=8, fuses=True)
    yield Variant(name="merge", kernel=merge_kernel, constants=form.constants(merge_kernel), warps=4, fuses=True)
    yield Variant(name="append", kernel=append_kernel, constants=form.constants(append_kernel), warps=4, fuses=True)
