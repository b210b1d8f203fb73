"""Causes of misses that the data cannot decide, by group of points."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

from experiments.validation.points.errors import group_of, grouped
from experiments.validation.trust import RECORDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.validation.points.run import Pair

FILE = "point-causes.csv"
#: Largest median absolute errors of a group of SGLang's held-out points, percent.
GOALS = {"TPOT": 6.0, "TTFT": 15.0}


def causes() -> dict[str, list[str]]:
    """Return the sentences of each group."""
    found: dict[str, list[str]] = {}
    with (RECORDS / FILE).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            told = f"{row['cause']} To decide: {row['what would decide']}."
            found.setdefault(row["points"], []).append(told)
    return found


def misses(pairs: Sequence[Pair]) -> list[str]:
    """Return a line per group beyond a goal: its errors, and the causes, or that none is known."""
    known, lines = causes(), []
    for group, errors in grouped(pairs, "held out", group_of):
        name = " ".join(group)
        off = {of: errors[of].median_absolute for of in GOALS}
        if all(off[of] <= most for of, most in GOALS.items()):
            continue
        told = " ".join(known.get(name, ["No cause is known."]))
        lines.append(f"MISSED {name}: TPOT {off['TPOT']:.1f}, TTFT {off['TTFT']:.1f} %. {told}")
    return lines
