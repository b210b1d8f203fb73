"""Tables that stay readable where there is little room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from rich.console import Console, ConsoleOptions, RenderResult


def plain_table() -> Table:
    """Return an empty table with a line under its headings and no other."""
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0), show_edge=False)


class NarrowTable:
    """A table that leaves whole columns out, and says so, rather than cut numbers.

    Parameters
    ----------
    headings : of the columns; the first is aligned to the left
    rows : cells as they are shown
    dropped : headings of columns that may be left out, the first to go first
    """

    def __init__(
        self, headings: Sequence[str], rows: Sequence[Sequence[str]], dropped: Sequence[str]
    ) -> None:
        self.headings = headings
        self.rows = rows
        self.dropped = dropped

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Show as many columns as there is room for."""
        left_out: list[str] = []
        for heading in self.dropped:
            if self._width(left_out, console, options) <= options.max_width:
                break
            left_out.append(heading)
        yield self._table(left_out)
        if left_out:
            names = ", ".join(" ".join(heading.split()) for heading in left_out)
            yield Text(f"No room here for: {names}; --json has all.", style="dim")

    def _width(self, left_out: Collection[str], console: Console, options: ConsoleOptions) -> int:
        boundless = options.update(max_width=10_000)
        return self._table(left_out).__rich_measure__(console, boundless).maximum

    def _table(self, left_out: Collection[str]) -> Table:
        table = plain_table()
        shown = [i for i, heading in enumerate(self.headings) if heading not in left_out]
        for i in shown:
            table.add_column(
                self.headings[i], justify="right" if i else "left", no_wrap=True, min_width=3
            )
        for row in self.rows:
            table.add_row(*(row[i] for i in shown))
        return table
