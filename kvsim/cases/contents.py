"""The requests of a case of vLLM by row, as the rules read them.

vLLM's front end replaces a request with ``n`` samples by ``n`` ordinary requests, ``0_ID`` to
``n-1_ID``; its scheduler sees only these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.cases.encoder import items_of
from kvsim.cases.rows import (
    BETWEEN_ARRIVALS,
    contents_of_rows,
    num_tokens,
    numbers,
    offsets,
    output_segment,
    span,
)
from kvsim.cases.sessions import add_sessions, has_sessions
from kvsim.engine.contents import text_ranks

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from kvsim.cases.case import CaseRequest, Workload
    from kvsim.engine.contents import Contents


#: Distance between the output segments of two samples of a request.
BETWEEN_SIBLINGS = 400


def arrival_time(given: CaseRequest, index: int) -> float:
    """Return the arrival time of a request, given its index in the workload."""
    if given.arrival_time is not None:
        return given.arrival_time
    return given.arrival_step + index * BETWEEN_ARRIVALS


def with_children(workload: Workload) -> Workload:
    """Return the workload with one request per sample in place of requests with several samples."""
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
    """Return the number of tokens at which each request ends, and its max_tokens."""
    asked = [request.max_tokens for request in requests]
    stops = [request.stop_at for request in requests]
    if not any(stops) and not any(request.updates for request in requests):
        return {"max_tokens": asked}
    tokens = [
        min(stop, most) if isinstance(stop, int) and stop else most
        for stop, most in zip(stops, asked, strict=True)
    ]
    return {"max_tokens": tokens, "asked_tokens": asked}


def contents_of_case(workload: Workload) -> Contents:
    given = workload.requests
    segments = [span(segment) for request in given for segment in request.segments]
    lists = _lists(given)
    if has_sessions(workload):
        add_sessions(given, lists, segments)
    items, lists["item_offsets"] = items_of(given)
    return contents_of_rows(lists, segments, items)


def _lists(given: Sequence[CaseRequest]) -> dict[str, Any]:
    lists = {
        "num_prompt_tokens": [num_tokens(request.segments) for request in given],
        **ends(given),
        "segment_offsets": offsets(request.segments for request in given),
        "output_content_id": [output_segment(r.out_seg, row) for row, r in enumerate(given)],
        "priority": [request.priority for request in given],
        "cache_salt": numbers(map(_extra_keys, given)),
        "id_rank": text_ranks(str(request.id) for request in given),
        "lora": numbers(request.lora for request in given),
        "ready_time": [_ready_step(request) for request in given],
        **_counts("accept", [request.accept or [0] for request in given]),
        **_counts("draft", [request.drafts or [] for request in given]),
    }
    if any(request.skip_read for request in given):
        lists["skips_reading"] = [int(request.skip_read) for request in given]
    return lists


def _extra_keys(given: CaseRequest) -> Hashable:
    """Return the extra keys of a request's blocks: salt and adapter; None if it has none."""
    keys = given.cache_salt or None, given.lora
    return None if keys == (None, None) else keys


def _counts(name: str, given: list[list[int]]) -> dict[str, Any]:
    """Return the counts of all requests as one concatenated list with offsets."""
    flat = [count for counts in given for count in counts]
    return {f"{name}s": flat or [0], f"{name}_offsets": offsets(given)}


def _ready_step(given: CaseRequest) -> int:
    """Return the step at which a request's grammar is compiled, -1 without one."""
    return -1 if given.grammar_steps is None else given.arrival_step + given.grammar_steps
