"""The claims from which kvsim was started: each figure and technique, compared with kvsim's result.

The verdict is computed. A figure is right if kvsim's rounds to it or is within 2 % (or the claim's
tolerance); right in GiB if that holds with bytes counted in GiB; else wrong by a factor. A range is
right if it contains all results, and depends if it contains only some. The exit code is always 0.

    python -m experiments.founding_figures [--quick] [--out DIR]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.table import Table

from experiments._setting import Figure, save
from experiments.validation.founding.claims import claims
from experiments.validation.founding.techniques import is_there, techniques
from experiments.validation.founding.verdict import between, judge

if TYPE_CHECKING:
    from collections.abc import Sequence


class Row(NamedTuple):
    """A printed claim: the figures as texts, and the verdict."""

    claim: str
    theirs: str
    ours: str
    verdict: str
    note: str


class Shown(NamedTuple):
    """A printed technique; ``measured`` is "not there" if kvsim lacks it."""

    technique: str
    claim: str
    kvsim: str
    measured: str


def number(value: float) -> str:
    """Write a number with four significant digits, a whole number with all its digits."""
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1e5 else f"{value:,.4g}"


def judged(quick: bool) -> list[Row]:
    """Return kvsim's figure for every claim, and the verdict."""
    rows = []
    for claim in claims(400 if quick else 1000):
        ours = claim.measure()
        theirs = [number(float(printed)) for printed in claim.theirs]
        separator = " to " if claim.judge is between else ", "
        rows.append(
            Row(
                claim.text,
                " ".join([separator.join(theirs), claim.unit]).strip(),
                ", ".join(number(value) for value in ours),
                judge(claim, ours),
                claim.note,
            )
        )
    return rows


def shown(quick: bool) -> list[Shown]:
    """Return the measured effect of every technique that kvsim has."""
    rows = []
    for technique in techniques(400 if quick else 1000):
        there = is_there(technique.needs)
        measured = technique.measure() or "there" if there else "not there"
        rows.append(Shown(technique.name, technique.claim, technique.where, measured))
    return rows


def _print(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(width=130).print(table)


def main() -> None:
    """Print both tables; --out writes them as CSV."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.founding_figures", description=__doc__
    )
    parser.add_argument("--quick", action="store_true", help="fewer requests")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write two CSV files there")
    options = parser.parse_args()
    rows, found = judged(options.quick), shown(options.quick)
    _print("Claims", ("claim", "theirs", "ours", "verdict", "note"), rows)
    _print("Techniques", ("technique", "claim", "kvsim", "measured"), found)
    wrong = sum("WRONG" in row.verdict for row in rows)
    print(f"{len(rows)} claims, {wrong} with something wrong; {len(found)} techniques")
    if options.out is not None:
        tables = {"founding_figures": rows, "founding_techniques": found}
        for name, table in tables.items():
            save(Figure(name, [], [row._asdict() for row in table]), name, options.out)
    else:
        print("nothing written; --out DIR writes both as CSV")


if __name__ == "__main__":
    main()
