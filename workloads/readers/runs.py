"""Reports of benchmark clients: one run of several, and the requests that succeeded."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from workloads.draft import Draft

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workloads.readers.table import Table

#: Reports contain lengths and no contents.
NO_CONTENT = "the report has no shared prefixes: every prompt is unique"
#: Seed of arrivals that a report does not record, so that every draw is the same.
_SEED = 0


def chosen(table: Table, titles: Sequence[str], run: int | None) -> int:
    """Return the index of the run to serve.

    Raises
    ------
    ValueError
        If a file with several runs is given without a number, or the number is none of them.
    """
    if run is None and len(titles) == 1:
        return 0
    if run is None or not 1 <= run <= len(titles):
        listed = "; ".join(f"{i} {title}" for i, title in enumerate(titles[:6], 1))
        more = "; ..." if len(titles) > 6 else ""
        raise ValueError(
            f"{table.path}: holds {len(titles)} runs ({listed}{more}): give one, "
            f"as in {table.path}+run=1"
        )
    return run - 1


def drawn_times(num_requests: int, request_rate: float, burstiness: float) -> list[float] | None:
    """Return arrival times as ``vllm bench serve`` draws them; None if all arrive at once."""
    if not math.isfinite(request_rate) or request_rate <= 0:
        return None
    gaps = np.random.default_rng(_SEED).gamma(burstiness, 1 / burstiness, num_requests)
    times = np.cumsum(gaps)
    times *= num_requests / request_rate / times[-1]
    drawn: list[float] = (times - times[0]).tolist()
    return drawn


def number(value: Any) -> float | None:
    """Return a number, ``inf`` as a text included; None for anything else."""
    if value is None or isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def draft_of(
    table: Table,
    requests: Sequence[tuple[float | None, int, int]],
    num_failed: int,
    notes: Sequence[str] = (),
    *,
    places: Sequence[int] | None = None,
    session_id: Sequence[int] | None = None,
) -> Draft:
    """Return requests of (send time, prompt, output), in send order."""
    if not requests:
        raise ValueError(f"{table.path}: has no successful request")
    sent = [time for time, _, _ in requests if time is not None]
    told = [*notes, NO_CONTENT]
    if num_failed:
        every = len(requests) + num_failed
        told.insert(0, f"dropped {num_failed:,} of {every:,} requests: they failed")
    draft = Draft(
        [prompt for _, prompt, _ in requests],
        [output for _, _, output in requests],
        arrival_time=None if len(sent) < len(requests) else [time - min(sent) for time in sent],
        session_id=session_id,
        places=places or [table.places[0]] * len(requests),
        notes=tuple(told),
    )
    return draft if draft.arrival_time is None else draft.in_order_of_arrival()
