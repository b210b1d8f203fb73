"""A table of configurations beside each other, with differences from the first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table

#: What is shown, and how; the rest is in the JSON.
SHOWN = {
    "mean_ttft_ms": "TTFT\nmean, ms",
    "p99_ttft_ms": "TTFT\np99, ms",
    "mean_tpot_ms": "TPOT\nmean, ms",
    "p99_tpot_ms": "TPOT\np99, ms",
    "output_throughput": "output\ntokens/s",
    "goodput_attainment": "goodput\nshare",
    "num_preemptions": "preempted",
}


def paired_table(answer: Mapping[str, Any]) -> Table:
    """Lay out the answer of ``kvsim compare --vary``: a row per value, its difference below."""
    from rich.table import Table

    rows, pairs = answer["rows"], answer["replications"]
    names = [name for name in SHOWN if any(row.get(name) is not None for row in rows)]
    of = f"{answer['differences_are']}; {pairs} seeds, 95 %; ?: perhaps none"
    table = Table(title=of if pairs > 1 else "one run each", title_justify="left", box=None)
    one = [*rows[0]["options"]] if len(rows[0]["options"]) == 1 else []
    table.add_column(one[0].replace("_", "-") if one else "", no_wrap=True)
    for name in names:
        table.add_column(SHOWN[name], justify="right")
    found = [{}, *(one["metrics"] for one in answer["differences"])]
    for row, gaps in zip(rows, found, strict=True):
        title = row["options"][one[0]] if one else _title(row["options"])
        table.add_row(title, *(_number(row.get(name)) for name in names))
        if gaps:
            table.add_row("", *(_difference(gaps.get(name)) for name in names))
    return table


def _title(options: Mapping[str, str]) -> str:
    return ", ".join(f"{k.replace('_', '-')}={v}" for k, v in options.items())


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _difference(found: Mapping[str, Any] | None) -> str:
    """Write a difference with half its interval; one that may be none says so."""
    if found is None:
        return ""
    told = f"{found['mean']:+.3g}"
    if found["low"] is None:
        return told
    if found["low"] == found["high"] == 0:
        return "none"
    half = (found["high"] - found["low"]) / 2
    return f"{told} ± {half:.2g}{'' if found['is_certain'] else ' ?'}"


def sentence(options: Sequence[Mapping[str, str]]) -> str:
    """Say what the differences are of."""
    return f"differences from {_title(options[0])}, paired by seed"
