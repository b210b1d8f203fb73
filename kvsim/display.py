"""Results at a prompt and in a notebook: the table that the command line prints, and a figure.

``kvsim.results`` must not import ``kvsim.report``. So a result class holds the import paths of the
functions that show it, and these are imported at first use.
"""

from __future__ import annotations

import io
import re
import shutil
import sys
from abc import ABC, abstractmethod
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd
    from matplotlib.figure import Figure
    from numpy.typing import NDArray
    from rich.console import Console, RenderableType

#: Columns of an output that is not a terminal, such as a pipe.
WIDTH = 100
#: HTML element around a table in a notebook; Rich replaces ``{code}``.
ELEMENT = '<pre style="white-space:pre;overflow-x:auto;line-height:normal">{code}</pre>'


class Displayed:
    """A result with the command line's table as its text and its HTML.

    ``shown_by`` is the import path of the function that returns the table: a text or a renderable
    of Rich.
    """

    shown_by: ClassVar[str]

    def __repr__(self) -> str:
        shown = self._shown()
        if isinstance(shown, str):  # with lines to copy, which Rich would wrap
            return shown
        console = _console()
        with console.capture() as captured:
            console.print(shown, highlight=False)
        return "\n".join(line.rstrip() for line in captured.get().splitlines())

    def _repr_html_(self) -> str:
        """Return the table as HTML, which notebooks show."""
        console, shown = _console(record=True), self._shown()
        is_text = isinstance(shown, str)
        console.print(shown, highlight=False, markup=not is_text, soft_wrap=is_text)
        return console.export_html(inline_styles=True, code_format=ELEMENT)

    def _shown(self) -> RenderableType:
        shown: RenderableType = _at(self.shown_by)(self)
        return shown


class Tabular(Displayed, ABC):
    """A result with rows, as a structured array, a DataFrame or a figure.

    ``plotted_by`` is the import path of the function that draws it.
    """

    plotted_by: ClassVar[str]

    @property
    @abstractmethod
    def table(self) -> NDArray[Any]:
        """The rows as a structured array: times in seconds; NaN or an empty text for no value."""

    def to_pandas(self) -> pd.DataFrame:
        """Return :attr:`table` as a DataFrame."""
        import pandas as pd

        table = self.table
        return pd.DataFrame({name: table[name] for name in table.dtype.names or ()})

    def plot(self) -> Figure:
        """Return a figure of the rows; ``figure.savefig(path)`` writes it."""
        figure: Figure = _at(self.plotted_by)(self)
        return figure


def structured(rows: Sequence[Mapping[str, Any]]) -> NDArray[Any]:
    """Return rows with the same keys as a structured array.

    A column holds booleans, int64, float64 (NaN for None), or texts (empty for None).

    Examples
    --------
    >>> structured([{"size": 16, "ttft": 0.5}, {"size": 32, "ttft": None}])["ttft"]
    array([0.5, nan])
    """
    names = list(rows[0]) if rows else []
    columns = {name: _column([row[name] for row in rows]) for name in names}
    table = np.zeros(len(rows), [(name, column.dtype) for name, column in columns.items()])
    for name, column in columns.items():
        table[name] = column
    return table


def in_seconds(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with milliseconds converted to seconds, and ``_ms`` cut from their names.

    Examples
    --------
    >>> in_seconds({"completed": 8, "p99_ttft_ms": 250.0, "p99_ttft_ms_ci95": 10.0})
    {'completed': 8, 'p99_ttft': 0.25, 'p99_ttft_ci95': 0.01}
    """
    found: dict[str, Any] = {}
    for name, value in row.items():
        plain = re.sub(r"_ms(?=$|_ci95$)", "", name)
        found[plain] = value / 1000 if plain != name and value is not None else value
    return found


def _column(values: list[Any]) -> NDArray[Any]:
    kinds = {type(value) for value in values if value is not None}
    if not kinds <= {bool, int, float}:
        return np.array(["" if value is None else str(value) for value in values])
    if None not in values and len(kinds) == 1:
        return np.array(values)
    return np.array([np.nan if value is None else value for value in values], np.float64)


def _at(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def _console(*, record: bool = False) -> Console:
    """Return a console that prints nowhere, as wide as the terminal or else ``WIDTH``."""
    from rich.console import Console

    width = shutil.get_terminal_size((WIDTH, 24)).columns
    if record or sys.stdout is None or not sys.stdout.isatty():
        width = max(width, WIDTH)
    return Console(
        file=io.StringIO(), width=width, record=record, color_system=None, force_jupyter=False
    )
