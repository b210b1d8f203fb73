"""Figures. Each function takes a Result, a Comparison or several results, and returns a Figure.

None of them touches pyplot's global state; ``figure.savefig(path)`` writes one, and a notebook
shows it when it is a cell's last value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullFormatter

from kvsim.kv.usage import HELD, WHOLE, Cause
from kvsim.report import plot_roofline
from kvsim.results.comparison import Comparison
from kvsim.results.metrics import latencies
from kvsim.results.result import Result

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from kvsim.training.memory import TrainingMemory

    Runs: TypeAlias = Result | Comparison | Mapping[str, Result]

#: Colour and label per cause; distinct without colour vision (Okabe and Ito's palette).
CAUSES = {
    Cause.TOKEN_STATES: ("#0072B2", "token states"),
    Cause.RESERVATION: ("#56B4E9", "reservation (used later)"),
    Cause.INTERNAL: ("#E69F00", "internal (asked for, never used)"),
    Cause.EXTERNAL: ("#D55E00", "external (rounding, refused head)"),
    Cause.CACHED: ("#009E73", "cached prefixes (free)"),
    Cause.FREE: ("#F2F2F2", "free"),
}
TRAINING_PARTS = ("weights", "gradients", "optimizer", "activations", "workspace")

#: Instants that a memory map shows, evenly spaced over the run.
MAP_COLUMNS = 1200

#: Of lines: colours that all can tell apart, then styles.
STYLES = ("-", "--", ":")
LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def _named(runs: Runs) -> dict[str, Result]:
    if isinstance(runs, Result):
        return {runs.config.allocator: runs}
    return dict(runs.results if isinstance(runs, Comparison) else runs)


def _legend(figure: Figure, causes: list[Cause]) -> None:
    handles = [Patch(facecolor=CAUSES[c][0], edgecolor="0.5", label=CAUSES[c][1]) for c in causes]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8)


def waste(runs: Runs) -> Figure:
    """Draw stacked bars of the KV memory held, by cause: the PagedAttention paper's Fig. 2."""
    named = {k: r for k, r in _named(runs).items() if _fractions(r) is not None}
    figure = Figure(figsize=(1.5 + 1.25 * max(len(named), 4), 4.2), layout="constrained")
    axes = figure.subplots()
    base = np.zeros(len(named))
    for cause in HELD:
        key = cause.summary_key
        heights = np.array([100 * r.summary["kv_cache"][key] for r in named.values()])
        axes.bar(range(len(named)), heights, bottom=base, color=CAUSES[cause][0], width=0.7)
        for x, (height, bottom) in enumerate(zip(heights, base, strict=True)):
            if height >= 3:
                dark = cause in (Cause.TOKEN_STATES, Cause.EXTERNAL)
                axes.text(
                    x,
                    bottom + height / 2,
                    f"{height:.1f}",
                    ha="center",
                    va="center",
                    fontsize=8,
                    color="white" if dark else "black",
                )
        base += heights
    room = 0.6 if len(named) > 1 else 1.2
    axes.set_xlim(-room, len(named) - 1 + room)
    axes.set_xticks(range(len(named)), [k.replace("+", "\n+") for k in named], fontsize=8)
    axes.set_ylabel("share of KV memory held (%)")
    axes.set_ylim(0, 100)
    axes.set_title("What KV memory is used for")
    _legend(figure, list(HELD))
    return figure


def _fractions(result: Result) -> float | None:
    tokens: float | None = result.summary["kv_cache"]["token_states"]
    return tokens


def memory(runs: Runs) -> Figure:
    """Draw KV memory by cause over time, one panel per run, and the requests running."""
    named = _named(runs)
    figure = Figure(figsize=(9, 1.2 + 2.1 * len(named)), layout="constrained")
    panels = figure.subplots(len(named), 1, sharex=True, squeeze=False)[:, 0]
    most = max((int(r.memory["num_running"].max(initial=0)) for r in named.values()), default=0)
    for axes, (name, result) in zip(panels, named.items(), strict=True):
        table = result.memory[result.memory["replica"] == 0]
        total = result.summary["kv_cache"]["bytes"] or 1
        shares = [100.0 * table[cause.column] / total for cause in WHOLE]
        colors = [CAUSES[cause][0] for cause in WHOLE]
        axes.stackplot(table["time"], shares, colors=colors, step="post", linewidth=0)
        axes.set_ylim(0, 100)
        axes.set_ylabel("KV memory (%)")
        axes.set_title(name, loc="left", fontsize=9)
        running = axes.twinx()
        running.step(table["time"], table["num_running"], where="post", color="black", lw=0.7)
        running.set_ylim(0, 1.05 * max(most, 1))
        axes.margins(x=0)
        running.set_ylabel("running (black line)")
    panels[-1].set_xlabel("time (s)")
    _legend(figure, list(WHOLE))
    return figure


def memory_map(runs: Runs) -> Figure:
    """Draw address by time, coloured by cause: where the memory goes, at a glance.

    Raises
    ------
    ValueError
        If a run was made without ``record_memory_map=True``.
    """
    named = _named(runs)
    for name, result in named.items():
        if not result.memory_map.size:
            raise ValueError(f"{name}: run it with record_memory_map=True to draw its memory map")
    figure = Figure(figsize=(9, 1.2 + 2.3 * len(named)), layout="constrained")
    panels = figure.subplots(len(named), 1, sharex=True, squeeze=False)[:, 0]
    colors = ListedColormap([CAUSES[Cause(code)][0] for code in range(len(Cause))])
    ends = {name: _end_time(result) for name, result in named.items()}
    for axes, (name, result) in zip(panels, named.items(), strict=True):
        mine = result.memory["replica"] == 0
        time, causes = result.memory["time"][mine], result.memory_map[mine]
        end = ends[name]
        gib = result.summary["kv_cache"]["bytes"] / 2**30
        columns = np.linspace(time[0], end, MAP_COLUMNS, endpoint=False)
        shown = causes[np.searchsorted(time, columns, side="right") - 1]
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
        axes.set_ylabel("address (GiB)")
        axes.set_title(name, loc="left", fontsize=9)
    panels[-1].set_xlabel("time (s)")
    _legend(figure, list(CAUSES))
    return figure


def _end_time(result: Result) -> float:
    return float(result.summary["duration"] + result.requests["arrival_time"].min())


def latency(runs: Runs) -> Figure:
    """Draw the distributions of TTFT, TPOT and end-to-end latency over requests."""
    named = _named(runs)
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    titles = {"ttft": "TTFT (s)", "tpot": "TPOT (ms/token)", "e2el": "end to end (s)"}
    for axes, (metric, title) in zip(panels, titles.items(), strict=True):
        unit = 1000.0 if metric == "tpot" else 1.0
        for index, (name, result) in enumerate(named.items()):
            seconds = latencies(result.requests, result.config.front_end_latency)[metric]
            style = STYLES[index // len(LINES) % len(STYLES)]
            _cdf(axes, unit * seconds, name, color=LINES[index % len(LINES)], linestyle=style)
        axes.set_xlabel(title)
        if metric != "tpot":
            axes.set_xscale("log")
            low, high = axes.get_xlim()
            subs = (1, 2, 5) if high < 300 * low else (1,)  # else their labels run into each other
            axes.xaxis.set_major_locator(LogLocator(subs=subs))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("share of requests")
    panels[0].set_ylim(0, 1)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure


def _cdf(axes: Axes, values: NDArray[np.float64], name: str, **look: Any) -> None:
    known = np.sort(values[~np.isnan(values)])
    if len(known):
        axes.step(known, np.arange(1, len(known) + 1) / len(known), label=name, **look)


def training_memory(budgets: Mapping[str, TrainingMemory]) -> Figure:
    """Draw one bar per training budget, by component, and the memory of the GPU as a line."""
    figure = Figure(figsize=(7, 1.6 + 0.4 * len(budgets)), layout="constrained")
    axes = figure.subplots()
    names, found = list(budgets), list(budgets.values())
    left = np.zeros(len(found))
    for part, colour in zip(TRAINING_PARTS, LINES, strict=False):
        widths = np.array([getattr(one, f"{part}_bytes") / 2**30 for one in found])
        axes.barh(range(len(found)), widths, left=left, color=colour, height=0.7, label=part)
        left += widths
    for memory_bytes in {one.gpu_memory_bytes for one in found}:
        axes.axvline(memory_bytes / 2**30, color="0.2", linestyle="--", linewidth=1)
    axes.set_yticks(range(len(found)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("GiB on one GPU (dashed: its memory)")
    figure.legend(loc="outside lower center", ncols=len(TRAINING_PARTS), frameon=False, fontsize=8)
    return figure


roofline = plot_roofline.roofline

#: What ``kvsim compare --out`` and ``kvsim run --out`` draw, by file name.
FIGURES = {"waste": waste, "memory": memory, "memory_map": memory_map, "latency": latency}
