"""Block tables of one session in one group: which page stands in which column.

The hot table has a column for each sink page, then the ring. The packed table is circular: sealed page p
stands in column p mod its width. Columns get their page when a token first needs it and keep it.
"""

from __future__ import annotations

from kvedge.runtime.pages import NO_PAGE, PagePool
from kvedge.targets.spec import Capacity, PageRules
from kvedge.targets.visibility import hot_slot, sealed_pages, sink_pages


class GroupTables:
    """Hot and packed table of one session for layers with equal rules."""

    def __init__(self, rules: PageRules, capacity: Capacity, hot_pool: PagePool, packed_pool: PagePool) -> None:
        self.rules = rules
        self.hot = [NO_PAGE] * capacity.hot_pages
        self.packed = [NO_PAGE] * capacity.packed_pages
        self._hot_pool, self._packed_pool = hot_pool, packed_pool

    def reserve(self, first: int, last: int) -> None:
        """Give pages to the columns that tokens of orders [first, last) write: their own, and what they seal."""
        rules = self.rules
        ring = len(self.hot) - sink_pages(rules.sinks, rules.page)
        oldest_kept = last - ring * rules.page
        for order in range(first, last):
            if order < rules.sinks or order >= oldest_kept:
                _fill(self.hot, hot_slot(order, rules.sinks, rules.page, ring)[0], self._hot_pool)
        if self.packed:
            sealed = (sealed_pages(n, rules.sinks, rules.page, rules.recent) for n in (first, last))
            for page in range(*sealed):
                _fill(self.packed, page % len(self.packed), self._packed_pool)

    def release(self) -> None:
        """Give all pages back."""
        for table, pool in ((self.hot, self._hot_pool), (self.packed, self._packed_pool)):
            for column, page in enumerate(table):
                if page != NO_PAGE:
                    pool.release(page)
                    table[column] = NO_PAGE


def _fill(table: list[int], column: int, pool: PagePool) -> None:
    if table[column] == NO_PAGE:
        table[column] = pool.take()
