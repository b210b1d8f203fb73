"""Parallel samples and ends by a stop token in a case, in the words of the recorded ones.

vLLM's front end makes ``n`` ordinary requests of a parent, ``0_ID`` to ``n-1_ID``; its scheduler
knows nothing of parents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.cases.rows import output_segment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.cases.case import CaseRequest, Workload

#: Output segments of siblings lie so far apart.
BETWEEN_SIBLINGS = 400
#: Seconds between requests of one step, which have no arrival time of their own.
BETWEEN_ARRIVALS = 1e-6


def arrival_time(given: CaseRequest, index: int) -> float:
    """Return when a request arrives, given its place in the workload."""
    if given.arrival_time is not None:
        return given.arrival_time
    return given.arrival_step + index * BETWEEN_ARRIVALS


def with_children(workload: Workload) -> Workload:
    """Return the workload with every parent's samples in its place, as ordinary requests."""
    if all(request.num_samples == 1 for request in workload.requests):
        return workload
    requests = []
    for index, given in enumerate(workload.requests):
        own = {
            "out_seg": output_segment(given.out_seg, index),
            "arrival_time": arrival_time(given, index),
        }
        if given.num_samples == 1:
            requests.append(given.model_copy(update=own))
            continue
        requests += [_child(given, own, number) for number in range(given.num_samples)]
    return workload.model_copy(update={"requests": requests})


def _child(given: CaseRequest, own: dict[str, Any], number: int) -> CaseRequest:
    stops = given.stop_at
    return given.model_copy(
        update={
            **own,
            "id": f"{number}_{given.id}",
            "num_samples": 1,
            "out_seg": own["out_seg"] + BETWEEN_SIBLINGS * number,
            "stop_at": stops[number] if isinstance(stops, list) else stops,
        }
    )


def ends(requests: Sequence[CaseRequest]) -> dict[str, list[int]]:
    """Return with how many tokens each request ends, and how many it asks for at most."""
    asked = [request.max_tokens for request in requests]
    stops = [request.stop_at for request in requests]
    if not any(stops) and not any(request.updates for request in requests):
        return {"max_tokens": asked}
    tokens = [
        min(stop, most) if isinstance(stop, int) and stop else most
        for stop, most in zip(stops, asked, strict=True)
    ]
    return {"max_tokens": tokens, "asked_tokens": asked}
