"""Tables for the terminal, in one layout that also fits narrow terminals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from rich.console import Console, ConsoleOptions, OverflowMethod, RenderResult


def plain_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str] | None],
    sides: str = "lr",
    *,
    padding: tuple[int, ...] = (0, 0),
    overflow: OverflowMethod = "ellipsis",
    min_width: int | None = None,
    caption: str | None = None,
) -> Table:
    """Return a table with a line under its headings and no other.

    Parameters
    ----------
    rows : texts of the cells; None instead of a row draws a line
    sides : alignment of each column, l or r; the last letter applies to all further columns, and a
        capital letter forbids wrapping
    padding, overflow, min_width : options of every cell for Rich
    caption : line below the table
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=padding, show_edge=False)  # type: ignore[arg-type]
    table.show_header, table.caption = any(headings), caption
    for heading, side in zip(headings, sides.ljust(len(headings), sides[-1]), strict=False):
        table.add_column(
            heading,
            justify="right" if side in "rR" else "left",
            no_wrap=side.isupper(),
            overflow=overflow,
            min_width=min_width,
        )
    for row in rows:
        if row is None:
            table.add_section()
        else:
            table.add_row(*row)
    return table


class NarrowTable:
    """A table that omits whole columns, with a note, instead of truncating numbers.

    Parameters
    ----------
    headings : headings of the columns; the first is aligned to the left
    rows : texts of the cells
    dropped : headings of columns that may be omitted, in the order of omission
    """

    def __init__(
        self, headings: Sequence[str], rows: Sequence[Sequence[str]], dropped: Sequence[str]
    ) -> None:
        self.headings = headings
        self.rows = rows
        self.dropped = dropped

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Show as many columns as the width allows."""
        left_out: list[str] = []
        for heading in self.dropped:
            if self._width(left_out, console, options) <= options.max_width:
                break
            left_out.append(heading)
        yield self._table(left_out)
        if left_out:
            names = ", ".join(" ".join(heading.split()) for heading in left_out)
            yield Text(f"Columns omitted for lack of width: {names}; --json has all.", style="dim")

    def _width(self, left_out: Collection[str], console: Console, options: ConsoleOptions) -> int:
        boundless = options.update(max_width=10_000)
        return self._table(left_out).__rich_measure__(console, boundless).maximum

    def _table(self, left_out: Collection[str]) -> Table:
        shown = [i for i, heading in enumerate(self.headings) if heading not in left_out]
        sides = "".join("R" if i else "L" for i in shown)
        rows = ([row[i] for i in shown] for row in self.rows)
        return plain_table([self.headings[i] for i in shown], rows, sides, min_width=3)
