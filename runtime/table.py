"""Block tables of one session in one group: which page stands in which column.

The hot table has a column for each sink page, then the ring. The packed table is circular: sealed page p
stands in column p mod its width. Columns get their page when a token first needs it and keep it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvedge.runtime.pages import NO_PAGE, PagePool
from kvedge.targets.spec import Capacity, PageRules
from kvedge.targets.visibility import hot_slot, sealed_pages, sink_pages


@dataclass(frozen=True)
class Held:
    """What the tables of a sequence hold: orders of exact tokens, numbers of packed pages."""

    sinks: range
    ring: range
    packed: range

    @property
    def orders(self) -> list[int]:
        """All exact tokens."""
        return [*self.sinks, *self.ring]


class GroupTables:
    """Hot and packed table of one session for layers with equal rules."""

    def __init__(self, rules: PageRules, capacity: Capacity, hot_pool: PagePool, packed_pool: PagePool) -> None:
        self.rules = rules
        self.hot = [NO_PAGE] * capacity.hot_pages
        self.packed = [NO_PAGE] * capacity.packed_pages
        self._hot_pool, self._packed_pool = hot_pool, packed_pool

    def reserve(self, first: int, last: int) -> None:
        """Give pages to the columns that tokens of orders [first, last) write: their own, and what they seal."""
        oldest_kept = last - self._ring * self.rules.page
        sinks = self.rules.sinks
        self._fill(
            (order for order in range(first, last) if order < sinks or order >= oldest_kept),
            range(self._sealed(first), self._sealed(last)) if self.packed else (),
        )

    def held(self, num_tokens: int, high: int) -> Held:
        """What is whole of num_tokens tokens, where up to `high` were written."""
        sinks, oldest_kept = self.rules.sinks, high - self._ring * self.rules.page
        width, sealed = len(self.packed), self._sealed(num_tokens)
        return Held(
            sinks=range(min(sinks, num_tokens)),
            ring=range(max(sinks, oldest_kept), max(sinks, num_tokens)),
            packed=range(max(0, self._sealed(high) - width), sealed) if width else range(0),
        )

    def hold(self, held: Held) -> None:
        """Give pages to all of it."""
        self._fill(held.orders, held.packed)

    def hot_places(self, orders: Iterable[int]) -> tuple[list[int], list[int]]:
        """Pages and offsets in them of exact tokens."""
        slots = [self._slot(order) for order in orders]
        return [self.hot[column] for column, _ in slots], [offset for _, offset in slots]

    def packed_places(self, numbers: Iterable[int]) -> list[int]:
        """Pages of the pool that hold packed pages."""
        return [self.packed[number % len(self.packed)] for number in numbers]

    def release(self) -> None:
        """Give all pages back."""
        for table, pool in ((self.hot, self._hot_pool), (self.packed, self._packed_pool)):
            for column, page in enumerate(table):
                if page != NO_PAGE:
                    pool.release(page)
                    table[column] = NO_PAGE

    @property
    def _ring(self) -> int:
        """Columns of the ring."""
        return len(self.hot) - sink_pages(self.rules.sinks, self.rules.page)

    def _slot(self, order: int) -> tuple[int, int]:
        return hot_slot(order, self.rules.sinks, self.rules.page, self._ring)

    def _sealed(self, num_tokens: int) -> int:
        return sealed_pages(num_tokens, self.rules.sinks, self.rules.page, self.rules.recent)

    def _fill(self, orders: Iterable[int], numbers: Iterable[int]) -> None:
        for order in orders:
            _fill(self.hot, self._slot(order)[0], self._hot_pool)
        for number in numbers:
            _fill(self.packed, number % len(self.packed), self._packed_pool)


def _fill(table: list[int], column: int, pool: PagePool) -> None:
    if table[column] == NO_PAGE:
        table[column] = pool.take()
