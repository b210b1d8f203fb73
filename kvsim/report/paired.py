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

    table = Table(title=caption(answer), title_justify="left", box=None)
    headings, rows = paired_rows(answer)
    table.add_column(headings[0], no_wrap=True)
    for heading in headings[1:]:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def caption(answer: Mapping[str, Any]) -> str:
    """Say what the differences are, and how sure."""
    pairs = answer["replications"]
    of = f"{answer['differences_are']}; {pairs} seeds, 95 %; ?: perhaps none"
    return of if pairs > 1 else "one run each"


def paired_rows(answer: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return headings, and a row per value with its difference from the first one below."""
    rows = answer["rows"]
    names = [name for name in SHOWN if any(row.get(name) is not None for row in rows)]
    one = [*rows[0]["options"]] if len(rows[0]["options"]) == 1 else []
    headings = [one[0].replace("_", "-") if one else "", *(SHOWN[name] for name in names)]
    found = [{}, *(one["metrics"] for one in answer["differences"])]
    lines = []
    for row, gaps in zip(rows, found, strict=True):
        title = row["options"][one[0]] if one else title_of(row["options"])
        lines.append([title, *(_number(row.get(name)) for name in names)])
        if gaps:
            lines.append(["", *(_difference(gaps.get(name)) for name in names)])
    return headings, lines


def title_of(options: Mapping[str, str]) -> str:
    """Name a configuration by what is varied."""
    return ", ".join(f"{k.replace('_', '-')}={v}" for k, v in options.items())


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _difference(found: Mapping[str, Any] | None) -> str:
    """Write a difference with half its interval; one that may be none says so."""
    if found is None:
        return ""
    told = signed(found["mean"])
    if found["low"] is None:
        return told
    if found["low"] == found["high"] == 0:
        return "none"
    half = (found["high"] - found["low"]) / 2
    return f"{told} ± {_round(half)}{'' if found['is_certain'] else ' ?'}"


def signed(value: float) -> str:
    """Write a difference with its sign, to three digits."""
    return f"{'-' if value < 0 else '+'}{_round(abs(value), 3)}"


def _round(value: float, digits: int = 2) -> str:
    """Round to digits, never to powers of ten that a reader has to count."""
    if value < 1e-3 or value >= 1e9:
        return f"{value:.{digits}g}"
    return f"{float(f'{value:.{digits}g}'):,.10g}"


def sentence(options: Sequence[Mapping[str, str]]) -> str:
    """Say what the differences are of."""
    return f"differences from {title_of(options[0])}, paired by seed"
