"""BurstGPT, requests to ChatGPT and GPT-4 on Azure (github.com/HPMLL/BurstGPT)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workloads.draft import Draft
from workloads.readers.columns import session_numbers
from workloads.readers.formats import reader, without_failed

if TYPE_CHECKING:
    from workloads.readers.table import Table


@reader("burstgpt", ["Timestamp", "Request tokens", "Response tokens"], ["Session ID"])
def read_burstgpt(table: Table, *, drop_failed: bool = True) -> Draft:
    """Read times as seconds after the first row, and session ids where the file has them.

    Session ids only group requests: the trace does not record which tokens a prompt shares with
    earlier ones, so every prompt is unique.

    Parameters
    ----------
    table : of the columns Timestamp (seconds), Request tokens, Response tokens, Session ID
    drop_failed : leave out rows with 0 response tokens
        They are requests that failed, as the data set's README says, and its "without fails" files
        lack them. Their number is in ``read(...).notes``. False raises at the first.
    """
    table, notes = without_failed(table, "Response tokens", drop_failed)
    return Draft(
        table.tokens("Request tokens"),
        table.tokens("Response tokens"),
        arrival_time=table.since_first("Timestamp", table.floats("Timestamp"), 1),
        session_id=session_numbers(table, ["Session ID"]),
        places=table.places,
        notes=notes,
        ends_by="eos",
    )
