"""The charts of a page: waste by cause, latencies, and a fleet over time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from kvsim.kv.usage import HELD
from kvsim.report.colours import CAUSES, DARK, LINES, STYLES
from kvsim.report.files import is_fleet
from kvsim.report.page.marks import chart, element, line, linear_ticks, log_ticks, path, rect, text
from kvsim.results.metrics import latencies

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from kvsim.results.result import Result

WIDTH = 900
#: Maximum number of points of a curve.
MOST_POINTS = 300
#: Shares of requests at which the latency chart has a line, by name.
MARKS = {"p50": 0.5, "p90": 0.1, "p99": 0.01}
PANELS = {"ttft": "TTFT (s)", "tpot": "TPOT (ms per token)", "e2el": "end to end (s)"}
DASHES = dict(zip(STYLES, (None, "6 3", "2 3"), strict=True))


def charts(named: Mapping[str, Result]) -> list[str]:
    """Draw waste, latencies, and fleets; the explorer shows memory over time."""
    drawn = []
    if any(r.summary["kv_cache"]["token_states"] is not None for r in named.values()):
        drawn.append(waste(named))
    drawn.append(latency(named))
    for name, result in named.items():
        if is_fleet(result):
            from kvsim.report import plot
            from kvsim.report.page.svg import inline_svg

            label = f"Replicas of {name} over time: queues, KV in use, hits"
            drawn.append(inline_svg(plot.fleet(result), f"fleet{len(drawn)}", label))
    return drawn


def waste(named: Mapping[str, Result]) -> str:
    """Draw a bar per run that divides the allocated KV memory by cause."""
    left = 24 + 7 * max(map(len, named))
    room, tall = WIDTH - left - 10, 34
    parts = [text(0, 16, "KV memory by cause, % of the memory held", font_weight=600)]
    x = 0
    for cause in HELD:
        colour, label = CAUSES[cause]
        parts += [rect(x, 28, 12, 12, colour, label), text(x + 17, 38, label)]
        x += 42 + int(6.4 * len(label))
    for k, (name, result) in enumerate(named.items()):
        top, at = 56 + k * tall, float(left)
        parts.append(text(left - 8, top + 17, name, "end"))
        for cause in HELD:
            share = result.summary["kv_cache"][cause.summary_key]
            if share is None:
                continue
            size = share * room
            colour, label = CAUSES[cause]
            shown = f"{100 * share:.1f}"
            parts.append(rect(at, top, size, 26, colour, f"{name}: {shown} % {label}"))
            if size > 34:
                ink = "#ffffff" if cause in DARK else "#000000"
                parts.append(text(at + size / 2, top + 17, shown, "middle", fill=ink))
            at += size
    label = "Shares of the KV memory held by cause, a bar per run"
    return chart(WIDTH, 64 + tall * len(named), label, parts)


def latency(named: Mapping[str, Result]) -> str:
    """Draw the share of requests whose latency exceeds x, one panel per latency.

    The axis of the share is logarithmic.
    """
    wide, tall, top = 250, 240, 56
    rows = -(-len(named) // 4)
    bottom = top + tall
    parts = [text(0, 16, "Share of requests that take longer", font_weight=600)]
    lowest = min(0.003, *(1 / max(len(r.requests), 1) for r in named.values()))
    for k, (metric, label) in enumerate(PANELS.items()):
        left = 52 + k * (wide + 40)
        curves = {name: _seconds(result, metric) for name, result in named.items()}
        curves = {name: one for name, one in curves.items() if len(one)}
        parts.append(text(left + wide / 2, bottom + 36, label, "middle"))
        for mark, share in ({"all": 1.0} | MARKS).items():
            y = bottom - tall * (1 - math.log(share) / math.log(lowest))
            parts.append(line(left, y, left + wide, y))
            if k == 0:
                parts.append(text(left - 6, y + 4, mark, "end", font_size=11))
        if curves:
            parts += _panel(curves, left, wide, bottom, tall, lowest, logs=metric != "tpot")
    for k, name in enumerate(named):
        x, y = 52 + 215 * (k % 4), bottom + 62 + 20 * (k // 4)
        colour, dash = _look(k)
        look = {"stroke": colour, "stroke_opacity": 1, "stroke_width": 2.5}
        parts.append(line(x, y - 4, x + 22, y - 4, stroke_dasharray=dash, **look))
        parts.append(text(x + 28, y, name))
    label = "Shares of requests that take longer than a time, a line per run"
    return chart(WIDTH, bottom + 60 + 20 * rows, label, parts)


def _look(k: int) -> tuple[str, str | None]:
    return LINES[k % len(LINES)], DASHES[STYLES[k // len(LINES) % len(STYLES)]]


def _seconds(result: Result, metric: str) -> NDArray[np.float64]:
    """Return known latencies in order, in the unit of their panel."""
    values = latencies(result.requests, result.config.front_end_latency)[metric]
    known = np.sort(values[~np.isnan(values)])
    return 1000 * known if metric == "tpot" else known


def _panel(
    curves: Mapping[str, NDArray[np.float64]],
    left: int,
    wide: int,
    bottom: int,
    tall: int,
    lowest: float,
    *,
    logs: bool,
) -> list[str]:
    high = max(float(one[-1]) for one in curves.values())
    low = max(min(float(one[0]) for one in curves.values()), high / 1e5, 1e-6) if logs else 0.0
    high = max(high, low * 1.001, 1e-6)

    def across(value: NDArray[np.float64]) -> NDArray[np.float64]:
        share = np.log(np.maximum(value, low) / low) / np.log(high / low) if logs else value / high
        return left + wide * share

    parts = []
    for tick in log_ticks(low, high) if logs else linear_ticks(high):
        x = float(across(np.array(tick)))
        parts += [line(x, bottom, x, bottom + 4, stroke_opacity=0.6)]
        parts += [text(x, bottom + 18, f"{tick:g}", "middle", font_size=11)]
    for name, known in curves.items():
        ranks = np.unique(np.round(len(known) - np.geomspace(len(known), 1, MOST_POINTS)))
        places = ranks.astype(np.int64)
        longer = 1 - places / len(known)
        y = bottom - tall * (1 - np.log(longer) / math.log(lowest))
        points = zip(across(known[places]).tolist(), y.tolist(), strict=True)
        colour, dash = _look(list(curves).index(name))
        parts.append(path(points, colour, dash, name))
    return [element("g", "".join(parts))]
