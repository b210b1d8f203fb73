"""The figure of a calibration: errors of each run before and after the fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from kvsim.report.colours import LINES

if TYPE_CHECKING:
    from collections.abc import Mapping


def calibration(answer: Mapping[str, Any]) -> Figure:
    """Draw errors in percent, a panel per latency; a star marks runs not used for fitting.

    Raises
    ------
    ValueError
        If the calibration used no benchmarks: the errors are those of benchmarks.
    """
    runs = [(run, "") for run in answer["fitted"]] + [(run, " *") for run in answer["held_out"]]
    kinds = list(dict.fromkeys(kind for run, _ in runs for kind in run["before"]))
    if not kinds:
        raise ValueError("no figure: errors are those of benchmarks, and there are none")
    figure = Figure(figsize=(4.0 * len(kinds) + 2, 1.5 + 0.4 * len(runs)), layout="constrained")
    panels = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for axes, kind in zip(panels, kinds, strict=True):
        for index, when in enumerate(("before", "after")):
            values = [run[when].get(kind, 0.0) for run, _ in runs]
            places = [place + 0.4 * index - 0.2 for place in range(len(runs))]
            axes.barh(places, values, 0.4, color=LINES[index], label=when)
        axes.axvline(0, color="0.3", linewidth=0.8)
        axes.set_xlabel(f"{kind.upper()}: simulated over measured (%)")
        axes.grid(alpha=0.3, axis="x")
    panels[0].set_yticks(range(len(runs)), [f"{run['name']}{star}" for run, star in runs])
    panels[0].invert_yaxis()
    panels[0].legend(fontsize=8)
    return figure
