"""The prefill pass: choosing the prompts, or chunks of prompts, that are computed next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.sglang.records.radix import NO_HOST
from kvsim.engines.sglang.records.scheduler import CONTINUE, NO_TOKEN, OTHER, SHORTEST_PREFILL_FIRST
from kvsim.engines.sglang.rules.adapters import join_adapter, may_join, open_adapters
from kvsim.engines.sglang.rules.budget import (
    MOST_NEW_TOKENS,
    charge_prefill,
    open_budget,
    rem_current,
    rem_total,
    rem_window,
    verdict_of,
    window_need,
)
from kvsim.engines.sglang.rules.delayer import delays_prefill, open_delay
from kvsim.engines.sglang.rules.draining import begin_drains, outlasts_drain
from kvsim.engines.sglang.rules.host.load import load_path
from kvsim.engines.sglang.rules.host.storage import settle_read
from kvsim.engines.sglang.rules.outlook import foresees_room
from kvsim.engines.sglang.rules.preemption import preempt_for
from kvsim.engines.sglang.rules.states import branch_of, copy_state, return_copy
from kvsim.engines.sglang.rules.tree.locks import lock_path, unlock_path
from kvsim.engines.sglang.rules.tree.pages import ceil_page, floor_page
from kvsim.engines.sglang.rules.tree.state_slots import close_states, open_states
from kvsim.engines.sglang.rules.tree.walk import match_prefix, num_host_found
from kvsim.engines.sglang.rules.waiting import (
    enter_queue,
    missing_tokens,
    order_waiting,
    remove_from_waiting,
)
from kvsim.records.record import NONE

if TYPE_CHECKING:
    from kvsim.records.engine import Replica


#: Result of a plan: the prompt does not fit.
NO_ROOM = -1


def choose_prefills(state: Replica) -> bool:
    """List the requests to admit; False if there are none."""
    scheduler = state.engines.sglang
    open_delay(scheduler.delayer)
    if scheduler.preempts or scheduler.num_running == 0 or state.kv.radix.window > 0:
        scheduler.is_full = False
    if scheduler.chunked == NONE:
        if scheduler.is_full or state.waiting.length == 0:
            return False
        if awaits_places(state):
            return False
        if not scheduler.preempts and num_places(state, 0) <= 0:
            scheduler.is_full = True
            return False
    order_waiting(state)
    open_budget(state)
    if scheduler.chunked != NONE:
        continue_chunked(state)
    if state.kv.radix.has_states:
        open_states(state.kv.radix.states, state.waiting.length)
    admit_waiting(state)
    if state.kv.radix.has_states:
        close_states(state.kv.radix.states)
    for place in range(scheduler.num_preempted):
        enter_queue(state, scheduler.preempted[place])
    if scheduler.num_preempted > 0:
        scheduler.num_fruitless += 1
    scheduler.delayer.most_at_once = max(scheduler.delayer.most_at_once, scheduler.num_admitted)
    return scheduler.num_admitted > 0


def awaits_places(state: Replica) -> bool:
    """Return True if prefills wait until more of the running requests have ended."""
    scheduler = state.engines.sglang
    return scheduler.num_running > 0 and num_places(state, 0) < scheduler.min_free_slots


def num_places(state: Replica, num_rows_held: int) -> int:
    """Return the number of requests that may still be admitted."""
    scheduler = state.engines.sglang
    return min(scheduler.max_running - scheduler.num_running, scheduler.num_rows + num_rows_held)


def continue_chunked(state: Replica) -> None:
    """Admit the next chunk of the request that is being computed in chunks, even without room."""
    scheduler, k = state.engines.sglang, state.engines.sglang.chunked
    request, mine = state.requests[k], state.engines.sglang.progress[k]
    left = request.num_tokens - mine.prefix
    limit = min(scheduler.rem_chunk, int(rem_total(state)))
    if state.kv.radix.window > 0:
        limit = min(limit, rem_window(state) - scheduler.page_size)
        if limit <= 0:
            return  # it waits for window slots, and keeps its KV
    elif limit <= 0:
        limit = scheduler.rem_chunk
    if scheduler.order == SHORTEST_PREFILL_FIRST:
        limit = reserve_for_shorter(state, left, limit)
    num_tokens = min(left, limit)
    is_cut = num_tokens < left
    mine.end = mine.prefix + num_tokens
    charge_prefill(state, num_tokens, 0 if is_cut else min(mine.max_new, MOST_NEW_TOKENS))
    scheduler.admitted[scheduler.num_admitted] = k
    scheduler.num_admitted += 1
    if not is_cut:
        scheduler.chunked = NONE


def reserve_for_shorter(state: Replica, left: int, limit: int) -> int:
    """Reduce a chunk so that shorter waiting requests fit into the pass."""
    scheduler, size = state.engines.sglang, state.engines.sglang.page_size
    if scheduler.rem_chunk < 2 * size:
        return limit
    spared, k = 0, state.waiting.head
    while k != NONE:
        missing = missing_tokens(state, k)
        needed = spared + ceil_page(missing, size)
        if missing >= left or needed > scheduler.rem_chunk - size:
            break
        spared = needed
        k = state.requests[k].next
    if spared == 0:
        return limit
    return min(limit, floor_page(scheduler.rem_chunk - spared, size))


def admit_waiting(state: Replica) -> None:
    """Try to admit the waiting requests in order, until a refusal or the end of the budget."""
    scheduler, num_rows_held = state.engines.sglang, state.engines.sglang.num_admitted
    k = state.waiting.head
    if scheduler.adapters.is_on:
        open_adapters(state)
        if scheduler.adapters.drain_wait > 0:
            begin_drains(state)
    while k != NONE and verdict_of(state) != OTHER:
        if scheduler.adapters.is_on and not is_tried(state, k):
            k = state.requests[k].next
            continue
        if scheduler.num_admitted >= num_places(state, num_rows_held):
            scheduler.is_full = True
        if scheduler.is_full and not (scheduler.preempts and preempt_for(state, k)):
            break
        following, admitted = state.requests[k].next, scheduler.num_admitted
        if state.storage.is_on and not settle_read(state, k):
            k = following
            continue
        verdict = try_prefill(state, k)
        if scheduler.adapters.is_on:
            join_adapter(scheduler.adapters, state.requests[k].lora)
        if state.kv.radix.has_states and scheduler.num_admitted == admitted:
            return_copy(state, k)
        if scheduler.num_admitted > admitted:
            remove_from_waiting(state, k)
        if verdict != CONTINUE:
            if verdict == NO_TOKEN:
                scheduler.is_full = scheduler.num_admitted > 0 or scheduler.num_running > 0
            break
        k = following


def is_tried(state: Replica, k: int) -> bool:
    """Return True if a request's adapter allows an attempt to admit the request."""
    return not outlasts_drain(state, k) and may_join(state, state.requests[k].lora)


def try_prefill(state: Replica, k: int) -> int:
    """Admit a waiting request if there is room; return the verdict on the rest of the pass."""
    scheduler, tree, size = state.engines.sglang, state.kv.radix, state.engines.sglang.page_size
    request, mine = state.requests[k], state.engines.sglang.progress[k]
    match_prefix(tree, request, request.num_tokens - 1)
    mine.prefix = tree.num_found
    mine.node = tree.node
    mine.num_shared = mine.prefix
    mine.branch = 0
    if tree.window > 0 and tree.num_walked > tree.num_found:
        mine.branch = tree.num_walked
    if tree.has_states:
        mine.branch = branch_of(tree)
        copy_state(state, k)
    mine.tried_known = request.num_tokens
    mine.tried_prefix = mine.prefix
    state.refused = False
    if scheduler.delayer.is_on and delays_prefill(state):
        return OTHER
    if 0 < scheduler.prefill_max_requests <= scheduler.num_admitted:
        return OTHER
    mine.edge = lock_path(tree, mine.node)
    needed = request.num_tokens - mine.prefix
    if not tree.enabled and mine.ignores_eos:
        verdict = fit_without_tree(state, k, needed)
    else:
        verdict = fit_prompt(state, k, needed, num_host_found(tree), size)
    if verdict != CONTINUE:
        unlock_path(tree, mine.node, mine.edge)
        if verdict == NO_TOKEN:
            state.refused = True
            state.head_lookup_failed = True
            state.totals.num_allocation_failures += 1
        return verdict
    scheduler.admitted[scheduler.num_admitted] = k
    scheduler.num_admitted += 1
    return verdict_of(state)


def fit_prompt(state: Replica, k: int, needed: int, on_host: int, size: int) -> int:
    """Determine the prompt tokens to compute in this pass, and charge them.

    Tokens that are on the host only are loaded; if that fails, the plan is made without them.
    """
    scheduler, tree, mine = state.engines.sglang, state.kv.radix, state.engines.sglang.progress[k]
    best, left = tree.best, needed - on_host
    num_tokens = plan_prompt(state, k, needed, left, size)
    if on_host > 0 and num_tokens > 0:
        if load_path(tree, best) > 0:
            mine.num_loaded = on_host
            record_fetch(state, on_host)
            unlock_path(tree, mine.node, mine.edge)
            mine.edge = lock_path(tree, best)
            mine.node = best
            mine.prefix += on_host
            mine.num_shared = mine.prefix
        else:
            left = needed
            num_tokens = plan_prompt(state, k, needed, left, size)
    if num_tokens <= 0:
        return OTHER if num_tokens == 0 else NO_TOKEN
    if tree.write_policy != NO_HOST and state.requests[k].num_preemptions == 0:
        state.totals.num_external_queries += needed
        state.totals.num_external_tokens += needed - left
    if num_tokens < left:
        scheduler.chunked = k
        take_prompt(state, k, num_tokens, 0)
    else:
        take_prompt(state, k, num_tokens, min(mine.max_new, MOST_NEW_TOKENS))
    return CONTINUE


def record_fetch(state: Replica, num_tokens: int) -> None:
    """Count a load from the host that has started, and its duration."""
    totals, tree = state.totals, state.kv.radix
    totals.num_loads += 1
    totals.loading_seconds += tree.in_free - tree.now
    totals.fetched_bytes += num_tokens * tree.token_bytes


def plan_prompt(state: Replica, k: int, needed: int, left: int, size: int) -> int:
    """Return the number of tokens of a prompt to compute now, of ``left`` that no tier has.

    It is 0 if the budget of the step is spent, and NO_ROOM if the prompt does not fit now.
    ``needed`` are the tokens that the GPU does not have.
    """
    scheduler, request, mine = (
        state.engines.sglang,
        state.requests[k],
        state.engines.sglang.progress[k],
    )
    to_come = min(max(mine.max_new - request.num_output_tokens, 0), MOST_NEW_TOKENS)
    if needed + to_come + size >= rem_total(state):
        return NO_ROOM
    most = window_limit(state, ceil_page(needed, size), to_come)
    if most <= 0:
        return NO_ROOM
    paged = ceil_page(left, size)
    if scheduler.chunk_size == 0:
        if scheduler.num_admitted > 0 and paged >= scheduler.rem_input:
            return 0
        return min(left, most)
    most = min(scheduler.rem_chunk, most)
    return left if paged <= most else max(floor_page(most, size), 0)


def window_limit(state: Replica, num_tokens: int, to_come: int) -> int:
    """Return the largest part of a prompt that window slots allow; 0 if there are too few now.

    A prompt that would not fit into an empty pool is cut at the slots that are left.
    """
    tree = state.kv.radix
    if tree.window == 0:
        return num_tokens
    needed, left = window_need(state, num_tokens, to_come), rem_window(state)
    if needed < left:
        return num_tokens
    if needed < tree.window_pages.num_pages * tree.pages.page_size:
        return 0
    return floor_page(left - window_need(state, 0, to_come), tree.pages.page_size)


def fit_without_tree(state: Replica, k: int, needed: int) -> int:
    """Like :func:`fit_prompt` without a tree and EOS: look ahead to the ends of all requests."""
    scheduler, mine, size = (
        state.engines.sglang,
        state.engines.sglang.progress[k],
        state.engines.sglang.page_size,
    )
    paged = ceil_page(needed, size) + size
    if paged > min(rem_current(state), rem_total(state)):
        return NO_TOKEN
    if state.kv.radix.window > 0:
        if window_need(state, needed, min(mine.max_new, MOST_NEW_TOKENS)) > rem_window(state):
            return NO_TOKEN
    elif not foresees_room(state, k, paged):
        return NO_TOKEN
    if scheduler.chunk_size > 0 and needed > scheduler.rem_chunk:
        return cut_prompt(state, k, scheduler.rem_chunk)
    take_prompt(state, k, needed, min(mine.max_new, MOST_NEW_TOKENS))
    return CONTINUE


def cut_prompt(state: Replica, k: int, num_tokens: int) -> int:
    """Compute only the first tokens of a prompt; the request continues in the next pass."""
    if num_tokens <= 0:
        return OTHER
    take_prompt(state, k, num_tokens, 0)
    state.engines.sglang.chunked = k
    return CONTINUE


def take_prompt(state: Replica, k: int, num_tokens: int, max_new: int) -> None:
    """Plan the next tokens of a prompt."""
    mine = state.engines.sglang.progress[k]
    mine.end = mine.prefix + num_tokens
    charge_prefill(state, num_tokens, max_new)
