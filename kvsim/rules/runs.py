"""Runs of steps: until the next event, a batch of decodes changes only by arithmetic.

A run computes many steps together without scheduling each. Times come from the same additions, and
blocks are allocated in the same order (by step, then by position in the running list), so results
are exact. A run ends before the first step that would end beyond the replica's horizon.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvsim.engines.policies import ORCA, SCHEDULED_IN_PYTHON, STATIC, VLLM_V0
from kvsim.records.connector import NO_CONNECTOR
from kvsim.records.cost import CONSTANT, PRICED_IN_PYTHON, ROOFLINE
from kvsim.records.kv import CONTIGUOUS, OWN, PAGED, VIRTUAL
from kvsim.records.paged import FULL
from kvsim.records.record import NONE
from kvsim.rules.batch import batch_at
from kvsim.rules.blocks.paged import cache_blocks, past_the_end
from kvsim.rules.blocks.pool import append_blocks
from kvsim.rules.blocks.slots import end_within, slots_up_to
from kvsim.rules.events import is_short_of_room, record_update
from kvsim.rules.group_runs import (
    begin_groups,
    count_keys,
    finish_run,
    groups_can_run,
    has_groups,
    tend_groups,
)
from kvsim.rules.managers.own import tend_own
from kvsim.rules.managers.tiered import count_transfers
from kvsim.rules.price import computing_time, with_transfers
from kvsim.rules.published_metrics import publish_metrics
from kvsim.rules.recorder import pass_time, record_gap, record_step
from kvsim.rules.vllm.fairness import can_stay_refused, charge_run, steps_until_overtaken
from kvsim.rules.vllm.features import sees_decodes
from kvsim.rules.vllm.lora import record_loras
from kvsim.rules.work import weigh

if TYPE_CHECKING:
    from kvsim.records.cost import Cost
    from kvsim.records.engine import Replica
    from kvsim.records.request import Request

ENDLESS_RUN = 2**62
#: A run is started only if this number of steps fits before the horizon: starting it takes time.
LEAST_STEPS = 3
#: Later steps of a batch of decodes last at least this share of an earlier one, despite rounding.
SHORTEST = 1 - 1e-9


def is_trying(state: Replica) -> bool:
    """Return True if every step tries to admit the head of the queue."""
    limits, running = state.limits, state.num_running
    if state.waiting.length == 0 or limits.scheduler == STATIC:
        return False
    if limits.scheduler == VLLM_V0:
        return running < limits.max_num_seqs
    if limits.scheduler == ORCA:
        return running < limits.max_num_seqs and not state.is_full
    return running < limits.max_active and running < limits.max_num_scheduled_tokens


def can_run(state: Replica) -> bool:
    """Return True if the configuration, the queue and the steps in flight allow a run."""
    ahead, running = int(state.limits.asynchronous), state.num_running
    if state.limits.depth > 1 + ahead or state.num_batches != ahead or running == 0:
        return False
    if not (limits_allow_runs(state) and cache_allows_runs(state) and price_allows_runs(state)):
        return False
    if is_trying(state) and not stays_refused(state):
        return False
    if state.horizon < math.inf and not has_time(state):
        return False
    return ahead == 0 or batch_at(state, 0).size == running


def limits_allow_runs(state: Replica) -> bool:
    """Return True if no feature of the scheduler can change a batch of decodes."""
    limits = state.limits
    if limits.in_python or limits.scheduler == SCHEDULED_IN_PYTHON or state.record_steps:
        return False  # a user's class sees every step
    if state.connector.kind != NO_CONNECTOR or limits.has_encoder or limits.num_drafts > 0:
        return False
    if state.num_deferred > 0 or (limits.has_features and sees_decodes(state.features, state)):
        return False
    decodes_all = limits.scheduler in (ORCA, STATIC)
    return decodes_all or state.num_running <= limits.max_num_scheduled_tokens


def cache_allows_runs(state: Replica) -> bool:
    """Return True if the blocks that decodes allocate can be computed without scheduling."""
    kv = state.kv
    if kv.manager not in (PAGED, CONTIGUOUS, VIRTUAL, OWN):
        return False
    if state.limits.scheduler == VLLM_V0 and (state.num_swapped > 0 or kv.manager != PAGED):
        return False
    return not has_groups(kv) or (not kv.pool.has_events and groups_can_run(state))


def price_allows_runs(state: Replica) -> bool:
    """Return True if the time of a step of decodes can be computed without scheduling."""
    cost = state.cost
    if cost.has_samples:
        return False
    if cost.price == CONSTANT:
        return True
    if cost.price == PRICED_IN_PYTHON:
        return False
    return state.kv.manager == PAGED or not sees_windows(cost)


def stays_refused(state: Replica) -> bool:
    """Return True if the head of the queue stays refused until a request ends."""
    if state.kv.enable_prefix_caching or not state.head_lookup_failed or state.limits.reranks:
        return False
    return state.limits.fairness == 0 or can_stay_refused(state)


def has_time(state: Replica) -> bool:
    """Return True if LEAST_STEPS steps as long as the step in flight fit before the horizon."""
    if not state.limits.asynchronous:
        return False  # without a step in flight, the length of a step is not known yet
    end = batch_at(state, 0).end
    return end + LEAST_STEPS * (end - state.clock) <= state.horizon


def sees_windows(cost: Cost) -> bool:
    """Return True if some layers do not have full attention."""
    return cost.num_layers > 1 or cost.layers[0].kind != FULL


def longest_run(state: Replica) -> int:
    """Return the number of steps in which the batch changes only by arithmetic, or 0.

    In these steps every running request decodes, none ends and none is admitted. With asynchronous
    scheduling the step in flight must have the same requests.
    """
    if not can_run(state):
        return 0
    ahead, batch = int(state.limits.asynchronous), batch_at(state, 0)
    longest = ENDLESS_RUN
    for place in range(state.num_running):
        request = state.requests[state.running[place]]
        if not decodes_regularly(state, request):
            return 0
        if ahead > 0:
            entry = batch.entries[place]
            if entry.request != state.running[place] or entry.num_tokens != 1:
                return 0
            if entry.unfinished > 0:
                return 0
        longest = min(longest, request.end - request.num_tokens - 1)
        if state.kv.manager == VIRTUAL:  # until a request needs a page
            longest = min(longest, request.next_bookkeeping_at - request.num_computed_tokens)
        if longest < 2:
            return 0
    if state.limits.fairness > 0 and is_trying(state):
        longest = min(longest, steps_until_overtaken(state))
    return longest


def decodes_regularly(state: Replica, request: Request) -> bool:
    """Return True if a request is a plain decode whose last token came from the last step."""
    ahead = int(state.limits.asynchronous)
    return (
        request.num_tokens + request.num_placeholders - request.num_computed_tokens == 1
        and request.num_placeholders == ahead
        and request.num_in_flight_tokens == ahead
        and request.num_computed_tokens >= request.max_computed_tokens
        and request.num_stale_tokens <= 0
        and request.last_token_time == state.last_token_time
    )


def join_phase(state: Replica, steps: int, k: int) -> None:
    """Append entry k to the phase of the step in which its request allocates or fills a block."""
    phase = state.phases[steps % state.kv.groups[0].block_size]
    state.phase_next[k] = NONE
    if phase.first == NONE:
        phase.first = k
    else:
        state.phase_next[phase.last] = k
    phase.last = k
    phase.count += 1


def quiet_until(state: Replica) -> float:
    """Return a time before which no request ends or gets its first token; -inf if not known.

    New arrivals void it. Two steps of the same decodes must be in flight: later steps of them last
    at least as long as the second, since contexts only grow.
    """
    running, trace = state.num_running, state.trace
    if state.waiting.length > 0 or trace.next < trace.num_arrivals or not grows_steadily(state):
        return -math.inf
    first, second = batch_at(state, 0), batch_at(state, 1)
    if first.size != running or second.size != running:
        return -math.inf
    left = ENDLESS_RUN
    for place in range(running):
        request = state.requests[state.running[place]]
        one, other = first.entries[place], second.entries[place]
        if math.isnan(request.first_token_time) or one.request != state.running[place]:
            return -math.inf
        if one.num_tokens != 1 or other.num_tokens != 1:
            return -math.inf
        left = min(left, request.end - request.num_tokens)
    size = state.kv.groups[0].block_size
    if left < 3 or running * (left // size + 2) > state.kv.pool.num_free:
        return -math.inf
    return second.end + (left - 2) * (second.end - first.end) * SHORTEST


def grows_steadily(state: Replica) -> bool:
    """Return True if only the contexts of a batch of decodes change the time of its steps."""
    if not (state.decode_only and state.limits.asynchronous and state.num_running > 0):
        return False
    if state.num_batches != 2 or state.kv.manager != PAGED or has_groups(state.kv):
        return False
    if state.kv.pool.has_host or state.cost.host.num_layers > 0 or state.limits.has_loras:
        return False
    if state.resume_time > state.clock or state.cost.price not in (CONSTANT, ROOFLINE):
        return False
    return limits_allow_runs(state) and cache_allows_runs(state) and price_allows_runs(state)


def sort_by_phase(state: Replica) -> int:
    """Set up the phases of a run; return the sum of the running requests' computed tokens.

    A phase lists, by step modulo block size, the running requests k that allocate a block (entry
    2k) or fill one (entry 2k + 1).
    """
    num_computed = 0
    for place in range(state.num_running):
        num_computed += state.requests[state.running[place]].num_computed_tokens
    if has_groups(state.kv):
        begin_groups(state)
        return num_computed
    state.kv.own.num_quiet_steps = 0
    if state.kv.manager != PAGED:
        return num_computed
    size, ahead = state.kv.groups[0].block_size, int(state.limits.asynchronous)
    for k in range(size):
        state.phases[k].first = NONE
        state.phases[k].count = 0
    for place in range(state.num_running):
        request = state.requests[state.running[place]]
        own_blocks, computed = (
            state.kv.request_blocks[request.own_blocks],
            request.num_computed_tokens,
        )
        taking = end_within(state.kv, own_blocks.tables[0].length * size) - computed
        filling = own_blocks.num_cached_tokens - computed - 1 + ahead
        join_phase(state, taking, 2 * place)
        if state.kv.enable_prefix_caching and (taking - filling) % size != 0:
            join_phase(state, filling, 2 * place + 1)
    return num_computed


def tend_blocks(state: Replica, step: int, tries: bool) -> bool:
    """Allocate blocks and set keys for one step of a run.

    If too few blocks are free, return False and change nothing.
    """
    if has_groups(state.kv):
        return tend_groups(state, step, tries)
    if state.kv.manager == OWN:
        return tend_own(state, step)
    if state.kv.manager != PAGED:
        return True
    kv, group = state.kv, state.kv.groups[0]
    phase = state.phases[step % group.block_size]
    # V0 requires a free block for a decode even if it allocates none.
    if phase.count + int(state.limits.scheduler == VLLM_V0) > kv.pool.num_free:
        return False
    k = phase.first
    while k != NONE:
        request = state.requests[state.running[k // 2]]
        own_blocks = kv.request_blocks[request.own_blocks]
        table = own_blocks.tables[0]
        end = request.num_computed_tokens + step + 1
        if slots_up_to(kv, end) > table.length * group.block_size:
            group.num_internal -= past_the_end(request, group, table)
            append_blocks(kv.pool, group, table, 1)
            group.num_internal += past_the_end(request, group, table)
        if kv.enable_prefix_caching:
            cache_blocks(kv, request, own_blocks, end - int(state.limits.asynchronous))
        k = state.phase_next[k]
    return True


def step_time(state: Replica, step: int) -> float:
    if state.cost.price == CONSTANT:
        return state.cost.seconds
    for k in range(state.cost.num_layers):
        layers = state.cost.layers[k]
        layers.decode_keys = count_keys(state, layers, step)
    state.cost.work.num_context_tokens += state.num_running
    weigh(state.cost)
    return with_transfers(state.cost, computing_time(state.cost), state.kv.moved)


def begin_run(state: Replica, num_keys: int) -> None:
    """Set the counts of work that are equal in all steps of a run."""
    work, running = state.cost.work, state.num_running
    work.num_requests = running
    work.num_tokens = running
    work.num_sampled = running
    work.num_decodes = running
    work.num_context_tokens = num_keys
    work.swapped_bytes = 0
    if state.limits.has_loras:
        record_loras(state)
        work.num_adapters = state.num_loras
    if state.cost.price != CONSTANT:
        for k in range(state.cost.num_layers):
            layers = state.cost.layers[k]
            layers.decode_keys = num_keys
            layers.prefill_keys = 0
            layers.prefill_pairs = 0


def end_run(state: Replica, steps: int, last_token_time: float) -> None:
    """Advance the running requests to the end of a run of ``steps`` steps."""
    state.num_generated_tokens += steps * state.num_running
    if state.limits.fairness > 0:
        charge_run(state, steps)
    for place in range(state.num_running):
        request = state.requests[state.running[place]]
        if has_groups(state.kv):
            finish_run(state, place, steps)
        else:
            request.num_computed_tokens += steps
            request.num_tokens += steps
        request.num_filled += steps
        request.last_token_time = last_token_time


def must_end_run(state: Replica, under_way: float) -> bool:
    """Return True if a run must end before its next step; ``under_way``: end of its last step."""
    if state.clock >= state.end_time:
        return True
    if state.horizon < math.inf and (under_way > state.horizon or state.clock >= state.horizon):
        return True
    return state.kv.pool.has_events and is_short_of_room(state.kv.pool.log)


def run_of_steps(state: Replica, most_steps: int) -> int:
    """Run up to ``most_steps`` steps of a batch of decodes; return their number, perhaps 0."""
    longest = min(longest_run(state), most_steps)
    if longest < 2:
        return 0
    running, tries = state.num_running, int(is_trying(state))
    trace, ahead, batch = state.trace, state.limits.asynchronous, batch_at(state, 0)
    arrival = math.inf
    if trace.seen < trace.num_arrivals:
        arrival = trace.entry_time[trace.seen]
    begin_run(state, sort_by_phase(state))
    under_way = batch.end  # end of the step in flight, if asynchronous
    step, flushed = 0, 0
    while step < longest and state.clock < arrival and not must_end_run(state, under_way):
        if not tend_blocks(state, step, tries > 0):
            break
        if state.kv.pool.has_host:
            count_transfers(state.kv)
        state.kv.num_filled += running
        state.totals.num_allocation_failures += tries
        start = max(state.clock, state.stage_free_time)
        time = step_time(state, step)
        state.stage_free_time = start + time  # there is one stage
        end = max(start + time, under_way if ahead else state.clock)
        step += 1
        if state.num_bins > 0 and state.totals.num_steps % state.stride == 0:
            fill(state, step - flushed)
            flushed = step
        record_step(state)
        if ahead:
            finished = under_way
            under_way = end
            end = finished
        pass_time(state, end)
        record_gap(state, end - state.last_token_time, running)
        state.last_token_time = end
        if state.kv.pool.has_events:
            record_update(state.kv.pool.log, end)
    if step == 0:
        return 0
    state.num_empty_steps = 0
    end_run(state, step, state.last_token_time)
    fill(state, -flushed)
    publish_metrics(state)
    batch.end = under_way
    return step


def fill(state: Replica, num_tokens: int) -> None:
    """Add ``num_tokens`` to the running requests' ``num_filled``, which the memory map reads."""
    if num_tokens != 0:
        for place in range(state.num_running):
            state.requests[state.running[place]].num_filled += num_tokens
