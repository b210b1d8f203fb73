"""The figure of a search: the rate of each configuration, or the Pareto front."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from kvsim.report.colours import LINES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes

#: Maximum number of configurations in a figure: the best ones.
MOST_DRAWN = 20


def search(answer: Mapping[str, Any]) -> Figure:
    """Draw the result of a search; a hollow bar is a rejected configuration."""
    figure = Figure(figsize=(7.4, 4.8), layout="constrained")
    axes = figure.subplots()
    rows = [one for one in answer["evaluated"] if "request_rate" in one]
    if answer["objective"] == "pareto":
        _front(axes, rows)
    else:
        _rates(axes, rows, answer)
    axes.grid(alpha=0.3)
    axes.set_title(answer["slo"], fontsize=10)
    return figure


def _name(one: Mapping[str, Any]) -> str:
    options = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in one["options"].items())
    return options or "as given"


def _rates(axes: Axes, rows: Sequence[Mapping[str, Any]], answer: Mapping[str, Any]) -> None:
    best = sorted(rows, key=lambda one: ("reason" in one, -one["request_rate"]))[:MOST_DRAWN]
    for place, one in enumerate(best):
        fill = "reason" not in one
        axes.barh(place, one["request_rate"], color=LINES[0], edgecolor=LINES[0], fill=fill)
    axes.set_yticks(range(len(best)), [_name(one) for one in best])
    axes.invert_yaxis()
    axes.set_xlabel("requests/s that meet the targets")
    if answer["asked_rate"] and answer["objective"] != "rate":
        axes.axvline(answer["asked_rate"], color="0.3", linestyle="-.", linewidth=1)


def _front(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    for index, one in enumerate(rows[:MOST_DRAWN]):
        runs = [run for run in one["runs"] if "dominated" in run]
        users = [run["output_tokens_per_second_per_user"] for run in runs]
        gpus = [run["output_tokens_per_second_per_gpu"] for run in runs]
        colour = LINES[index % len(LINES)]
        filled = [colour if not run["dominated"] else "none" for run in runs]
        axes.scatter(users, gpus, s=24, c=filled, edgecolors=colour)
        axes.scatter([], [], s=24, color=colour, label=_name(one))
    axes.set_xlabel("output tokens/s of a user")
    axes.set_ylabel("output tokens/s per GPU")
    axes.legend(fontsize=8)
