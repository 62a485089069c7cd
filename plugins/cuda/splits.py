"""How the keys of a step are split among programs."""

from __future__ import annotations

from dataclasses import dataclass

from kvedge.plugins.cuda.constants import query_block
from kvedge.plugins.cuda.step_tensors import StepTensors


@dataclass(frozen=True, kw_only=True)
class Splits:
    """Splits of packed pages, then of exact ones, and the pages of each."""

    packed: int
    packed_pages: int
    exact: int
    exact_pages: int

    @property
    def count(self) -> int:
        """All of them."""
        return self.packed + self.exact


def splits_of(on: StepTensors, pages_a_split: int) -> Splits:
    """As many as the block tables have room for where few tokens are new; a prompt has work enough without."""
    layer, rules, page = on.layer, on.layer.rules, on.layer.rules.page
    new_pages = -(-on.new_tokens // page) + 1
    exact = rules.recent // page + 1 if rules.packs else on.ring_pages + new_pages
    if on.new_tokens > query_block(layer, 1).tokens:
        return Splits(packed=min(1, on.packed_slots), packed_pages=max(1, on.packed_slots), exact=1, exact_pages=exact)
    return Splits(
        packed=-(-on.packed_slots // pages_a_split),
        packed_pages=pages_a_split,
        exact=-(-exact // pages_a_split),
        exact_pages=pages_a_split,
    )
