"""Speculative decoding under SGLang: slots in reserve, and several tokens per step.

A row keeps slots for the drafts of two steps. Tokens count as committed once a step's output is
processed, and slots of rejected drafts are used again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.sglang.rules.held import append_pages, count_internal
from kvsim.engines.sglang.rules.tree.evict import evict_for
from kvsim.engines.sglang.rules.tree.pages import ceil_page, num_free_slots
from kvsim.rules.vllm.speculation import draw_accepted

if TYPE_CHECKING:
    from kvsim.engines.sglang.records.scheduler import Progress
    from kvsim.records.engine import Entry, Replica
    from kvsim.records.request import Request


def slots_of_row(request: Request, mine: Progress) -> int:
    """Return the slots of a request's row, the reserve for drafts included."""
    return max(mine.num_slots, request.num_computed_tokens)


def verifications_fit(state: Replica) -> bool:
    """Evict until the reserves of all running requests fit; return True if they do."""
    scheduler, needed = state.engines.sglang, 0
    size, reserve = scheduler.page_size, scheduler.speculation.reserve
    for place in range(scheduler.num_running):
        k = scheduler.running[place]
        request = state.requests[k]
        slots = slots_of_row(request, scheduler.progress[k])
        wanted = max(slots, request.num_computed_tokens + reserve)
        needed += ceil_page(wanted, size) - ceil_page(slots, size)
    evict_for(state.kv.radix, needed)
    return num_free_slots(state.kv.radix) >= needed


def reserve_slots(state: Replica) -> None:
    """Extend the rows of the running requests by their reserve, after making room for it."""
    scheduler, tree, needed = state.engines.sglang, state.kv.radix, 0
    size, reserve = scheduler.page_size, scheduler.speculation.reserve
    for place in range(scheduler.num_running):
        k = scheduler.running[place]
        request = state.requests[k]
        slots = slots_of_row(request, scheduler.progress[k])
        target = ceil_page(request.num_computed_tokens + reserve, size)
        needed += max(target - slots, 0)
    if needed == 0:
        return
    evict_for(tree, needed + (size * scheduler.num_running if size > 1 else 0))
    for place in range(scheduler.num_running):
        k = scheduler.running[place]
        request, mine = state.requests[k], scheduler.progress[k]
        target = ceil_page(request.num_computed_tokens + reserve, size)
        missing = target - mine.num_shared - mine.num_pages * size
        mine.num_slots = max(slots_of_row(request, mine), target)
        if missing > 0:
            append_pages(tree, mine, missing // size)
            count_internal(tree, request, mine)


def plan_verification(state: Replica, entry: Entry, mine: Progress, is_mixed: bool) -> None:
    """Plan the step of a request, and the tokens that it will yield: one in a mixed batch.

    The accepted drafts depend on the number of outputs, those of steps in flight included.
    """
    request, speculation = state.requests[entry.request], state.engines.sglang.speculation
    entry.num_accepted = 0
    if not is_mixed:
        entry.num_tokens = speculation.num_verified
        entry.num_drafts = speculation.num_verified - 1
        entry.end = request.num_computed_tokens + entry.num_tokens
        entry.num_accepted = accepted_after(state, request, mine.num_on_device)
    mine.num_on_device += 1 + entry.num_accepted


def accepted_after(state: Replica, request: Request, num_outputs: int) -> int:
    """Return the number of drafts, recorded or drawn, that a verification accepts.

    Only one path of a tree of drafts is drawn.
    """
    trace, row, speculation = state.trace, request.request_id, state.engines.sglang.speculation
    if trace.has_accepts and trace.accept_offsets[row] < trace.accept_offsets[row + 1]:
        first, stop = trace.accept_offsets[row], trace.accept_offsets[row + 1]
        accepted = trace.accepts[first + num_outputs % (stop - first)]
        return min(accepted, speculation.num_verified - 1)
    return draw_accepted(state, row, request.num_prompt_tokens + num_outputs, speculation.depth)


def commit(state: Replica, k: int, entry: Entry) -> int:
    """Commit the tokens of a step; return the number of tokens that the request keeps.

    In a mixed batch the last token of a request is not committed.
    """
    request, gained = state.requests[k], 1 + entry.num_accepted
    if entry.num_drafts > 0 or request.num_tokens + 1 < request.end:
        request.num_computed_tokens += gained
        state.kv.radix.num_own_tokens += gained
    if entry.num_drafts > 0:
        state.totals.num_drafts += 1
        state.totals.num_draft_tokens += entry.num_drafts
        state.totals.num_accepted_tokens += entry.num_accepted
    return min(gained, request.end - request.num_tokens)
