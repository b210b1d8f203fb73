"""Features other than the prefix cache: drafts, connectors, host copies, images, adapters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from matplotlib.figure import Figure

from kvsim.report.title import deployment, served

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from matplotlib.axes import Axes

    from kvsim.results.result import Result

    Summary = Mapping[str, Any]

#: Colours of the two bars that a panel may have.
COLOURS = ("#0072B2", "#E69F00")
GIB = 2**30


def percent(key: str) -> Callable[[Summary], float | None]:
    """Return a function that reads a share from a summary in per cent, or None."""
    return lambda s: None if s.get(key) is None else 100.0 * s[key]


def moved(*ways: str) -> Callable[[Summary], float | None]:
    """Return a function that reads the GiB copied in given directions; None if none was copied."""

    def value(s: Summary) -> float | None:
        copied = {name: number for name, number in s["kv_cache"].items() if name.endswith("_bytes")}
        return sum(copied[f"{way}_bytes"] for way in ways) / GIB if any(copied.values()) else None

    return value


class Panel(NamedTuple):
    """A panel: its unit, and for each label the function that returns a bar's length."""

    unit: str
    bars: Mapping[str, Callable[[Summary], float | None]]


#: Shown only without pools: with pools, each pool has a rate of its own.
external_hits = percent("external_prefix_cache_hit_rate")

PANELS = (
    Panel("tokens per verification", {"drafts": lambda s: s.get("mean_acceptance_length")}),
    Panel("% of drafts", {"accepted": percent("acceptance_rate")}),
    Panel(
        "% of requested tokens",
        {"external hits": lambda s: None if s.get("pools") else external_hits(s)},
    ),
    Panel(
        "GiB over the host's link",
        {"to the GPU": moved("fetched", "paged_in"), "to the host": moved("stored", "paged_out")},
    ),
    Panel("ms of waiting per load", {"loads": lambda s: s.get("mean_kv_load_ms")}),
    Panel("% of images", {"in the encoder cache": percent("encoder_cache_hit_rate")}),
    Panel("adapters that join a batch", {"adapters": lambda s: s.get("num_adapter_switches")}),
)


def shown(named: Mapping[str, Result]) -> list[Panel]:
    """Return the panels for which at least one run has data."""
    summaries = [result.summary for result in named.values()]
    return [
        panel
        for panel in PANELS
        if any(value(s) is not None for value in panel.bars.values() for s in summaries)
    ]


def features(named: Mapping[str, Result]) -> Figure:
    """Draw a panel per feature in use, with a bar for every run."""
    panels = shown(named)
    width = max(3.0 * len(panels), 6.0)
    figure = Figure(figsize=(width, 1.6 + 0.4 * len(named) + 0.6), layout="constrained")
    drawn = figure.subplots(1, max(len(panels), 1), sharey=True, squeeze=False)[0]
    for axes, panel in zip(drawn, panels, strict=False):
        _bars(axes, panel, named)
    first = next(iter(named.values()))
    lines = ["Features in use", deployment(first), served(first)]
    figure.suptitle("\n".join(lines), fontsize=9)
    return figure


def _bars(axes: Axes, panel: Panel, named: Mapping[str, Result]) -> None:
    thick = 0.8 / len(panel.bars)
    for index, (label, value) in enumerate(panel.bars.items()):
        places = [row + (index - (len(panel.bars) - 1) / 2) * thick for row in range(len(named))]
        values = [value(result.summary) for result in named.values()]
        lengths = [number or 0.0 for number in values]
        bars = axes.barh(places, lengths, thick, color=COLOURS[index], label=label)
        texts = ["" if number is None else f" {number:.3g}" for number in values]
        axes.bar_label(bars, texts, fontsize=7)
    axes.set_yticks(range(len(named)), list(named), fontsize=8)
    axes.set_ylim(len(named) - 0.5, -0.5)
    axes.set_xlabel(panel.unit, fontsize=8)
    axes.margins(x=0.2)
    if len(panel.bars) > 1:
        axes.legend(
            frameon=False, fontsize=7, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2
        )
    else:
        axes.set_title(next(iter(panel.bars)), fontsize=8)
