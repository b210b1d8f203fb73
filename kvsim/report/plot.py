"""Figures. Each function takes a Result, a Comparison or several results, and returns a Figure.

No function touches pyplot's global state. ``figure.savefig(path)`` writes a figure; a notebook
shows a figure that is a cell's last value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from cycler import cycler
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.patheffects import Normal, Stroke
from matplotlib.ticker import LogLocator, NullFormatter

from kvsim.kv.usage import HELD, WHOLE, Cause
from kvsim.report.colours import CAUSES, DARK, LINES, STYLES
from kvsim.report.plots import budget as plot_budget
from kvsim.report.plots import features as plot_features
from kvsim.report.plots import fleet as plot_fleet
from kvsim.report.plots import roofline as plot_roofline
from kvsim.report.title import deployment, served
from kvsim.results.comparison import Comparison
from kvsim.results.idle import gone_time, memory_with_gaps
from kvsim.results.metrics import latencies
from kvsim.results.result import Result

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    Runs: TypeAlias = Result | Comparison | Mapping[str, Result]

#: Instants that a memory map shows, evenly spaced over the run.
MAP_COLUMNS = 1200

#: A figure draws at most twice this number of samples, or of points of a curve.
MOST_DRAWN = 600

#: Shares of requests at which the latency figure has a line, by name.
MARKS = {"p50": 0.5, "p90": 0.1, "p99": 0.01}


def _named(runs: Runs) -> dict[str, Result]:
    if isinstance(runs, Result):
        return {runs.config.allocator: runs}
    return dict(runs.results if isinstance(runs, Comparison) else runs)


def _head(figure: Figure, named: Mapping[str, Result], what: str) -> None:
    """Set the title: the quantity shown, model, GPU and requests."""
    first = next(iter(named.values()), None)
    lines = [what] if first is None else [what, deployment(first), served(first)]
    figure.suptitle("\n".join(lines), fontsize=9)


def _shown(result: Result) -> int:
    """Return the replica that memory figures show: the first one that ran a request."""
    return int(result.memory["replica"].min()) if len(result.memory) else 0


def _replicas(result: Result) -> str:
    if not len(result.memory):
        return ": no request was served"
    several = len(result.summary.get("replicas", (None,)))
    return f", replica {_shown(result)} of {several}" if several > 1 else ""


def _legend(figure: Figure, causes: list[Cause]) -> None:
    handles = [Patch(facecolor=CAUSES[c][0], edgecolor="0.5", label=CAUSES[c][1]) for c in causes]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8)


def waste(runs: Runs) -> Figure:
    """Draw stacked bars of the KV memory held, by cause: the PagedAttention paper's Fig. 2."""
    named = {
        name: run
        for name, run in _named(runs).items()
        if run.summary["kv_cache"]["token_states"] is not None
    }
    figure = Figure(figsize=(1.5 + 1.25 * max(len(named), 4), 4.2), layout="constrained")
    axes = figure.subplots()
    base = np.zeros(len(named))
    for cause in HELD:
        heights = [_share(r, cause) for r in named.values()]
        axes.bar(range(len(named)), heights, bottom=base, color=CAUSES[cause][0], width=0.7)
        base += heights
    for x, run in enumerate(named.values()):
        _numbers(axes, x, [_share(run, cause) for cause in HELD])
    room = 0.6 if len(named) > 1 else 1.2
    axes.set_xlim(-room, len(named) - 1 + room)
    axes.set_xticks(range(len(named)), [k.replace("+", "\n+") for k in named], fontsize=8)
    axes.set_ylabel("share of KV memory held (%)")
    axes.set_ylim(0, 100)
    _head(figure, named, "KV memory by cause")
    _legend(figure, list(HELD))
    return figure


def _share(run: Result, cause: Cause) -> float:
    """Return the share of a cause in the KV memory held, in percent."""
    return 100.0 * float(run.summary["kv_cache"][cause.summary_key])


def _numbers(axes: Axes, x: int, heights: list[float]) -> None:
    """Write each share into its part of a bar, or next to the bar if the part is too flat."""
    top, highest_label = sum(heights), 97.0
    for cause, height in zip(reversed(HELD), reversed(heights), strict=True):
        y, top = top - height / 2, top - height
        if height >= 3:
            color = "white" if cause in DARK else "black"
            axes.text(x, y, f"{height:.1f}", ha="center", va="center", fontsize=8, color=color)
        elif height >= 0.05:
            y = min(y, highest_label)
            axes.text(x + 0.37, y, f"{height:.1f}", va="center", fontsize=8)
            highest_label = y - 4.0  # the height of a label


def memory(runs: Runs) -> Figure:
    """Draw KV memory by cause and running requests over time, one panel per run."""
    named = _named(runs)
    figure = Figure(figsize=(9, 1.2 + 2.1 * len(named)), layout="constrained")
    panels = figure.subplots(len(named), 1, sharex=True, squeeze=False)[:, 0]
    most = max(map(_peak, named.values()), default=0)
    intervals: list[float] = []
    for axes, (name, result) in zip(panels, named.items(), strict=True):
        table = _thinned(memory_with_gaps(result, _shown(result)))
        total = result.summary["kv_cache"]["bytes"] or 1
        shares = [100.0 * table[cause.column] / total for cause in WHOLE]
        colors = [CAUSES[cause][0] for cause in WHOLE]
        axes.stackplot(table["time"], shares, colors=colors, step="post", linewidth=0)
        axes.set_ylim(0, 100)
        axes.set_ylabel("KV memory (%)")
        most_of_it = f": {_peak(result):,} running at most" if len(table) else ""
        axes.set_title(f"{name}{_replicas(result)}{most_of_it}", loc="left", fontsize=9)
        intervals += _sampled(result, table)
        running = axes.twinx()
        running.step(
            *(table["time"], table["num_running"]),
            where="post",
            color="black",
            lw=0.8,
            path_effects=[Stroke(linewidth=2.4, foreground="white"), Normal()],
        )
        running.set_ylim(0, 1.05 * max(most, 1))
        axes.margins(x=0)
        running.set_ylabel("running (black line)")
    every = f"; a sample every {min(intervals):.2g} s or more" if intervals else ""
    panels[-1].set_xlabel(f"time (s){every}")
    _head(figure, named, "KV memory over time")
    _legend(figure, list(WHOLE))
    return figure


def _peak(result: Result) -> int:
    """Return the peak number of running requests on the replica that is shown."""
    peaks = {row["replica"]: row["peak_running"] for row in result.summary["replicas"]}
    return int(peaks.get(_shown(result), result.summary["peak_running"]))


def _thinned(table: NDArray[Any]) -> NDArray[Any]:
    """Drop rows if there are many more than pixels can show."""
    return table[:: max(1, len(table) // MOST_DRAWN)]


def _sampled(result: Result, table: NDArray[Any]) -> list[float]:
    """Return the seconds between samples if these miss the peak."""
    if len(table) < 2 or int(table["num_running"].max()) == _peak(result):
        return []
    return [float(np.median(np.diff(table["time"])))]


def memory_map(runs: Runs) -> Figure:
    """Draw a map of address by time, coloured by cause.

    Raises
    ------
    ValueError
        If a run was made without ``record_memory_map=True``.
    """
    named = _named(runs)
    for name, result in named.items():
        if len(result.memory) and not result.memory_map.size:
            raise ValueError(f"{name}: run it with record_memory_map=True to draw its memory map")
    figure = Figure(figsize=(9, 1.2 + 2.3 * len(named)), layout="constrained")
    panels = figure.subplots(len(named), 1, sharex=True, squeeze=False)[:, 0]
    colors = ListedColormap([CAUSES[Cause(code)][0] for code in range(len(Cause))])
    ends = {name: _end_time(result) for name, result in named.items()}
    for axes, (name, result) in zip(panels, named.items(), strict=True):
        axes.set_title(f"{name}{_replicas(result)}", loc="left", fontsize=9)
        axes.set_ylabel("address (GiB)")
        if not len(result.memory):
            continue
        mine = result.memory["replica"] == _shown(result)
        time, causes = result.memory["time"][mine], result.memory_map[mine]
        end = ends[name]
        gib = result.summary["kv_cache"]["bytes"] / 2**30
        columns = np.linspace(time[0], end, MAP_COLUMNS, endpoint=False)
        shown = np.ma.asarray(causes[np.searchsorted(time, columns, side="right") - 1])
        shown[columns > gone_time(result, _shown(result))] = np.ma.masked
        axes.imshow(
            shown.T,
            cmap=colors,
            vmin=-0.5,
            vmax=len(Cause) - 0.5,
            extent=(time[0], end, 0, gib),
            aspect="auto",
            origin="lower",
            interpolation="nearest",
        )
        axes.set_xlim(float(time[0]), max(ends.values()))
    panels[-1].set_xlabel("time (s)")
    _head(figure, named, "KV memory by address")
    _legend(figure, list(CAUSES))
    return figure


def _end_time(result: Result) -> float:
    return float(result.summary["duration"] + result.requests["arrival_time"].min())


def latency(runs: Runs) -> Figure:
    """Draw the share of requests whose latency exceeds x: TTFT, TPOT and end-to-end latency.

    The axis of the share is logarithmic, so that the 99th percentile is as easy to read as the
    median; vertical lines are the targets of ``goodput``.
    """
    named = _named(runs)
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    titles = {"ttft": "TTFT (s)", "tpot": "TPOT (ms/token)", "e2el": "end to end (s)"}
    lowest = MARKS["p99"] / 3
    for axes, (metric, title) in zip(panels, titles.items(), strict=True):
        unit = 1000.0 if metric == "tpot" else 1.0
        for index, (name, result) in enumerate(named.items()):
            seconds = latencies(result.requests, result.config.front_end_latency)[metric]
            style = STYLES[index // len(LINES) % len(STYLES)]
            _survival(axes, unit * seconds, name, color=LINES[index % len(LINES)], linestyle=style)
            lowest = min(lowest, 1 / max(len(seconds), 1))
        for target in {(r.config.goodput or {}).get(metric) for r in named.values()} - {None}:
            axes.axvline(unit * float(target or 0) / 1000, color="0.3", linestyle="-.", linewidth=1)
        axes.set_xlabel(title)
        if metric != "tpot":
            _log_seconds(axes)
        for mark, share in MARKS.items():
            axes.axhline(share, color="0.6", linewidth=0.6)
            place = axes.get_yaxis_transform()
            axes.text(0.01, share, mark, transform=place, fontsize=7, color="0.4", va="bottom")
        axes.grid(alpha=0.3)
    panels[0].set_yscale("log")
    panels[0].set_ylim(lowest, 1)
    panels[0].yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
    panels[0].set_ylabel("share of requests that take longer")
    goals = any(r.config.goodput for r in named.values())
    _head(figure, named, f"Latencies{' (dash-dotted: goodput targets)' if goals else ''}")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure


def features(runs: Runs) -> Figure:
    """Draw features other than the prefix cache: drafts, connectors, host copies, images."""
    return plot_features.features(_named(runs))


def has_features(runs: Runs) -> bool:
    return bool(plot_features.shown(_named(runs)))


def _log_seconds(axes: Axes) -> None:
    least, most = axes.dataLim.intervalx
    if 0 < least == most:  # Matplotlib cannot always choose limits for a single value
        axes.set_xlim(least / 10, most * 10)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    subs = (1, 2, 5) if high < 300 * low else (1,)  # else their labels run into each other
    axes.xaxis.set_major_locator(LogLocator(subs=subs))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def _survival(axes: Axes, values: NDArray[np.float64], name: str, **look: Any) -> None:
    known = np.sort(values[~np.isnan(values)])
    if len(known):
        longer = 1 - np.arange(len(known)) / len(known)
        if len(known) > 2 * MOST_DRAWN:  # evenly on the logarithmic axis of the share
            ranks = len(known) - np.geomspace(len(known), 1, MOST_DRAWN)
            kept = np.unique(np.round(ranks).astype(np.int64))
            known, longer = known[kept], longer[kept]
        axes.step(known, longer, where="pre", label=name, **look)


training_memory = plot_budget.training_memory
capacity = plot_budget.capacity
roofline = plot_roofline.roofline
fleet = plot_fleet.fleet

#: Matplotlib's settings of these figures: ``plt.rcParams.update(kvsim.plot.STYLE)`` gives your own
#: figures the same lines and grid.
STYLE: dict[str, Any] = {
    "axes.prop_cycle": cycler(color=LINES),
    "axes.grid": True,
    "grid.alpha": 0.3,
    "lines.markersize": 4,
}

#: Figures of ``kvsim compare --out`` and ``kvsim run --out``, by file name.
FIGURES = {"waste": waste, "memory": memory, "memory_map": memory_map, "latency": latency}
