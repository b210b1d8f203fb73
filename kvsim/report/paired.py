"""A table of configurations, with differences from the first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.report.moved import Column, moved, three_digits
from kvsim.results.load import overloads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

#: Columns that are always shown; the rest is in the JSON.
SHOWN = (
    Column("mean_ttft_ms", "TTFT\nmean, ms"),
    Column("p99_ttft_ms", "TTFT\np99, ms"),
    Column("mean_tpot_ms", "TPOT\nmean, ms"),
    Column("p99_tpot_ms", "TPOT\np99, ms"),
    Column("output_throughput", "output\ntokens/s"),
    Column("goodput_attainment", "goodput\nshare"),
)


def paired_table(answer: Mapping[str, Any]) -> RenderableType:
    """Return the table of ``kvsim compare --vary``: each value, and below it its differences."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(title=caption(answer), title_justify="left", box=None)
    headings, rows = paired_rows(answer)
    table.add_column(headings[0], no_wrap=True)
    for heading in headings[1:]:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*row)
    above = Text("\n".join(header(answer)) + "\n", style="bold")
    said = overload_lines(answer)
    below = [Text("\n".join(said), style="bold yellow")] if said else []
    return Group(above, table, *below)


def header(answer: Mapping[str, Any]) -> list[str]:
    """Return the deployment and the workload, a line each."""
    from kvsim.report.title import workload

    return [answer["deployment"], workload(answer["workload"])]


def overload_lines(answer: Mapping[str, Any]) -> list[str]:
    """Name the values with which the server does not keep up with its arrivals."""
    return overloads({title_of(row["options"]): row["load"] for row in answer["rows"]})


def caption(answer: Mapping[str, Any]) -> str:
    """Describe the differences and their confidence intervals."""
    pairs = answer["replications"]
    of = (
        f"{answer['differences_are']}; {pairs} seeds, 95 % intervals; ?: the interval includes zero"
    )
    return of if pairs > 1 else "one run per configuration"


def paired_rows(answer: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows: each value, then its difference from the first value."""
    rows = answer["rows"]
    columns = [one for one in SHOWN if any(one.of(row) is not None for row in rows)]
    columns += moved(rows)
    one = [*rows[0]["options"]] if len(rows[0]["options"]) == 1 else []
    headings = [one[0].replace("_", "-") if one else "", *(one.heading for one in columns)]
    found = [{}, *(one["metrics"] for one in answer["differences"])]
    lines = []
    for row, gaps in zip(rows, found, strict=True):
        title = row["options"][one[0]] if one else title_of(row["options"])
        lines.append([title, *(three_digits(column.of(row)) for column in columns)])
        if gaps:
            lines.append(["", *(_difference(gaps.get(c.key), c.scale) for c in columns)])
    return headings, lines


def title_of(options: Mapping[str, str]) -> str:
    """Name a configuration by its varied options."""
    return ", ".join(f"{k.replace('_', '-')}={v}" for k, v in options.items())


def _difference(found: Mapping[str, Any] | None, scale: float) -> str:
    """Format a difference with half of its interval; ``?`` if the interval includes zero."""
    if found is None:
        return ""
    told = signed(scale * found["mean"])
    if found["low"] is None:
        return told
    if found["low"] == found["high"] == 0:
        return "none"
    half = abs(scale) * (found["high"] - found["low"]) / 2
    return f"{told} ± {_round(half)}{'' if found['is_certain'] else ' ?'}"


def signed(value: float) -> str:
    """Write a difference with its sign, to three digits."""
    return f"{'-' if value < 0 else '+'}{_round(abs(value), 3)}"


def _round(value: float, digits: int = 2) -> str:
    """Round to significant digits, without an exponent."""
    if value < 1e-3 or value >= 1e9:
        return f"{value:.{digits}g}"
    return f"{float(f'{value:.{digits}g}'):,.10g}"


def sentence(options: Sequence[Mapping[str, str]]) -> str:
    """Return a phrase that names the baseline of the differences."""
    return f"differences from {title_of(options[0])}, paired by seed"
