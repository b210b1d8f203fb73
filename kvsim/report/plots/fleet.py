"""A fleet over time: replicas, queues, KV by replica, hits and transfers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from kvsim.report.title import deployment, served
from kvsim.results.idle import gone_time, memory_with_gaps
from kvsim.results.tables import FinishReason

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from kvsim.results.result import Result

#: Time bins of the queues and of the KV usage by replica.
BINS = 240
#: Time bins of means over requests; fewer bins, so that each holds enough requests.
WIDE = 48
ROOM = 1.15  # for a legend above the lines
#: Colours of lines by state of a replica or request; they differ from those of causes of waste.
READY, STARTING, DRAINING = "#0072B2", "#E69F00", "#999999"
RUNNING, WAITING = "#0072B2", "#D55E00"
#: Line styles by pool.
POOLS = ("-", "--")


def fleet(result: Result) -> Figure:
    """Draw the replicas of a run over time."""
    panels: list[tuple[Callable[[Axes, Result], None], float]] = []
    if result.summary.get("scaling"):
        panels.append((_replicas, 1.0))
    panels += [(_queues, 1.2), (_kv_by_replica, 1.4)]
    if result.requests["num_cached_tokens"].any():
        panels.append((_hits, 1.0))
    if result.summary.get("kv_transfers"):
        panels.append((_transfers, 1.0))
    heights = [height for _, height in panels]
    figure = Figure(figsize=(9, 1.0 + 1.9 * sum(heights)), layout="constrained")
    drawn = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (draw, _) in zip(drawn, panels, strict=True):
        draw(axes, result)
        axes.margins(x=0)
    drawn[-1].set_xlabel("time (s)")
    lines = ["The fleet over time", deployment(result), served(result)]
    figure.suptitle("\n".join(lines), fontsize=9)
    return figure


def _start(result: Result) -> float:
    return float(result.requests["arrival_time"].min())


def _edges(result: Result, bins: int) -> NDArray[np.float64]:
    """Return the edges of equal time bins over the run, in seconds since its first arrival."""
    return np.linspace(0.0, float(result.summary["duration"]) or 1.0, bins + 1)


def _replicas(axes: Axes, result: Result) -> None:
    scaling, end = result.summary["scaling"], float(result.summary["duration"])
    pools = scaling.get("pools") or {"": scaling}
    for (name, pool), dashes in zip(pools.items(), POOLS, strict=False):
        timeline = pool["timeline"]
        times = [row["time"] for row in timeline] + [end]
        for key, colour in (("ready", READY), ("starting", STARTING), ("draining", DRAINING)):
            values = [row[key] for row in timeline]
            (line,) = axes.step(times, [*values, values[-1]], where="post", color=colour, lw=1.4)
            line.set(label=f"{name} {key}".strip(), linestyle=dashes)
    axes.set_ylim(0, ROOM * axes.get_ylim()[1])
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("replicas")
    axes.legend(frameon=False, fontsize=8, ncols=3 * len(pools), loc="upper right")


def _by_replica(result: Result, column: str) -> tuple[list[int], NDArray[np.float64]]:
    """Return a column of the memory table by replica and time bin; NaN if the replica is absent."""
    edges, numbers = _edges(result, BINS)[:-1], np.unique(result.memory["replica"]).tolist()
    rows = np.full((len(numbers), BINS), np.nan)
    for place, number in enumerate(numbers):
        mine = memory_with_gaps(result, number)
        time = mine["time"] - _start(result)
        before = np.searchsorted(time, edges, side="right") - 1
        known = (before >= 0) & (edges <= gone_time(result, number) - _start(result))
        rows[place, known] = mine[column][before[known]]
    return numbers, rows


def _queues(axes: Axes, result: Result) -> None:
    """Draw the numbers of scheduled and of waiting requests, over the whole fleet."""
    rows = result.served
    rows = rows[~np.isin(rows["finish_reason"], (FinishReason.REJECTED, FinishReason.UNSENT))]
    start, times = _start(result), _edges(result, BINS)[:-1]
    came, begun, gone = (
        np.sort(np.nan_to_num(rows[name] - start, nan=np.inf))
        for name in ("arrival_time", "first_scheduled_time", "finish_time")
    )
    unserved = np.isnan(rows["first_scheduled_time"]) & ~np.isnan(rows["finish_time"])
    lost = np.sort(rows["finish_time"][unserved] - start)  # ended without being scheduled
    number_of = {
        name: np.searchsorted(column, times, side="right")
        for name, column in (("came", came), ("begun", begun), ("gone", gone), ("lost", lost))
    }
    running = number_of["begun"] - number_of["gone"] + number_of["lost"]
    waiting = number_of["came"] - number_of["begun"] - number_of["lost"]
    for total, colour, label in ((running, RUNNING, "running"), (waiting, WAITING, "waiting")):
        axes.step(times, total, where="post", color=colour, label=label, lw=1.2)
    axes.set_ylim(0, ROOM * axes.get_ylim()[1])
    axes.set_ylabel("requests")
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="upper right")


def _kv_by_replica(axes: Axes, result: Result) -> None:
    numbers, usage = _by_replica(result, "kv_usage")
    if not numbers:  # no replica has done anything
        return
    end = float(result.summary["duration"]) or 1.0
    image = axes.imshow(
        100.0 * usage,
        aspect="auto",
        interpolation="nearest",
        origin="lower",
        extent=(0.0, end, -0.5, len(numbers) - 0.5),
        vmin=0.0,
        vmax=max(100.0 * float(np.nanmax(usage, initial=0.0)), 1.0),
        cmap="viridis",
    )
    roles = {row["replica"]: row["role"] for row in result.summary["replicas"]}
    step = max(len(numbers) // 12, 1)
    shown = range(0, len(numbers), step)
    labels = [_name(numbers[k], roles.get(numbers[k], "mixed")) for k in shown]
    axes.set_yticks(list(shown), labels, fontsize=7)
    axes.set_ylabel("replica")
    axes.figure.colorbar(image, ax=axes, label="KV in use (%)", pad=0.01)


def _name(number: int, role: str) -> str:
    return str(number) if role == "mixed" else f"{role} {number}"


def _mean_by_time(result: Result, values: NDArray[Any], weights: NDArray[Any]) -> NDArray[Any]:
    """Return weighted means of the requests' values, by time bin of their arrival."""
    edges, time = _edges(result, WIDE), result.requests["arrival_time"] - _start(result)
    total = np.histogram(time, edges, weights=weights)[0]
    part = np.histogram(time, edges, weights=values * weights)[0]
    means: NDArray[Any] = np.divide(part, total, out=np.full(WIDE, np.nan), where=total > 0)
    return means


def _hits(axes: Axes, result: Result) -> None:
    table = result.served
    served_ = ~np.isnan(table["first_scheduled_time"])
    prompts = np.where(served_, table["num_prompt_tokens"], 0)
    share = table["num_cached_tokens"] / np.maximum(table["num_prompt_tokens"], 1)
    means = 100.0 * _mean_by_time(result, share, prompts)
    axes.step(_edges(result, WIDE)[:-1], means, where="post", color=READY, lw=1.2)
    axes.set_ylim(0, 100)
    axes.set_ylabel("prompt tokens\ncached (%)")


def _transfers(axes: Axes, result: Result) -> None:
    moved = result.requests["transfer_time"]
    means = 1000.0 * _mean_by_time(result, moved, (moved > 0).astype(float))
    axes.step(_edges(result, WIDE)[:-1], means, where="post", color=WAITING, lw=1.2)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("transfer of\nKV (ms)")
