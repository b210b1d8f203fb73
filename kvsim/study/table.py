"""The table of a sweep: one row per cell, read from disk in the plan's order."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any

from kvsim.files import write_whole
from kvsim.results.flat import flat, squared
from kvsim.results.replications import average
from kvsim.study.cell import CorruptError, Stored, read_cell
from kvsim.study.sweep import CELLS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kvsim.study.plan import Point
    from kvsim.study.run_cell import Cell

    Row = dict[str, Any]

#: Text for a cell that has no result and no error.
NOT_RUN = "not run"


def read_all(cells: Sequence[Cell], folder: Path) -> list[Stored]:
    """Read the cells of a plan, one per point."""
    found: dict[str, Stored] = {}
    for cell in cells:
        if cell.digest not in found:
            found[cell.digest] = _read(folder / CELLS / cell.digest)
    return [found[cell.digest] for cell in cells]


def _read(folder: Path) -> Stored:
    try:
        return read_cell(folder) or Stored(None, NOT_RUN)
    except CorruptError as error:
        return Stored(None, str(error))


def table_rows(
    points: Sequence[Point], cells: Sequence[Cell], stored: Sequence[Stored]
) -> list[Row]:
    """Return one row per point: varied options, numbers of the summary, the cell, the error."""
    rows = []
    for point, cell, one in zip(points, cells, stored, strict=True):
        varied = {name: shown(value) for name, value in point.varied.items()}
        rows.append({**varied, **flat(one.summary or {}), "cell": cell.digest, "error": one.error})
    return squared(rows, last=("cell", "error"))


def means_rows(points: Sequence[Point], stored: Sequence[Stored]) -> list[Row]:
    """Return one row per combination of options: means over seeds, half-widths of 95 % intervals.

    Seeds that could not run are left out; ``replications`` counts the other seeds.
    """
    groups: dict[str, tuple[Row, list[dict[str, Any]]]] = {}
    for point, one in zip(points, stored, strict=True):
        varied = {n: shown(value) for n, value in point.varied.items() if n != "seed"}
        _, summaries = groups.setdefault(json.dumps(varied, allow_nan=True), (varied, []))
        if one.summary is not None:
            summaries.append(dict(one.summary))
    rows = []
    for varied, summaries in groups.values():
        row = {**varied, "replications": len(summaries)}
        if summaries:
            means = average(summaries)
            widths = flat(means.pop("ci95", {}))
            means.pop("replications", None)
            for name, value in flat(means).items():
                row[name] = value
                if name in widths:
                    row[f"{name}_ci95"] = widths[name]
        rows.append(row)
    return squared(rows)


def shown(value: Any) -> Any:
    """Return an option's value as a table cell."""
    if is_dataclass(value) and not isinstance(value, type):
        value = {k: v for k, v in asdict(value).items() if v is not None}
    if isinstance(value, tuple | list):
        value = [shown(one) for one in value]
    return json.dumps(value, default=str) if isinstance(value, dict | list) else value


def save_csv(rows: Sequence[Row], path: Path) -> None:
    """Write rows as CSV; None is an empty field."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(rows[0])
    writer.writerows(row.values() for row in rows)
    write_whole(path, lambda file: file.write(text.getvalue().encode()), follow_link=False)


def save_parquet(rows: Sequence[Row], path: Path) -> None:
    """Write rows as Parquet; a column of mixed types becomes numbers or texts."""
    import pyarrow as pa
    from pyarrow import parquet

    columns = {name: _typed([row[name] for row in rows]) for name in rows[0]}
    arrays = {
        name: pa.array(values, pa.string() if name == "error" else None)
        for name, values in columns.items()
    }
    empty = {name for name, array in arrays.items() if array.type == pa.null()}
    arrays |= {name: arrays[name].cast(pa.float64()) for name in empty}
    write_whole(path, lambda file: parquet.write_table(pa.table(arrays), file), follow_link=False)


def _typed(values: list[Any]) -> list[Any]:
    """Return values of one type: numbers, or texts if not all are numbers."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) < 2:
        return values
    to = float if kinds == {int, float} else str
    return [None if value is None else to(value) for value in values]
