"""Result of ``kvsim hits`` as a table, as files and as a page."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.files import whole_folder, write_json, writing
from kvsim.report.narrow import plain_table
from kvsim.report.text import percent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray
    from rich.console import RenderableType

#: Maximum number of cache sizes in the table; the JSON has all.
MOST_ROWS = 24


def size_rows(answer: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return headings, and one row per cache size of all curves; rates are in per cent."""
    curves = {policy: dict(curve) for policy, curve in answer["curves"].items()}
    sizes = sorted(set.intersection(*map(set, curves.values())))
    if len(sizes) > MOST_ROWS:  # LRU alone is known at all sizes
        step = (len(sizes) - 1) / (MOST_ROWS - 1)
        sizes = [sizes[round(k * step)] for k in range(MOST_ROWS)]
    unit, price = (answer["bytes_per_block"] or 0) / 2**30, answer["gib_price"]
    headings = ["blocks", *(["GiB"] if unit else []), *(["dollars"] if price else []), *curves]
    rows = []
    for size in sizes:
        row = [f"{size:,}"]
        row += [_three_digits(size * unit)] if unit else []
        row += [_three_digits(size * unit * price)] if price else []
        rows.append([*row, *(percent(curve[size]) for curve in curves.values())])
    return headings, rows


def _three_digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def tier_rows(answer: Mapping[str, Any]) -> list[list[str]]:
    """Return one row per cache of the user: name, blocks, GiB, hit rate under LRU in per cent."""
    return [
        [
            tier["name"],
            f"{tier['num_blocks']:,}",
            f"{tier['gib']:,.1f}",
            percent(tier["lru_hit_rate"]),
        ]
        for tier in answer["tiers"]
    ]


def hits_lines(answer: Mapping[str, Any]) -> list[str]:
    """Return lines on the trace, the hit rate of an unlimited cache, and the size that LRU needs.

    The last line names the number of blocks with which LRU reaches 90 % of the unlimited cache.
    """
    first, number = answer["measure_from"], answer["num_requests"]
    measured = f"requests {first:,} to {number - 1:,}" if first else f"all {number:,} requests"
    return [
        f"{answer['total_blocks']:,} blocks of {answer['block_size']} tokens, "
        f"{answer['distinct_blocks']:,} different ones; requests one at a time, measured: "
        f"{measured}",
        f"hits: {answer['hits_are']}",
        f"ceiling {percent(answer['ceiling'])} % in a cache of any size; LRU reaches 90 % of it "
        f"with {answer['knee']:,} blocks",
    ]


def hits_table(answer: Mapping[str, Any]) -> RenderableType:
    """Return a table of hit rates by size and policy, and a second table for the user's caches."""
    from rich.console import Group
    from rich.text import Text

    headings, rows = size_rows(answer)
    parts: list[RenderableType] = [
        Text("hit rate, % of prompt tokens" + _of(answer) + "\n", style="bold"),
        plain_table(headings, rows, "R", padding=(0, 1, 0, 0)),
    ]
    if answer["tiers"]:
        headings = ["cache", "blocks", "GiB", "lru"]
        parts.append(plain_table(headings, tier_rows(answer), "LR", padding=(0, 1, 0, 0)))
    parts.append(Text("\n".join(hits_lines(answer))))
    return Group(*parts)


def _of(answer: Mapping[str, Any]) -> str:
    return f": {answer['deployment']}" if answer["deployment"] else ""


def save_hits(answer: Mapping[str, Any], table: NDArray[Any], folder: str | Path) -> None:
    """Write JSON, a CSV of the table and the figure, all of them or nothing."""
    from kvsim.report.plots.hits import hits

    folder = Path(folder)
    with writing(folder), whole_folder(folder) as temporary:
        write_json(temporary / "hits.json", answer)
        with (temporary / "hits.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(table.dtype.names or ())
            rows.writerows(table.tolist())
        hits(answer).savefig(temporary / "hits.png", dpi=130)


def hits_page(answer: Mapping[str, Any]) -> str:
    from kvsim.report.page.document import Document, Table
    from kvsim.report.page.svg import inline_svg
    from kvsim.report.plots.hits import hits

    page = Document("Hit rate over cache size" + _of(answer), hits_lines(answer)[0])
    page.words(f"{hits_lines(answer)[2]}.", "lead")
    page.figure(inline_svg(hits(answer), "hits", "Hit rate over cache size, a line per policy"))
    if answer["tiers"]:
        page.heading("Your caches")
        page.table(Table("tiers", ("cache", "blocks", "GiB", "LRU, %"), tier_rows(answer)))
    page.heading("Hit rates by size, %")
    page.table(Table("hits", *size_rows(answer)))
    page.heading("How far to trust it")
    for said in (f"Hits are {answer['hits_are']}", *answer["notes"], *TRUST):
        page.words(f"{said}.")
    return page.html()


#: Effects that the curves do not include.
TRUST = (
    "Requests are served one at a time; in an engine, running requests hold blocks, and these "
    "become evictable in the order in which requests end",
    "A cache of several tiers counts as one cache of their total size; it holds less if a slower "
    "tier also keeps copies of the blocks in a faster one",
)
