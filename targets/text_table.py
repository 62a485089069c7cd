"""Tables as plain text: columns as wide as what they hold, whatever the width of the terminal."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines of a table: the first column to the left, the others to the right, a ruler under the header."""
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]
    ruler = ["-" * width for width in widths]
    return "\n".join(_line(cells, widths) for cells in (header, ruler, *rows))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (
        f"{cell:<{width}}" if at == 0 else f"{cell:>{width}}"
        for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join((first, *rest)).rstrip()
