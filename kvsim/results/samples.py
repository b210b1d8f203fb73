"""Rows of requests, merged from those of their samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.results.tables import REQUESTS, SAMPLES, FinishReason

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvsim.trace.family import Family

#: Finish reasons by precedence: a request gets the first one that any of its samples has.
WORST = (
    *(FinishReason.IN_FLIGHT, FinishReason.UNSENT, FinishReason.REJECTED),
    *(FinishReason.FAILED, FinishReason.ABORTED),
)


def fold(rows: NDArray[Any], family: Family) -> NDArray[Any]:
    """Return one row per request, as seen by a client that waits for all its samples.

    The first token is the earliest one of all samples, and the request ends with its last sample.
    Output tokens and preemptions are summed, and the prompt counts once. The cached tokens are the
    smallest number of any sample, as later samples also hit blocks that the first one computed.
    """
    first = family.first
    table = rows[first].copy()
    table["request_id"] = np.arange(len(table))
    for name in ("first_scheduled_time", "first_token_time"):
        table[name] = np.fmin.reduceat(rows[name], first)
    for name in ("finish_time", "transfer_time"):
        table[name] = np.maximum.reduceat(rows[name], first)
    for name in ("num_output_tokens", "num_preemptions"):
        table[name] = np.add.reduceat(rows[name], first)
    table["num_cached_tokens"] = np.minimum.reduceat(rows["num_cached_tokens"], first)
    reasons = np.full(len(table), FinishReason.FINISHED)
    for reason in reversed(WORST):
        reasons[np.logical_or.reduceat(rows["finish_reason"] == reason, first)] = reason
    table["finish_reason"] = reasons
    without = np.isin(reasons, (FinishReason.REJECTED, FinishReason.IN_FLIGHT, FinishReason.UNSENT))
    table["finish_time"][without] = np.nan
    return table


def samples_of(rows: NDArray[Any], family: Family) -> NDArray[Any]:
    """Return the rows of samples, each with the index of its request in ``parent_id``."""
    table = np.zeros(len(rows), SAMPLES)
    for name in REQUESTS.names or ():
        table[name] = rows[name]
    table["parent_id"] = family.parent_of
    return table
