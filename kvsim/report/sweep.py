"""A sweep on the terminal: what was varied, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from kvsim.report.narrow import NarrowTable
from kvsim.report.text import milliseconds, number, percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

#: Heading, key of the summary and format of each column.
COLUMNS = (
    ("completed", "completed", number),
    ("output\ntok/s", "output_throughput", number),
    ("mean\nTTFT", "mean_ttft_ms", milliseconds),
    ("p99\nTTFT", "p99_ttft_ms", milliseconds),
    ("mean\nTPOT", "mean_tpot_ms", milliseconds),
    ("KV used\n%", "kv_cache.mean_usage", percent),
)
DROPPED = ("completed", "KV used\n%", "mean\nTTFT")
#: Most cells shown; the table on disk has all.
MOST_SHOWN = 40


def sweep_table(rows: Sequence[Mapping[str, Any]], varied: Sequence[str]) -> RenderableType:
    """Lay out one row per cell, or per mean over seeds, in the plan's order."""
    headings = [*(name.replace("_", "\n") for name in varied), *(h for h, _, _ in COLUMNS)]
    if not varied:
        headings.insert(0, "")
    shown = [_cells(row, varied) for row in rows[:MOST_SHOWN]]
    parts: list[RenderableType] = [NarrowTable(headings, shown, DROPPED)]
    if len(rows) > MOST_SHOWN:
        parts.append(Text(f"{number(len(rows) - MOST_SHOWN)} more rows in the table.", "dim"))
    return Group(*parts)


def _cells(row: Mapping[str, Any], varied: Sequence[str]) -> list[str]:
    options = [_option(row[name]) for name in varied] or [""]
    if row.get("output_throughput") is None and row.get("error"):
        return [*options, "failed", *("-" for _ in COLUMNS[1:])]
    return [*options, *(how(row.get(key)) for _, key, how in COLUMNS)]


def _option(value: Any) -> str:
    text = "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 30 else f"{text[:27]}..."
