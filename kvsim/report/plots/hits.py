"""Figure of the hit-rate curves of ``kvsim hits``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from kvsim.report.colours import LINES, STYLES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes

#: A curve with more points has no markers.
MOST_MARKED = 40


def hits(answer: Mapping[str, Any]) -> Figure:
    """Draw the hit rate over the cache size, a line per policy, and mark the user's caches.

    The lower axis shows GiB if a model is given, else blocks. The upper axis shows dollars if a
    price is given.
    """
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    axes = figure.subplots()
    unit = answer["bytes_per_block"] / 2**30 if answer["bytes_per_block"] else 1.0
    for index, (policy, curve) in enumerate(answer["curves"].items()):
        axes.plot(
            [unit * size for size, _ in curve],
            [100 * rate for _, rate in curve],
            color="#000000" if policy == "optimal" else LINES[index % len(LINES)],
            linestyle="--" if policy == "optimal" else STYLES[index // len(LINES) % len(STYLES)],
            marker="." if len(curve) <= MOST_MARKED else None,
            label=policy,
        )
    _mark(axes, answer, unit)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.set_ylim(bottom=0)
    kind = "GiB of KV" if answer["bytes_per_block"] else f"blocks of {answer['block_size']} tokens"
    axes.set_xlabel(f"cache size ({kind})")
    axes.set_ylabel("hit rate (% of prompt tokens)")
    axes.grid(alpha=0.2)
    if answer["gib_price"]:
        price = answer["gib_price"]
        top = axes.secondary_xaxis("top", functions=(lambda x: x * price, lambda x: x / price))
        top.set_xlabel("dollars")
        top.xaxis.set_major_formatter("{x:,g}")
    requests = answer["num_requests"] - answer["measure_from"]
    of = f"{requests:,} requests, one at a time"
    figure.suptitle(f"{answer['deployment']}: {of}" if answer["deployment"] else of, fontsize=9)
    figure.legend(loc="outside lower center", ncols=6, frameon=False, fontsize=8)
    return figure


def _mark(axes: Axes, answer: Mapping[str, Any], unit: float) -> None:
    """Mark the hit rate of an unlimited cache, the size for 90 % of it, and the user's caches."""
    axes.axhline(100 * answer["ceiling"], color="0.6", linewidth=0.8, linestyle=":")
    marks = [("knee", answer["knee"])] if answer["knee"] else []
    marks += [(tier["name"], tier["num_blocks"]) for tier in answer["tiers"]]
    for name, size in marks:
        if size > 0:
            axes.axvline(unit * size, color="0.5", linewidth=0.8)
            axes.annotate(
                f" {name}",
                (unit * size, 0.02),
                xycoords=("data", "axes fraction"),
                rotation=90,
                fontsize=7,
                va="bottom",
                ha="right",
            )
