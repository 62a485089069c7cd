"""Where the keys and values of a row come from: the step's new ones, or the hot pool."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvedge.plugins.reference.quantize import to_half
from kvedge.plugins.step import PagedStep
from kvedge.targets.spec import PageRules
from kvedge.targets.visibility import hot_slot, sink_pages

Floats = NDArray[np.float32]


def stored(x: Floats, dtype: np.dtype[Any]) -> NDArray[Any]:
    """x as the hot pool keeps it."""
    return to_half(x) if dtype == np.float16 else x


def exact_token(rules: PageRules, step: PagedStep, row: int, order: int) -> tuple[Floats, Floats]:
    """Key and value [H, D] of a token, as float32.

    New tokens are rounded to the pool's dtype first, so that it makes no difference in which step a
    token arrived.
    """
    index = order - int(step.context[row])
    if index >= 0:
        new = (stored(x[row, :, index], step.hot.dtype).astype(np.float32) for x in (step.k, step.v))
        return next(new), next(new)
    column, offset = hot_slot(order, rules.sinks, rules.page, ring_width(rules, step))
    page = step.hot[step.hot_table[row, column]]
    return page[0, :, offset].astype(np.float32), page[1, :, offset].astype(np.float32)


def ring_width(rules: PageRules, step: PagedStep) -> int:
    """Pages of the ring, from the width of the block table."""
    return int(step.hot_table.shape[1]) - sink_pages(rules.sinks, rules.page)
