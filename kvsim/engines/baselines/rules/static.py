"""Request-level batching: a batch runs until its last request ends (FasterTransformer, Triton).

A request is answered when it ends; its slots and its record stay allocated until the batch ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.rules.batch import admit, grow_running, recycle
from kvsim.rules.kv import admit_slots, free_slots, retire
from kvsim.rules.queue import head_of

if TYPE_CHECKING:
    from kvsim.records.engine import Batch, Replica


def schedule_static(state: Replica, batch: Batch) -> None:
    """Schedule a step: fill an empty batch from the queue, or continue the current batch.

    A request that cannot grow preempts the last request of its batch, which joins the next batch.
    """
    if state.num_running == 0:
        form_batch(state, batch)
    else:
        grow_running(state, batch)
        end_batch(state)


def form_batch(state: Replica, batch: Batch) -> None:
    """Admit requests, with whole prompts, from the queue while max_num_seqs and memory allow."""
    num_seqs = 0
    while state.waiting.length > 0:
        k = head_of(state)
        request = state.requests[k]
        num_seqs += request.num_samples
        if num_seqs > state.limits.max_num_seqs:
            break
        state.refused = not admit_slots(state.kv, request, request.num_tokens, 0)
        if state.refused:
            state.totals.num_allocation_failures += 1
            break
        admit(state, batch, k, request.num_tokens, 0)


def retire_request(state: Replica, k: int) -> None:
    """Mark a request as ended; its slots stay allocated until the batch ends."""
    retire(state.kv, state.requests[k])
    state.ended[state.num_retired] = k
    state.num_retired += 1


def end_batch(state: Replica) -> None:
    """Free the slots of ended requests once no request runs."""
    if state.num_running > 0:
        return
    for place in range(state.num_retired):
        k = state.ended[place]
        free_slots(state.kv, state.requests[k])
        recycle(state, k)
    state.num_retired = 0
