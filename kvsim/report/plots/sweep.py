"""The figure of a sweep: three metrics against an option, a line per value of another."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from kvsim.report.colours import LINES, STYLES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes

#: Key of the summary, title of the panel, and factor of the shown value.
PANELS = (
    ("output_throughput", "output tokens/s", 1.0),
    ("p99_ttft_ms", "p99 TTFT (s)", 1e-3),
    ("mean_tpot_ms", "mean TPOT (ms)", 1.0),
)
#: An axis with at most this number of values has a tick at each of them.
MOST_MARKED = 8


def axes_of(rows: Sequence[Mapping[str, Any]], varied: Sequence[str]) -> tuple[str, str | None]:
    """Return the option along the axis, and the option with one line per value (None if absent).

    Raises
    ------
    ValueError
        If no option or more than two options are varied, or none of them has only numbers.
    """
    if len(varied) not in (1, 2):
        raise ValueError(f"{len(varied)} options are varied, and a figure shows one or two")
    for name in varied:
        if all(isinstance(row[name], int | float) for row in rows):
            return name, next((other for other in varied if other != name), None)
    raise ValueError(f"the values of {' and '.join(varied)} are not numbers")


def _label(name: str | None, value: Any) -> str | None:
    if name is None:
        return None
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{name.replace('_', ' ')} {text}"


def _scale(axes: Axes, values: list[float]) -> None:
    """Mark the values that were run; the axis is logarithmic if they span a factor of 8."""
    if values and 0 < 8 * values[0] <= values[-1]:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    if len(values) <= MOST_MARKED:
        axes.set_xticks(values, [f"{value:g}" for value in values])


def sweep(
    rows: Sequence[Mapping[str, Any]], x: str, lines: str | None = None, head: str = ""
) -> Figure:
    """Draw a sweep; error bars are 95 % intervals, if known.

    The horizontal axis is logarithmic where its largest value is at least eight times its smallest.

    Parameters
    ----------
    rows : rows of the sweep's table, or of its means over seeds
    x : option along the horizontal axis; its values are numbers
    lines : option with one line per value
    head : title of the figure: model, GPU and requests
    """
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    panels = figure.subplots(1, len(PANELS))
    kinds = list(dict.fromkeys(row[lines] for row in rows)) if lines else [None]
    for axes, (key, title, unit) in zip(panels, PANELS, strict=True):
        for index, kind in enumerate(kinds):
            mine = [row for row in rows if lines is None or row[lines] == kind]
            points = sorted(
                (row[x], unit * row[key], unit * (row.get(f"{key}_ci95") or 0.0))
                for row in mine
                if row.get(key) is not None and math.isfinite(row[x])
            )
            if points:
                places, values, widths = zip(*points, strict=True)
                axes.errorbar(
                    places,
                    values,
                    yerr=widths if any(widths) else None,
                    marker="o",
                    markersize=3,
                    capsize=2,
                    color=LINES[index % len(LINES)],
                    linestyle=STYLES[index // len(LINES) % len(STYLES)],
                    label=_label(lines, kind),
                )
        _scale(axes, sorted({row[x] for row in rows if math.isfinite(row[x])}))
        axes.set_xlabel(x.replace("_", " "))
        axes.set_title(title, fontsize=9)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    if head:
        figure.suptitle(head, fontsize=9)
    if lines:
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8
        )
    return figure
