"""The loop of a replica, which is that of vLLM's engine core.

It schedules a step. If nothing could be scheduled, or if as many steps are in flight as may be,
it then processes the output of the oldest. One step may be in flight, with asynchronous scheduling
two, and one more per further pipeline stage.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvsim.engines.baselines.rules.orca import schedule_orca
from kvsim.engines.baselines.rules.static import schedule_static
from kvsim.engines.baselines.rules.vllm_v0 import schedule_v0
from kvsim.engines.policies import ORCA, STATIC, TENSORRT_LLM, VLLM, VLLM_V0
from kvsim.engines.rules.own_loop import (
    abort_in_engine,
    add_to_engine,
    complete_engine,
    engine_died,
    engine_has_work,
    is_deaf,
    operate_engine,
    schedule_engine,
)
from kvsim.records.connector import NO_CONNECTOR, OFFLOADING, SESSIONS
from kvsim.records.engine import (
    COMPLETED,
    DIED,
    DONE,
    MATCH,
    NEEDS_EVENTS,
    NEEDS_REQUESTS,
    NEEDS_STATES,
    NEEDS_STEPS,
    PAUSED,
    SCHEDULED,
    STUCK,
)
from kvsim.records.record import NONE
from kvsim.records.request import FINISHED
from kvsim.rules.abort import IN_FLIGHT, REJECTED, abort, end_request, refuse_place
from kvsim.rules.arrival import describe, make_request
from kvsim.rules.batch import batch_at, recycle
from kvsim.rules.blocks.mamba import begin_states
from kvsim.rules.connector.copy_fence import release_or_fence_copies
from kvsim.rules.connector.report import drop_pinned, process_copies, resume
from kvsim.rules.connector.scheduler import has_reports, has_transfers, preempts_in_vain
from kvsim.rules.events import is_short_of_room, record_update
from kvsim.rules.idle_time import pass_idle_time, time_to_resume
from kvsim.rules.kv import look_up, take_transfers
from kvsim.rules.offloading.jobs import first_due
from kvsim.rules.offloading.scheduler import begin_copies, lacks_states
from kvsim.rules.output import process_output, record_surplus
from kvsim.rules.price import price
from kvsim.rules.published_metrics import publish_metrics, record_load
from kvsim.rules.python import python_add, python_complete, python_has_work, python_schedule
from kvsim.rules.queue import enqueue
from kvsim.rules.recorder import pass_time, record_step, write_row, write_step
from kvsim.rules.runs import quiet_until, run_of_steps
from kvsim.rules.vllm.grammar import await_grammar, first_ready
from kvsim.rules.vllm.overload import has_place, is_limited
from kvsim.rules.vllm.pausing import rests
from kvsim.rules.vllm.pipeline import pass_stages, start_of
from kvsim.rules.vllm.reset import reset_prefix_cache
from kvsim.rules.vllm.scheduler import schedule_vllm
from kvsim.rules.waiting_for_kv import next_in_line, num_queued, remove_from_queue

if TYPE_CHECKING:
    from kvsim.records.engine import Batch, Replica

#: Empty steps in a row after which a scheduler that still has work is considered stuck.
MAX_EMPTY_STEPS = 3


def queue_arrivals(state: Replica) -> bool:
    """Queue every request that has arrived by now; False if no free record is left.

    At most ``limits.backlog`` requests, those at the head of the queue, get records.
    """
    trace = state.trace
    if state.limits.has_own_loop and is_deaf(state) and engine_has_work(state):
        return True
    while trace.seen < trace.num_arrivals and trace.entry_time[trace.seen] <= state.clock:
        state.totals.waiting_seconds += state.clock - trace.arrival_time[trace.seen]
        trace.seen += 1
        if not state.limits.in_python and not state.limits.has_own_loop:
            recheck_queue(state)
    most = state.limits.backlog
    while trace.next < trace.seen and (most == 0 or state.waiting.length < most):
        if state.num_free_requests == 0:
            return False
        state.num_free_requests -= 1
        k = state.free_requests[state.num_free_requests]
        make_request(state, state.requests[k], k)
        if is_limited(state) and not has_place(state, k):
            refuse_place(state, k)
        elif state.limits.in_python:
            python_add(state, k)
        else:
            add_request(state, k)
        trace.next += 1
    return True


def add_request(state: Replica, k: int) -> None:
    """Add a new request to the queue of its scheduler."""
    if state.limits.has_own_loop:
        add_to_engine(state, k)
        return
    if state.limits.has_grammars:
        await_grammar(state, state.requests[k])
    enqueue(state, k)


def recheck_queue(state: Replica) -> None:
    """Reset the flags that let the next step skip the queue."""
    state.head_lookup_failed = False
    state.connector.is_idle = False


def begin_step(state: Replica, batch: Batch) -> None:
    batch.size = 0
    state.num_admitted = state.num_preempted = 0
    state.swapped_bytes = 0
    state.decode_only = True
    state.head_lookup_failed = False
    if state.kv.has_states:
        begin_states(state.kv)


def decide_by_rules(state: Replica, batch: Batch) -> None:
    """Schedule a step by the rules of the configured scheduler, and allocate its KV slots."""
    if state.limits.scheduler == VLLM or state.limits.scheduler == TENSORRT_LLM:  # noqa: PLR1714
        schedule_vllm(state, batch)
    elif state.limits.scheduler == ORCA:
        schedule_orca(state, batch)
    elif state.limits.scheduler == STATIC:
        schedule_static(state, batch)
    elif state.limits.scheduler == VLLM_V0:
        schedule_v0(state, batch)
    if state.kv.has_states:
        release_or_fence_copies(state, batch)


def decide(state: Replica, batch: Batch) -> None:
    if state.limits.in_python:
        python_schedule(state, batch)
        return
    begin_step(state, batch)
    if state.limits.has_grammars and not state.never_reject:
        state.ready_clock = state.clock
    decide_by_rules(state, batch)
    take_transfers(state, batch)


def schedule(state: Replica) -> bool:
    """Schedule a step and start it on the GPU; False if the scheduler is stuck."""
    if state.limits.has_own_loop:
        begin_step(state, batch_at(state, state.num_batches))
        return schedule_engine(state)
    batch, copies = batch_at(state, state.num_batches), has_timed_copies(state)
    if copies:
        state.offloading.now = state.clock
        if state.num_batches == 0:
            process_copies(state)
    decide(state, batch)
    last_end = batch_at(state, state.num_batches - 1).end if state.num_batches > 0 else state.clock
    if batch.size > 0:
        time = price(state, batch)
        start = start_of(state, batch)
        if copies:
            start = begin_copies(state, batch, start, time)
            time += state.offloading.slow_time
        batch.end = max(pass_stages(state, start, time), last_end)
        if state.record_steps:
            write_step(state, batch, start, time)
        record_step(state)
        state.num_empty_steps = 0
    else:
        if copies:
            begin_copies(state, batch, state.clock, 0.0)
        if state.record_steps:
            write_step(state, batch, state.clock, 0.0)
        record_step(state)
        num_real = 0
        for k in range(state.num_batches):
            num_real += batch_at(state, k).size
        if num_real == 0 and not takes_empty_steps(state):
            return handle_no_progress(state)
        batch.end = last_end
    state.num_batches += 1
    state.must_complete = state.num_batches >= state.limits.depth or batch.size == 0
    return True


def has_timed_copies(state: Replica) -> bool:
    """Return True if KV copies to and from the host take time, in parallel with the steps."""
    return state.connector.kind == OFFLOADING and state.offloading.timed


def takes_empty_steps(state: Replica) -> bool:
    """Return True if an empty step must run because its output may bring a connector's report."""
    if state.connector.kind == NO_CONNECTOR or state.connector.kind == SESSIONS:  # noqa: PLR1714
        return False
    return state.never_reject or has_reports(state)


def handle_no_progress(state: Replica) -> bool:
    """Handle an empty step when no real step is in flight; False if the scheduler is stuck.

    A request that preempted itself is admitted again in a later step. A head of the queue that even
    an idle replica cannot admit is rejected. Anything else is a bug of the scheduler.
    """
    state.num_empty_steps += 1
    if state.never_reject:
        return True
    ready = math.inf
    if state.limits.has_grammars:
        ready = first_ready(state)
    if has_timed_copies(state):
        ready = min(ready, first_due(state.offloading))
    if ready < math.inf:
        state.resume_time = ready
        state.must_complete = state.num_batches > 0  # an empty step is in flight
        return True
    # Timed copies have due times: if there is none, nothing is being transferred.
    transfers = state.connector.kind != NO_CONNECTOR and not has_timed_copies(state)
    if transfers and has_transfers(state):
        # A step that preempts admits no request; the next step may.
        state.connector.is_idle = state.num_preempted == 0 or preempts_in_vain(state)
        return True
    if state.num_preempted == 0 and state.num_running == 0 and num_queued(state) > 0:
        k = next_in_line(state)
        remove_from_queue(state, k)
        end_request(state, k, REJECTED)
        recycle(state, k)
        return True
    return state.num_empty_steps < MAX_EMPTY_STEPS + state.limits.num_stages - 1  # next_call


def complete(state: Replica) -> None:
    """Process the output of the oldest step in flight."""
    batch = batch_at(state, 0)
    if state.trace.has_eos:
        record_surplus(state, batch)
    pass_time(state, batch.end)
    state.must_complete = False
    state.first_batch = (state.first_batch + 1) % (state.limits.depth + 1)
    state.num_batches -= 1
    if state.limits.in_python:
        python_complete(state, batch)
    elif state.limits.has_own_loop:
        complete_engine(state, batch)
    else:
        process_output(state, batch)
    if state.kv.pool.has_events:
        record_update(state.kv.pool.log, state.clock)
    publish_metrics(state)


def has_work(state: Replica) -> bool:
    """Return True if any request is unfinished."""
    if state.limits.in_python:
        return python_has_work(state)
    if state.limits.has_own_loop:
        return engine_has_work(state)
    if rests(state):
        return False
    if state.connector.kind != NO_CONNECTOR and has_transfers(state):
        return not state.connector.is_idle or has_reports(state)
    if state.limits.has_sessions:
        return state.num_running > 0 or num_queued(state) > state.num_idle
    return state.num_running > 0 or state.waiting.length > 0 or state.num_swapped > 0


def abort_by_rules(state: Replica, row: int) -> bool:
    """Abort a request of a trace row; False if it is not on this replica."""
    if state.limits.has_own_loop:
        return abort_in_engine(state, row)
    return abort(state, row)


def next_event_time(state: Replica) -> float:
    """Return the time of the replica's next event without new arrivals; infinite without one."""
    if state.must_complete:
        return batch_at(state, 0).end
    if state.num_batches > 0 or (has_work(state) and state.clock < state.end_time):
        return time_to_resume(state) if state.resume_time > state.clock else state.clock
    if state.trace.next == state.trace.num_arrivals or state.clock >= state.end_time:
        return math.inf
    return max(state.trace.entry_time[state.trace.next], state.clock)


def advance(state: Replica, max_steps: int) -> int:
    """Run up to the horizon, for ``max_steps`` steps, or until the host must act.

    Returns an `Outcome`.
    """
    steps = 0
    while not is_awaited(state):
        if state.must_complete:
            if batch_at(state, 0).end > state.horizon:
                break
            complete(state)
            if state.watched:
                return COMPLETED
            continue
        if not queue_arrivals(state):
            return NEEDS_REQUESTS
        if not has_work(state):
            if not await_arrival(state):
                break
        elif state.clock >= state.horizon:
            break
        elif state.resume_time > state.clock:
            if not pass_idle_time(state):
                break
        elif state.clock < state.end_time:
            need = missing_room(state, max_steps - steps)
            if need != DONE:
                return need
            run, outcome = step_on(state, max_steps - steps)
            steps += run
            if outcome != DONE:
                return outcome
        elif state.num_batches > 0:
            state.must_complete = True
        else:
            break
    return DONE


def is_awaited(state: Replica) -> bool:
    """Return True if the host must be notified now: a request has ended, or a load has started."""
    return state.until_finish and state.num_ended + state.connector.num_begun > 0


def await_arrival(state: Replica) -> bool:
    """Advance an idle replica to the next arrival; False if the run ends before it."""
    if state.num_batches > 0:  # an empty step is in flight
        state.must_complete = True
        return True
    if state.trace.next == state.trace.num_arrivals:
        return False
    arrival = state.trace.entry_time[state.trace.next]
    if arrival > state.horizon:
        return False
    pass_time(state, min(arrival, state.end_time))
    return state.clock < state.end_time


def missing_room(state: Replica, num_steps: int) -> int:
    """Return why the host must act before the next step, or DONE if it need not.

    ``num_steps`` is the number of steps that may still run.
    """
    if num_steps <= 0:
        return PAUSED
    if state.num_step_rows >= state.max_step_rows and state.record_steps:
        return NEEDS_STEPS
    if state.kv.pool.has_events and is_short_of_room(state.kv.pool.log):
        return NEEDS_EVENTS
    if state.connector.kind == OFFLOADING and lacks_states(state):
        return NEEDS_STATES
    return DONE


def step_on(state: Replica, most: int) -> tuple[int, int]:
    """Schedule one step, or a run of up to ``most``; return (number of steps, `Outcome`)."""
    if state.decode_only and not state.watched:
        run = run_of_steps(state, most)
        if run > 0:
            return run, DONE
    if not schedule(state):
        return 1, DIED if engine_died(state) else STUCK
    return 1, SCHEDULED if state.watched else DONE


def close(state: Replica, to: float) -> None:
    """Advance to the end of the run, and record requests that have not ended as in flight."""
    pass_time(state, to)
    for k in range(state.num_requests):
        if state.requests[k].status != FINISHED:
            write_row(state, state.requests[k], IN_FLIGHT)
    while state.trace.next < state.trace.seen:
        make_request(state, state.probe, NONE)
        write_row(state, state.probe, IN_FLIGHT)
        state.trace.next += 1


def find_cached(state: Replica, row: int) -> None:
    """Set ``state.found_tokens`` to the cached tokens of a trace row; the cache does not change."""
    state.found_tokens = 0
    if state.trace.num_prompt_tokens[row] < state.limits.max_model_len:
        describe(state, state.probe, row)
        state.found_tokens = look_up(state.kv, state.probe)


#: Commands that a host may send to a replica.
ADVANCE, CLOSE, NEXT_EVENT, LOOK_UP, ABORT, RESUME, DROP_PINNED, LOAD_OF, RESET, QUIET = range(10)


def serve(state: Replica, command: int, argument: int) -> int:
    """Execute a command of the host; the only entry point of compiled code.

    ``argument`` is the maximum number of steps, a row of the trace, or a flag. Returns an
    `Outcome`, or the result of the command.
    """
    if command == ADVANCE:
        outcome = advance(state, argument)
        state.next_event_time = next_event_time(state)
        return outcome
    if command >= MATCH:
        return operate_engine(state, command, argument)
    if command == ABORT:
        return int(abort_by_rules(state, argument))
    if command == RESET:
        return reset_prefix_cache(state, argument > 0)
    if command == DROP_PINNED:
        return int(drop_pinned(state, argument))
    if command == CLOSE:
        close(state, state.horizon)
    elif command == RESUME:
        resume(state)
    elif command == LOAD_OF:
        record_load(state)
    elif command == QUIET:
        state.quiet_until = quiet_until(state)
    elif command == LOOK_UP:
        find_cached(state, argument)
    else:
        state.next_event_time = next_event_time(state)
    return DONE
