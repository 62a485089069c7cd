"""A pool of pages by number: free list and reference counts. The bytes lie in the engine's arrays."""

from __future__ import annotations

NO_PAGE = -1
"""Entry of a block table where no page is."""


class PagePool:
    """Pages 0 to num_pages - 1 of one group of layers, shared by all sessions."""

    def __init__(self, num_pages: int) -> None:
        self._free = list(range(num_pages - 1, -1, -1))
        self._users = [0] * num_pages

    @property
    def num_free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    def take(self) -> int:
        """A free page, now held once.

        Raises:
            MemoryError: all pages are held; the plan gave too few sessions.
        """
        if not self._free:
            raise MemoryError(f"all {len(self._users)} pages are in use: close a session, or load with more sessions")
        page = self._free.pop()
        self._users[page] = 1
        return page

    def share(self, page: int) -> None:
        """Hold a page once more."""
        assert self._users[page] > 0
        self._users[page] += 1

    def release(self, page: int) -> None:
        """Give a hold back; the last one frees the page."""
        assert self._users[page] > 0
        self._users[page] -= 1
        if self._users[page] == 0:
            self._free.append(page)
