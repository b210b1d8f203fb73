"""A run or a comparison on disk, figures included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.files import whole_folder, write_json, writing
from kvsim.results.result import OWNED, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from matplotlib.figure import Figure

    from kvsim.results.comparison import Comparison


def save_with_figures(runs: Result | Comparison, folder: Path) -> None:
    """Write tables, JSON and PNG figures, all of them or nothing."""
    from kvsim.report import plot

    with writing(folder), whole_folder(folder, OWNED) as temporary:
        runs.save(temporary)
        for name, draw in plot.FIGURES.items():
            draw(runs).savefig(temporary / f"{name}.png", dpi=130)
        if plot.has_features(runs):
            plot.features(runs).savefig(temporary / "features.png", dpi=130)
        if isinstance(runs, Result) and is_fleet(runs):
            plot.fleet(runs).savefig(temporary / "fleet.png", dpi=130)


def is_fleet(result: Result) -> bool:
    """Return True if a run had several replicas, or autoscaling."""
    return len(result.summary["replicas"]) > 1 or result.summary["scaling"] is not None


def save_answer(
    answer: Mapping[str, Any], draw: Callable[[], Figure], folder: Path, name: str
) -> None:
    """Write ``NAME.json`` and ``NAME.png`` of a command without a simulation, both or none."""
    with writing(folder), whole_folder(folder) as temporary:
        write_json(temporary / f"{name}.json", answer)
        draw().savefig(temporary / f"{name}.png", dpi=130)
