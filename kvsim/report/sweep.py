"""A sweep on the terminal: its varied options and its results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from kvsim.report.moved import moved, three_digits
from kvsim.report.narrow import NarrowTable
from kvsim.report.paired import title_of
from kvsim.report.text import milliseconds, number, percent, without_paths
from kvsim.results.load import overloads

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
COST = ("dollars/M\noutput", "cost.dollars_per_million_output_tokens", three_digits)
DROPPED = ("completed", "KV used\n%", "mean\nTTFT")
#: Fields of the summary's ``load`` that describe an overload.
LOAD = ("offered_request_rate", "served_request_rate", "saturated", "binding")
#: Maximum number of cells shown; the table on disk has all.
MOST_SHOWN = 40


def sweep_table(
    rows: Sequence[Mapping[str, Any]], varied: Sequence[str], header: Sequence[str] = ()
) -> RenderableType:
    """Return a table of one row per cell, or per mean over seeds, in the order of the sweep.

    ``header`` names the deployment and the workload. Some columns are shown only if their values
    differ between rows, and the bottleneck only if a cell does not keep up with its arrivals.
    """
    columns = [*COLUMNS, *([COST] if any(COST[1] in row for row in rows) else [])]
    headings = [*(name.replace("_", "\n") for name in varied), *(h for h, _, _ in columns)]
    if not varied:
        headings.insert(0, "")
    rows = with_short_names(rows, varied)
    more, said = moved(rows), overload_lines(rows, varied)
    headings += [one.heading for one in more] + ["bottleneck"] * bool(said)
    shown = []
    for row in rows[:MOST_SHOWN]:
        cells = [*_cells(row, varied, columns), *(three_digits(one.of(row)) for one in more)]
        shown.append([*cells, *[_bottleneck(row)] * bool(said)])
    parts: list[RenderableType] = [Text("\n".join(header) + "\n", "bold")] if header else []
    parts.append(NarrowTable(headings, shown, DROPPED))
    if said:
        parts.append(Text("\n".join(said), "bold yellow"))
    if len(rows) > MOST_SHOWN:
        parts.append(Text(f"{number(len(rows) - MOST_SHOWN)} more rows in the table.", "dim"))
    return Group(*parts)


def with_short_names(
    rows: Sequence[Mapping[str, Any]], varied: Sequence[str]
) -> list[dict[str, Any]]:
    """Return rows with short part names: varied options without the file or module of a part."""
    made = [dict(row) for row in rows]
    for name in varied:
        values = [row[name] for row in rows]
        texts = [value for value in values if isinstance(value, str)]
        short = dict(zip(texts, without_paths(texts), strict=True))
        for row, value in zip(made, values, strict=True):
            row[name] = short.get(value, value)
    return made


def _cells(row: Mapping[str, Any], varied: Sequence[str], columns: Sequence[Any]) -> list[str]:
    options = [_option(row[name]) for name in varied] or [""]
    if row.get("output_throughput") is None and row.get("error"):
        return [*options, "failed", *("-" for _ in columns[1:])]
    return [*options, *(how(row.get(key)) for _, key, how in columns)]


def overload_lines(rows: Sequence[Mapping[str, Any]], varied: Sequence[str]) -> list[str]:
    """Name the cells that do not keep up with their arrivals."""
    loads = {}
    for place, row in enumerate(rows):
        names = {name: _option(row[name]) for name in varied}
        known = row.get("load.saturated") is not None
        load = {key: row.get(f"load.{key}") for key in LOAD} if known else None
        loads[title_of(names) or str(place)] = load
    return overloads(loads)


def _bottleneck(row: Mapping[str, Any]) -> str:
    return str(row["load.binding"]) if row.get("load.saturated") else "-"


def _option(value: Any) -> str:
    text = "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 30 else f"{text[:27]}..."
