"""A run or a comparison on disk, figures included."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kvsim.files import write_whole

if TYPE_CHECKING:
    from pathlib import Path

    from kvsim.results.comparison import Comparison
    from kvsim.results.result import Result


def save_with_figures(runs: Result | Comparison, folder: Path) -> None:
    """Write tables, JSON and PNG figures; each file appears whole or not at all.

    Raises
    ------
    ValueError
        If the folder cannot be written.
    """
    from kvsim.report import plot

    runs.save(folder)
    for name, draw in plot.FIGURES.items():
        figure = draw(runs)
        write_whole(folder / f"{name}.png", partial(figure.savefig, dpi=130))
