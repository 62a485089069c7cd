"""append: write the new keys and values of a step to their slots in the hot pool."""

from __future__ import annotations

from kvedge.plugins.reference.tokens import ring_width, stored
from kvedge.plugins.step import PagedStep
from kvedge.targets.spec import LayerSpec
from kvedge.targets.visibility import hot_slot


def append(layer: LayerSpec, step: PagedStep) -> None:
    """Store new tokens; of a chunk longer than the ring only the newest that fit, so no slot is written twice."""
    rules, ring = layer.rules, ring_width(layer.rules, step)
    for row in range(len(step.context)):
        before, new = int(step.context[row]), int(step.num_new[row])
        for order in range(before, before + new):
            if order >= rules.sinks and order + ring * rules.page < before + new:
                continue
            column, offset = hot_slot(order, rules.sinks, rules.page, ring)
            page = step.hot[step.hot_table[row, column]]
            page[0, :, offset] = stored(step.k[row, :, order - before], step.hot.dtype)
            page[1, :, offset] = stored(step.v[row, :, order - before], step.hot.dtype)
