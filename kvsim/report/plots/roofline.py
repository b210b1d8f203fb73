"""The roofline as a figure; public as ``kvsim.plot.roofline``."""

from __future__ import annotations

from math import atan2, degrees
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from kvsim.report.text import rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from kvsim.cost.hierarchy import Level
    from kvsim.intensity.roofline import Roofline

TERA = 1e12
#: Memories with a roof in the figure, and its colour.
ROOFS = {"L2": "#999999", "HBM": "#000000"}
#: Colour by phase, marker by part (Okabe and Ito's palette).
PHASES = {"prefill": "#D55E00", "decode": "#0072B2"}
PARTS = {"GEMMs": "s", "attention": "o"}


def roofline(found: Roofline) -> Figure:
    """Draw FLOP/s over intensity: the roofs of HBM and L2, and prefill and decode.

    A filled point is the modelled rate; the hollow point above it is the rate at the roof.
    """
    figure = Figure(figsize=(7.4, 4.8), layout="constrained")
    axes = figure.subplots()
    points = [row for row in found.rows if row.part in PARTS]
    peaks = {found.peak_flops_per_s, *(row.peak_flops_per_s for row in points)}
    first = min(0.5, *(row.intensity / 2 for row in points))
    last = max(2 * row.intensity for row in points)
    last = max(last, 4 * found.ridge_point)
    for level in found.levels:
        if level.name in ROOFS:
            _roof(axes, level, max(peaks), (first, last))
    for peak in peaks:
        own = peak == found.peak_flops_per_s
        name = f"{found.arithmetic if own else '16-bit'}, {rate(peak)}FLOP/s"
        axes.axhline(peak / TERA, color="0.6", linewidth=0.8, linestyle=":", zorder=0)
        axes.text(first * 1.25, peak / TERA * 1.08, name, fontsize=8)
    for row in points:
        reached, ideal = (row.flops / s / TERA for s in (row.seconds, row.ideal_seconds))
        colour, marker = PHASES[row.phase], PARTS[row.part]
        axes.plot([row.intensity] * 2, [reached, ideal], color=colour, linewidth=0.8, zorder=2)
        axes.scatter(
            row.intensity, ideal, s=36, marker=marker, facecolor="white", edgecolor=colour, zorder=3
        )
        axes.scatter(row.intensity, reached, s=36, marker=marker, color=colour, zorder=4)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.set_xlim(first, last)
    axes.set_xlabel("arithmetic intensity (FLOP/B)")
    axes.set_ylabel("rate (TFLOP/s)")
    axes.grid(alpha=0.2, which="major")
    gpus = f"{found.tensor_parallel_size} x " if found.tensor_parallel_size > 1 else ""
    axes.set_title(
        f"{found.model} on {gpus}{found.gpu}: {found.batch_size:,} requests of "
        f"{found.context_len:,} tokens",
        fontsize=10,
    )
    handles = [
        Line2D([], [], color=colour, marker=marker, linestyle="", label=f"{phase} {part}")
        for phase, colour in PHASES.items()
        for part, marker in PARTS.items()
    ]
    for label, inside in (("modelled", "0.3"), ("at the roof", "white")):
        point = Line2D([], [], color="0.3", marker="o", linestyle="", label=label)
        point.set_markerfacecolor(inside)
        handles.append(point)
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def _roof(axes: Axes, level: Level, peak: float, ends: tuple[float, float]) -> None:
    """Draw min(intensity x bandwidth, peak) and name its slope."""
    bandwidth, colour = level.bandwidth_bytes_per_s, ROOFS[level.name]
    xs = [ends[0], min(max(peak / bandwidth, ends[0]), ends[1]), ends[1]]
    ys = [min(x * bandwidth, peak) / TERA for x in xs]
    label = f"{level.name}, {rate(bandwidth)}B/s"
    axes.plot(xs, ys, color=colour, linewidth=1.4, label=label)
    x, y = 1.25 * xs[0], 1.5 * ys[0]  # above the line
    axes.text(
        x,
        y,
        label,
        color=colour,
        fontsize=8,
        rotation=degrees(atan2(y, x)),  # of a parallel line, in data units
        rotation_mode="anchor",
        transform_rotates_text=True,
    )
