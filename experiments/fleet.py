"""Published figures of fleets, compared with simulations of the same fleets.

A bar is a set of measured or published figures with bands: routers in front of eight servers, KV
transfers, stores that overflow, prefixes that are pulled or recomputed. The bands were stated
before the first run. A figure that kvsim cannot compute yet counts as missed. The script exits with
1 if a band is missed, or if a bar cannot be judged because the folder lacks its measurements.

    python -m experiments.fleet [--data FOLDER] [--bars B1,B3] [--out DIR]
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from experiments.validation.data import absent, command, opening, require
from experiments.validation.distserve import placement as distserve_placement
from experiments.validation.fleets import (
    a10_prefill_decode,
    fair_queues,
    kv_aware_routing,
    kv_transfers,
    mooncake_rounds,
    mori_io,
    planner_studies,
    pulled_prefixes,
)
from experiments.validation.fleets.bars import Bar, Row
from experiments.validation.llmd_routers import study as llmd_routers
from experiments.validation.llmd_routers import token_aware as token_aware_routing
from experiments.validation.record import write
from kvsim.errors import unknown_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

#: All bars, one file each.
BARS = {
    "B1": Bar("four llm-d routers, 8 x Qwen3-32B", llmd_routers.SETS, llmd_routers.rows),
    "B3": Bar("transfers of KV", kv_transfers.SETS, kv_transfers.rows),
    "B4": Bar(
        "DistServe's placement of OPT-13B", distserve_placement.SETS, distserve_placement.rows
    ),
    "B5": Bar("prefill and decode apart on A10s", a10_prefill_decode.SETS, a10_prefill_decode.rows),
    "B6": Bar("hits of a store that overflows", mooncake_rounds.SETS, mooncake_rounds.rows),
    "B7": Bar("pull a prefix or compute it", pulled_prefixes.SETS, pulled_prefixes.rows),
    "B8": Bar("fair queues, VTC on an A10G", fair_queues.SETS, fair_queues.rows),
    "B10": Bar(
        "token-aware routing at the knee", token_aware_routing.SETS, token_aware_routing.rows
    ),
    "B11": Bar("a planner and start-up times", planner_studies.SETS, planner_studies.rows),
    "B15": Bar("KV-aware routing, saturated and not", kv_aware_routing.SETS, kv_aware_routing.rows),
    "B16": Bar("goodput of 8 MI300X, prefill apart", mori_io.SETS, mori_io.rows),
}
SETS = tuple(dict.fromkeys(name for bar in BARS.values() for name in bar.sets))
VERDICTS = {True: "holds", False: "MISSED", None: ""}


def chosen(names: str) -> list[str]:
    """Return the bars in a comma-separated list, in the order of :data:`BARS`; all if it is empty.

    Raises
    ------
    ValueError
        For an unknown bar.
    """
    wanted = [name.strip().upper() for name in names.split(",")] if names else []
    for name in wanted:
        if name not in BARS:
            raise unknown_name("bar", name, BARS)
    return [name for name in BARS if name in wanted or not wanted]


def figure(value: float | str) -> str:
    """Write a figure with four significant digits."""
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def table_of(name: str, rows: Sequence[Row]) -> Table:
    """Lay out a bar."""
    table = Table(title=f"{name}: {BARS[name].title}", title_justify="left")
    for column in ("what", "theirs", "ours", "band", "", "note"):
        table.add_column(column, justify="right" if column in ("theirs", "ours") else "left")
    for row in rows:
        figures = (figure(row.theirs), figure(row.ours), row.band)
        said = "not judged" if row in unjudged(rows) else VERDICTS[row.holds]
        table.add_row(row.what, *figures, said, row.note)
    return table


def unjudged(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with a band that the data do not suffice to judge."""
    return [row for row in rows if row.band and row.holds is None]


def verdict(name: str, rows: Sequence[Row]) -> str:
    """Return a line with the numbers of bands that hold, are missed, or are not judged."""
    judged = [row for row in rows if row.holds is not None]
    missed = [row.what for row in judged if not row.holds]
    lacking = [row.what for row in unjudged(rows)]
    text = f"{name}: {len(judged) - len(missed)} of {len(judged)} bands hold"
    text += f"; missed: {'; '.join(missed)}" if missed else ""
    return text + (f"; not judged: {'; '.join(lacking)}" if lacking else "")


def kept(file: Path, found: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
    """Return all bars to be written: the new ones, and the file's for bars that did not run."""
    old = json.loads(file.read_text(encoding="utf-8"))["bars"] if file.exists() else {}
    new = {
        name: {"title": BARS[name].title, "rows": [row._asdict() for row in rows]}
        for name, rows in found.items()
    }
    return {name: new.get(name, old.get(name)) for name in BARS if name in new or name in old}


def main() -> None:
    """Print every bar, write them with ``--out``, and exit with 1 if a band is missed."""
    parser = command("fleet", __doc__)
    parser.add_argument(
        "--bars", default="", metavar="B1,B3", help="only these; --out keeps others"
    )
    options = parser.parse_args()
    try:
        names = chosen(options.bars)
    except ValueError as error:
        parser.error(str(error))
    require(parser, options.data, SETS)
    print(opening(options.data, SETS))
    console = Console(width=150)
    found: dict[str, list[Row]] = {}
    lacking = {name: absent(options.data, BARS[name].sets) for name in names}
    for name in names:
        if not lacking[name]:
            found[name] = BARS[name].rows(options.data)
            console.print(table_of(name, found[name]))
    for name in names:
        without = f"{name}: not judged, for want of {', '.join(lacking[name])}"
        print(without if lacking[name] else verdict(name, found[name]))
    if options.out is not None:
        record = {"bars": kept(options.out / "fleet.json", found)}
        write(options.out, "fleet", record, {}, data=options.data, sets=SETS)
    missed = any(row.holds is False for rows in found.values() for row in rows)
    if missed or len(found) < len(names) or any(unjudged(rows) for rows in found.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
