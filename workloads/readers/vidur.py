"""Vidur's request traces (github.com/microsoft/vidur)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workloads.draft import Draft
from workloads.readers.formats import reader

if TYPE_CHECKING:
    from workloads.readers.table import Table


@reader("vidur", ["arrived_at", "num_prefill_tokens", "num_decode_tokens"])
def read_vidur(table: Table) -> Draft:
    """Read independent requests; ``arrived_at`` is in seconds."""
    return Draft(
        table.tokens("num_prefill_tokens"),
        table.tokens("num_decode_tokens"),
        arrival_time=table.floats("arrived_at"),
    )
