"""Traces of some rows of a trace, one after another or in any order."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.trace.columns import read_tenants
from kvsim.trace.cuts import with_columns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvsim.trace import Trace

    Ints = NDArray[np.int64]

#: Columns with several entries per request, by their offsets.
LISTS = {
    "segment_offsets": ("segment_content_id", "segment_start", "segment_num_tokens"),
    "accept_offsets": ("accepted_drafts",),
    "item_offsets": ("item_start", "item_num_tokens"),
    "sample_offsets": ("sample_output_tokens",),
    "after_offsets": ("after",),
}


def columns_of(trace: Trace, rows: Ints) -> dict[str, NDArray[Any]]:
    """Return the columns of some rows; ``after`` keeps the numbers of the whole trace."""
    columns = {name: getattr(trace, name)[rows] for name in _plain(trace)}
    for offsets, names in LISTS.items():
        start = getattr(trace, offsets)
        number = np.diff(start)[rows]
        stop = np.cumsum(number)
        entries = np.arange(int(stop[-1])) + np.repeat(start[rows] - (stop - number), number)
        columns[offsets] = np.concatenate(([0], stop))
        columns |= {name: getattr(trace, name)[entries] for name in names}
    return columns


def _plain(trace: Trace) -> list[str]:
    """Return the names of the columns with one entry per request."""
    lists = {*LISTS, *(name for names in LISTS.values() for name in names), "tenant_names"}
    return [field.name for field in fields(trace) if field.name not in lists]


def columns_within(trace: Trace, start: int, stop: int) -> dict[str, NDArray[Any]]:
    """Return the columns of the requests from ``start`` to ``stop``, with new numbers."""
    columns = {name: getattr(trace, name)[start:stop].copy() for name in _plain(trace)}
    fresh = columns["output_content_id"] < 0
    columns["output_content_id"][fresh] += 2 * start
    for offsets, names in LISTS.items():
        first, last = getattr(trace, offsets)[[start, stop]]
        columns[offsets] = getattr(trace, offsets)[start : stop + 1] - first
        columns |= {name: getattr(trace, name)[first:last].copy() for name in names}
    _renumber_waits(columns, np.arange(len(trace)) - start)
    if trace.has("tenant_names"):  # number the slice's tenants anew, as if read from a file
        rest = [trace.tenant_of(row) for row in range(start, stop)]
        columns["tenant"], columns["tenant_names"] = read_tenants(rest, stop - start)
    return columns


def with_rows(trace: Trace, rows: Ints) -> Trace:
    """Return a trace of some rows, which wait for each other as before.

    Rows that are left out count as ended. A row comes after those that it waits for.
    """
    columns = columns_of(trace, rows)
    place = np.full(len(trace), -1, np.int64)
    place[rows] = np.arange(len(rows))
    _renumber_waits(columns, place)
    output = columns["output_content_id"]
    fresh = -2 * np.arange(len(rows), dtype=np.int64) - 2
    columns["output_content_id"] = np.where(output < 0, fresh, output)
    return with_columns(trace, **columns)


def _renumber_waits(columns: dict[str, NDArray[Any]], place: Ints) -> None:
    """Give awaited rows their new numbers ``place``; rows below 0 count as ended. Mutates."""
    code = columns["after"]
    awaited = place[np.where(code < 0, -code - 1, code)]
    is_there = awaited >= 0
    total = np.concatenate(([0], np.cumsum(is_there)))
    columns["after_offsets"] = total[columns["after_offsets"]]
    columns["after"] = np.where(code < 0, -awaited - 1, awaited)[is_there]
