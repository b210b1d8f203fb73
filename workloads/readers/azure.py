"""Azure's LLM inference traces of 2023 and 2024 (github.com/Azure/AzurePublicDataset)."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from workloads.draft import Draft
from workloads.readers.formats import reader, without_failed

if TYPE_CHECKING:
    from workloads.readers.table import Table

#: The 2023 files have seven digits after the second, one more than Python's datetime keeps.
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?")


@reader("azure", ["TIMESTAMP", "ContextTokens", "GeneratedTokens"])
def read_azure(table: Table, *, drop_failed: bool = False) -> Draft:
    """Read wall-clock times as seconds after the first row; a time zone may follow each.

    Parameters
    ----------
    table : of the columns TIMESTAMP, ContextTokens, GeneratedTokens
    drop_failed : leave out requests without generated tokens instead of refusing them
    """
    table, notes = without_failed(table, "GeneratedTokens", drop_failed)
    allowed = "a time as 2023-11-16 18:15:46.6805900 or with a zone as +00:00"
    ticks = table.convert("TIMESTAMP", _nanoseconds, allowed)
    return Draft(
        table.tokens("ContextTokens"),
        table.tokens("GeneratedTokens"),
        arrival_time=table.since_first("TIMESTAMP", ticks, 1e9),
        places=table.places,
        notes=notes,
        ends_by="eos",
    )


def _nanoseconds(cell: Any) -> int:
    match = _TIMESTAMP.fullmatch(str(cell).strip())
    if match is None:
        raise ValueError
    clock, fraction, zone = match.groups()
    time = datetime.fromisoformat(clock + (zone or ""))
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return int(time.timestamp()) * 10**9 + int((fraction or "").ljust(9, "0"))
