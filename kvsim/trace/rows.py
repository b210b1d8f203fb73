"""Traces of some rows of a trace, in any order."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.trace.cuts import with_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvsim.trace import Trace

    Ints = NDArray[np.int64]

#: Columns with several entries per request, by their offsets; those of waits apart.
LISTS = {
    "segment_offsets": ("segment_content_id", "segment_start", "segment_num_tokens"),
    "accept_offsets": ("accepted_drafts",),
    "item_offsets": ("item_start", "item_num_tokens"),
    "sample_offsets": ("sample_output_tokens",),
    "after_offsets": ("after",),
}


def columns_of(trace: Trace, rows: Ints) -> dict[str, NDArray[Any]]:
    """Return the columns of some rows; ``after`` keeps the numbers of the whole trace."""
    lists = {*LISTS, *(name for names in LISTS.values() for name in names), "tenant_names"}
    names = [field.name for field in fields(trace) if field.name not in lists]
    columns = {name: getattr(trace, name)[rows] for name in names}
    for offsets, entries in LISTS.items():
        columns |= _lists(trace, offsets, entries, rows)
    return columns


def with_rows(trace: Trace, rows: Ints) -> Trace:
    """Return a trace of some rows, which wait for each other as before.

    Rows that are left out count as ended. A row comes after those that it waits for.
    """
    columns = columns_of(trace, rows)
    place = np.full(len(trace), -1, np.int64)
    place[rows] = np.arange(len(rows))
    code = columns["after"]
    awaited = place[np.where(code < 0, -code - 1, code)]
    is_there = awaited >= 0
    total = np.concatenate(([0], np.cumsum(is_there)))
    columns["after_offsets"] = total[columns["after_offsets"]]
    columns["after"] = np.where(code < 0, -awaited - 1, awaited)[is_there]
    output = columns["output_content_id"]
    fresh = -2 * np.arange(len(rows), dtype=np.int64) - 2
    columns["output_content_id"] = np.where(output < 0, fresh, output)
    return with_columns(trace, **columns)


def _lists(trace: Trace, offsets: str, names: Sequence[str], rows: Ints) -> dict[str, NDArray[Any]]:
    """Return columns with several entries per request, for some rows, and their offsets."""
    start = getattr(trace, offsets)
    number = np.diff(start)[rows]
    stop = np.cumsum(number)
    entries = np.arange(int(stop[-1])) + np.repeat(start[rows] - (stop - number), number)
    return {offsets: np.concatenate(([0], stop))} | {
        name: getattr(trace, name)[entries] for name in names
    }
