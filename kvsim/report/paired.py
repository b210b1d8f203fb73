"""A table of configurations beside each other, with differences from the first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table

#: What is shown, and how; the rest is in the JSON.
SHOWN = {
    "mean_ttft_ms": "mean TTFT, ms",
    "p99_ttft_ms": "p99 TTFT, ms",
    "mean_tpot_ms": "mean TPOT, ms",
    "p99_tpot_ms": "p99 TPOT, ms",
    "mean_e2el_ms": "mean E2E, ms",
    "output_throughput": "output tokens/s",
    "goodput_attainment": "goodput, share",
    "num_preemptions": "preemptions",
}


def paired_table(answer: Mapping[str, Any]) -> Table:
    """Lay out the answer of ``kvsim compare --vary``: a row per metric."""
    from rich.table import Table

    rows, pairs = answer["rows"], answer["replications"]
    title = f"{answer['differences_are']}; {pairs} seeds, 95 %" if pairs > 1 else "one run each"
    table = Table(title=title, title_justify="left", box=None)
    table.add_column("")
    table.add_column(_title(rows[0]["options"]), justify="right")
    for row in rows[1:]:
        table.add_column(_title(row["options"]), justify="right")
        table.add_column("difference", justify="right")
    for name, words in SHOWN.items():
        if rows[0].get(name) is None:
            continue
        cells = [_number(rows[0][name])]
        for row, found in zip(rows[1:], answer["differences"], strict=True):
            cells += [_number(row.get(name)), _difference(found["metrics"].get(name))]
        table.add_row(words, *cells)
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
    sure = "" if found["is_certain"] else " (perhaps none)"
    return f"{told} ± {half:.2g}{sure}"


def sentence(options: Sequence[Mapping[str, str]]) -> str:
    """Say what the differences are of."""
    return f"differences from {_title(options[0])}, paired by seed"
