"""Where a step writes: never two things to one slot, whatever the order in which an engine scatters."""

from __future__ import annotations

import numpy as np
import pytest
from plain_layers import run_formula
from streams import make_layer

from kvedge.export.plain.expr import Expr
from kvedge.export.plain.places import Profile, Tables, find_places
from kvedge.targets.kinds import Kind
from kvedge.targets.visibility import hot_slot, sealed_pages, sink_pages

NEW = 60
LAYER = make_layer(Kind.INT3)
RULES = LAYER.rules
PAGES = RULES.capacity(0, NEW)
PROFILE = Profile(
    new=NEW,
    hot_pages=PAGES.hot_pages,
    hot_slots=PAGES.hot_pages,
    packed_pages=PAGES.packed_pages,
    packed_slots=PAGES.packed_pages,
)


def places(context: int, num_new: int) -> list[np.ndarray]:
    """written, pages and offsets [N]; ids [M] and first tokens [M] of sealed pages; whether any is sealed."""

    def formula(hot: Expr, packed: Expr, before: Expr, new: Expr) -> tuple[Expr, ...]:
        found = find_places(RULES, PROFILE, Tables(hot=hot, packed=packed, context=before, num_new=new))
        assert found.packed is not None
        sealed = found.packed.sealed_tokens.reshape(-1, RULES.page).part(1, 0, 1).squeeze(1)
        return found.written, found.pages, found.offsets, found.packed.sealed_ids, sealed, found.packed.seals_any

    tables = [np.arange(number, dtype=np.int32)[None] for number in (PAGES.hot_pages, PAGES.packed_pages)]
    return run_formula(formula, *tables, *(np.array([number], np.int32) for number in (context, num_new)))


@pytest.mark.parametrize("context", [0, 3, 21, 100])
@pytest.mark.parametrize("num_new", [1, 8, 59, 60])
def test_one_slot_gets_one_token(context: int, num_new: int) -> None:
    """The ring has fewer slots than the step has tokens: the newest of each, and all sinks."""
    written, pages, offsets, *_ = places(context, num_new)
    ring = PAGES.hot_pages - sink_pages(RULES.sinks, RULES.page)
    assert ring * RULES.page < NEW
    found = dict(zip(zip(pages.tolist(), offsets.tolist(), strict=True), written.tolist(), strict=True))
    assert len(found) == len(set(zip(pages.tolist(), offsets.tolist(), written.tolist(), strict=True)))
    orders = range(context, context + num_new)
    want = {hot_slot(order, RULES.sinks, RULES.page, ring): order - context for order in orders}
    assert found == want


@pytest.mark.parametrize("context", [0, 3, 21, 100])
@pytest.mark.parametrize("num_new", [1, 8, 59, 60])
def test_one_page_is_sealed_from_one_place(context: int, num_new: int) -> None:
    *_, ids, tokens, seals_any = places(context, num_new)
    numbers = [sealed_pages(count, RULES.sinks, RULES.page, RULES.recent) for count in (context, context + num_new)]
    assert bool(seals_any[0]) == (numbers[0] < numbers[1])
    found = dict(zip(ids.tolist(), tokens.tolist(), strict=True))
    assert len(found) == len(set(zip(ids.tolist(), tokens.tolist(), strict=True)))
    if seals_any[0]:
        assert set(found) == {number % PAGES.packed_pages for number in range(*numbers)}
    else:
        assert len(found) == 1
