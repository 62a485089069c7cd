"""Where a step writes: never two things to one slot, whatever the order in which an engine scatters."""

from __future__ import annotations

import numpy as np
import pytest
from plain_layers import run_formula
from streams import make_layer

from kvedge.export.plain.places import GraphSize, Tables, find_places
from kvedge.export.standard.expr import Expr
from kvedge.targets.kinds import Kind
from kvedge.targets.visibility import hot_slot, sealed_pages, sink_pages

NEW = 60  # of the chunk and of all steps here, some of which bring fewer
LAYER = make_layer(Kind.INT3)
RULES = LAYER.rules
PAGES = RULES.capacity(0, NEW)
SIZE = GraphSize(
    chunk=NEW,
    hot_pages=PAGES.hot_pages,
    hot_slots=PAGES.hot_pages,
    packed_pages=PAGES.packed_pages,
    packed_slots=PAGES.packed_pages,
)


def places(context: int, num_new: int, new: int) -> list[np.ndarray]:
    """written [N]; rows [N, 2 * H]; ids [M] and first tokens [M] of sealed pages; whether any is sealed."""

    def formula(hot: Expr, packed: Expr, before: Expr, new: Expr, ids: Expr) -> tuple[Expr, ...]:
        tables = Tables(hot=hot, packed=packed, context=before, num_new=new, new=ids.size(0))
        found = find_places(LAYER, SIZE, tables)
        assert found.packed is not None
        sealed = found.packed.sealed_tokens.reshape(-1, RULES.page).part(1, 0, 1).squeeze(1)
        rows = found.rows.reshape(-1, 2 * LAYER.kv_heads)
        return found.written, rows, found.packed.sealed_ids.squeeze(1), sealed, found.packed.seals_any

    tables = [np.arange(number, dtype=np.int32)[None] for number in (PAGES.hot_pages, PAGES.packed_pages)]
    counts = (np.array([number], np.int32) for number in (context, num_new))
    return run_formula(formula, *tables, *counts, np.zeros(new, np.int64))


def hot_rows(order: int, ring: int) -> tuple[int, ...]:
    """Rows of the hot pool that hold a token, keys of all heads, then values."""
    column, offset = hot_slot(order, RULES.sinks, RULES.page, ring)
    shape = LAYER.hot_shape(PAGES.hot_pages)[:-1]
    sides = np.indices((2, LAYER.kv_heads)).reshape(2, -1)
    return tuple(np.ravel_multi_index((np.full(len(sides[0]), column), *sides, offset), shape).tolist())


steps = pytest.mark.parametrize(
    ("context", "num_new", "new"),
    [
        (context, num_new, new)
        for context in (0, 3, 21, 100)
        for num_new, new in ((1, 1), (1, NEW), (8, 8), (8, 9), (17, 17), (59, 60), (60, 60))
    ],
)


@steps
def test_one_slot_gets_one_token(context: int, num_new: int, new: int) -> None:
    """The ring has fewer slots than the longest step has tokens: the newest of each, and all sinks."""
    written, rows, *_ = places(context, num_new, new)
    assert len(written) == new
    ring = PAGES.hot_pages - sink_pages(RULES.sinks, RULES.page)
    assert ring * RULES.page < NEW
    pairs = {(tuple(row), token) for row, token in zip(rows.tolist(), written.tolist(), strict=True)}
    assert len(dict(pairs)) == len(pairs)
    orders = range(context, context + num_new)
    assert dict(pairs) == {hot_rows(order, ring): order - context for order in orders}


@steps
def test_one_page_is_sealed_from_one_place(context: int, num_new: int, new: int) -> None:
    *_, ids, tokens, seals_any = places(context, num_new, new)
    assert len(ids) == -(-new // RULES.page)
    numbers = [sealed_pages(count, RULES.sinks, RULES.page, RULES.recent) for count in (context, context + num_new)]
    assert bool(seals_any[0]) == (numbers[0] < numbers[1])
    pairs = set(zip(ids.tolist(), tokens.tolist(), strict=True))
    found = dict(pairs)
    assert len(found) == len(pairs)
    if seals_any[0]:
        assert set(found) == {number % PAGES.packed_pages for number in range(*numbers)}
    else:
        assert len(found) == 1
