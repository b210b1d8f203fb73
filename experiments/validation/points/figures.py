"""Pictures of measured points: predicted over measured, and errors by clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.validation.figures import diagonal, plain
from experiments.validation.points.errors import group_of, of_half

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.validation.points.run import Pair

#: A colour per model and format, a marker per card.
MARKERS = "osD^vP*X<>"
SHOWN = ("TPOT", "TTFT")
#: Largest error on the linear part of an axis of errors, percent.
LINEAR = 20
TICKS = (-50, -20, -10, 0, 10, 20, 50, 100, 500)


def styles(pairs: Sequence[Pair]) -> dict[tuple[str, ...], dict[str, Any]]:
    """Return the colour and the marker of each group."""
    groups = sorted({group_of(pair.point) for pair in pairs})
    kinds = list(dict.fromkeys(group[:2] for group in groups))
    cards = sorted({group[2] for group in groups})
    return {
        group: {
            "color": f"C{kinds.index(group[:2]) % 10}",
            "marker": MARKERS[cards.index(group[2]) % len(MARKERS)],
        }
        for group in groups
    }


def predicted(figure: Any, pairs: Sequence[Pair]) -> None:
    """Draw every point, a panel per measure; those that constants may rest on are hollow."""
    figure.set_size_inches(11.5, 7.0)
    panels = figure.subplots(1, len(SHOWN))
    known = styles(of_half(pairs, "all"))
    for axes, measure in zip(panels, SHOWN, strict=True):
        for half in ("fitted", "held out"):
            of = of_half(pairs, half)
            for group, style in known.items():
                some = [pair for pair in of if group_of(pair.point) == group]
                axes.loglog(
                    [1e3 * pair.point.measured[measure] for pair in some],
                    [1e3 * pair.found.ours[measure] for pair in some],
                    linestyle="",
                    markersize=4.5,
                    alpha=0.75,
                    fillstyle="full" if half == "held out" else "none",
                    label=" ".join(group) if half == "held out" else None,
                    **style,
                )
        diagonal(axes, 10)
        axes.set_title(measure, fontsize=10)
        axes.set_xlabel("measured, ms", fontsize=9)
    panels[0].set_ylabel("simulated, ms", fontsize=9)
    legend_below(figure, panels[0])
    figure.suptitle(
        "Measured servers: simulated against measured means "
        "(grey: within 10 %; hollow: the half for fitting constants)",
        fontsize=11,
    )


def by_clients(figure: Any, pairs: Sequence[Pair]) -> None:
    """Draw each group's median error over the clients, a panel per measure, and every point."""
    figure.set_size_inches(11.5, 5.6)
    panels = figure.subplots(1, len(SHOWN))
    of = of_half(pairs, "all")
    for axes, measure in zip(panels, SHOWN, strict=True):
        axes.axhline(0, color="black", linewidth=0.8)
        for group, style in styles(of).items():
            some = [pair for pair in of if group_of(pair.point) == group]
            clients = np.array([pair.point.concurrency for pair in some])
            errors = np.array([pair.errors[measure] for pair in some])
            axes.semilogx(clients, errors, ".", markersize=2.5, alpha=0.35, color=style["color"])
            sizes = np.unique(clients)
            medians = [np.median(errors[clients == size]) for size in sizes]
            label = " ".join(group)
            axes.semilogx(sizes, medians, linewidth=1, markersize=4.5, label=label, base=2, **style)
        plain(axes.xaxis, base=2)
        axes.set_yscale("symlog", linthresh=LINEAR)  # a few errors are many times as large
        low, high = axes.get_ylim()
        axes.set_yticks([tick for tick in TICKS if low <= tick <= high])
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.set_title(measure, fontsize=10)
        axes.set_xlabel("clients, each with one request in flight", fontsize=9)
        axes.grid(alpha=0.25)
    panels[0].set_ylabel("simulated over measured, %", fontsize=9)
    legend_below(figure, panels[0])
    figure.suptitle("Error by clients: medians, and every point", fontsize=11)


def legend_below(figure: Any, axes: Any) -> None:
    """Write the groups under the panels."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, loc="outside lower center", ncols=4)
