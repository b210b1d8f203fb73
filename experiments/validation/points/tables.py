"""Errors of simulated points as tables on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from experiments.validation.points.errors import Triple, group_of, grouped, measured, of_half
from experiments.validation.points.peer import PEER
from experiments.validation.points.run import MEASURES
from experiments.validation.record import headed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from experiments.validation.points.errors import Key
    from experiments.validation.points.run import Pair, Point


def errors_table(
    title: str, pairs: Sequence[Pair], halves: Sequence[str], key: Callable[[Point], Key]
) -> Table:
    """Lay out the errors of groups, in each half."""
    table = Table(title=f"{title}: median |e| / mean |e| / median e, %", title_justify="left")
    table.add_column("points", no_wrap=True)
    half_column = [""] if len(halves) > 1 else []
    for name in (*half_column, "n", *MEASURES):
        table.add_column(name, justify="right")

    def add(name: str, half: str, number: int, errors: dict[str, Any], **style: str) -> None:
        told = [half] if half_column else []
        texts = (str(errors[measure]) for measure in MEASURES)
        table.add_row(name, *told, str(number), *texts, **style)

    found = {half: dict(grouped(pairs, half, key)) for half in halves}
    for group in sorted({group for groups in found.values() for group in groups}):
        for half in halves:
            if row := found[half].get(group):
                add(" ".join(group), half, row["number"], row)
    if key is group_of:
        for half in halves:
            if of := of_half(pairs, half):
                add("all groups", half, len(of), measured(of), style="bold")
    return table


def peer_table(pairs: Sequence[Pair]) -> Table:
    """Lay out our errors beside the other simulator's."""
    figures = ("held out", "TPOT", "its TPOT", "TTFT", "its TTFT")
    table = headed("Beside aiconfigurator 0.12.0, %", ("points",), figures)
    for group, row in grouped(pairs, "held out", group_of):
        if peer := PEER.get(group):
            table.add_row(
                " ".join(group),
                str(row["number"]),
                str(row["TPOT"]),
                str(Triple(*peer.tpot)),
                f"{row['TTFT'].median_absolute:.1f}",
                f"{peer.ttft:.1f}",
            )
    return table


def verdicts_table(judged: Sequence[dict[str, Any]]) -> Table:
    """Lay out the bands."""
    table = headed("Bands, held-out points, %", ("points", "of"), ("n", "found", "band", ""))
    words = {True: "holds", False: "MISSED", None: "absent"}
    for row in judged:
        found = f"{row['found']:+.1f}" if "found" in row else ""
        verdict = words[row.get("holds")]
        table.add_row(
            row["group"], row["of"], str(row["number"]), found, f"{row['band']:.0f}", verdict
        )
    return table
