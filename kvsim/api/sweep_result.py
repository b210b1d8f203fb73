"""Results of a sweep: tables, a figure and files."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvsim.display import Tabular, in_seconds, structured
from kvsim.files import writing
from kvsim.report.sweep import sweep_table, with_short_names
from kvsim.results.result import make_directory
from kvsim.study.table import save_csv, save_parquet

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.figure import Figure
    from numpy.typing import NDArray
    from rich.console import RenderableType

    Row = dict[str, Any]


@dataclass(frozen=True, eq=False, repr=False)
class Sweep(Tabular):
    """Results of a sweep, in the order of its plan.

    ``table`` and ``means`` have times in seconds; ``cells``, ``seed_means`` and the files have
    vLLM's names and milliseconds.

    Attributes
    ----------
    cells : one row per run: the varied options, its summary, its digest, its error or None
    seed_means : one row per combination of options: means over seeds, and half-widths of 95 %
        intervals in ``..._ci95``; empty if there is one seed
    varied : options with several values, without the seed
    header : model, GPU and requests, in words
    notes : notes on the runs
    """

    cells: list[Row]
    seed_means: list[Row]
    varied: tuple[str, ...]
    header: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def table(self) -> NDArray[Any]:
        """One row per run as a structured array; times are seconds, NaN means no value."""
        return structured([in_seconds(row) for row in self.cells])

    @property
    def means(self) -> NDArray[Any]:
        """Means over seeds, one row per combination of options, as a structured array (seconds)."""
        return structured([in_seconds(row) for row in self.shown_rows])

    @property
    def shown_rows(self) -> list[Row]:
        """The rows of the printed table: means if there are several seeds, else the runs."""
        return self.seed_means or self.cells

    def plot(self) -> Figure:
        """Return a figure: throughput and latencies over one option, a line per value of a second.

        Raises
        ------
        ValueError
            Unless one or two options vary, at least one of them a number.
        """
        from kvsim.report.plots.sweep import axes_of
        from kvsim.report.plots.sweep import sweep as draw

        x, lines = axes_of(self.shown_rows, self.varied)
        rows = with_short_names(self.shown_rows, self.varied)
        return draw(rows, x, lines, "\n".join(self.header))

    def save(self, directory: str | Path) -> None:
        """Write ``table.csv`` and ``table.parquet``, and ``means.csv`` for several seeds.

        Raises
        ------
        ValueError
            If the directory cannot be written.
        """
        folder = make_directory(directory)
        with writing(directory):
            save_tables(self.cells, self.seed_means, folder)

    def to_dict(self) -> dict[str, Any]:
        """Return what ``kvsim sweep --json`` prints; an infinite rate is a text."""
        means = {"means": _finite(self.seed_means)} if self.seed_means else {}
        return {"cells": _finite(self.cells)} | means

    def _shown(self) -> RenderableType:
        return sweep_table(self.shown_rows, self.varied, self.header)


def save_tables(rows: Sequence[Row], means: Sequence[Row], folder: Path) -> None:
    """Write the rows of a sweep, and its means if it has several seeds."""
    save_csv(rows, folder / "table.csv")
    save_parquet(rows, folder / "table.parquet")
    if means:
        save_csv(means, folder / "means.csv")


def _finite(rows: Sequence[Row]) -> list[Row]:
    """Return rows as JSON can hold them: an infinite rate is a text there."""
    return [
        {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        for row in rows
    ]
