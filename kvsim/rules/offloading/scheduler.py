"""Native CPU offloading: the KV connector that keeps computed chunks in host memory.

It stores computed KV chunk by chunk. It loads the chunks that a waiting request finds in host
memory after its hit on the GPU. docs/vllm-rules.md, section 13, describes the rules in words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.paged import NULL_BLOCK
from kvsim.records.record import NONE
from kvsim.rules.blocks.attention import cdiv
from kvsim.rules.blocks.slots import end_within
from kvsim.rules.offloading.host_cache import find_chunk, pin_chunk
from kvsim.rules.offloading.jobs import (
    add_block,
    add_chunk_to,
    collect_due,
    end_job,
    flush_all_of,
    flush_block,
    launch_load,
    new_job,
    watch_all_of,
)
from kvsim.rules.offloading.lookup import find_offloaded
from kvsim.rules.offloading.request import compute_keys, meet, release_chunks, reuse
from kvsim.rules.offloading.store import store_up_to
from kvsim.rules.waiting_for_kv import num_queued

if TYPE_CHECKING:
    from kvsim.records.engine import Batch, Replica
    from kvsim.records.kv import KV
    from kvsim.records.offloading import Offloading, OffloadState
    from kvsim.records.paged import RequestBlocks
    from kvsim.records.request import Request


def lacks_states(state: Replica) -> bool:
    """Return True if a step may admit more requests than there are free offloading states.

    The bound: each admitted request either runs, or loads at least one chunk into a free block.
    """
    offloading = state.offloading
    loads = min(state.kv.pool.num_free, offloading.host.num_chunks)
    return offloading.num_free_states < min(num_queued(state), state.limits.max_active + loads)


# -- admission ------------------------------------------------------------------------------------


def query_chunks(state: Replica, request: Request, own_blocks: RequestBlocks, local: int) -> int:
    """Return the number of tokens that the host cache has after a hit on the GPU, or UNKNOWN.

    Sets ``connector.is_async``: the tokens arrive after the step.
    """
    offloading = state.offloading
    external = find_offloaded(state.kv, offloading, request, own_blocks, local)
    if external > 0:
        is_small = loads_with_step(offloading, request, local, external)
        state.connector.is_async = not is_small
    return external


def loads_with_step(offloading: Offloading, request: Request, local: int, external: int) -> bool:
    """Return True, and count its tokens, if a load is so small that its step waits for it."""
    num_tokens = offloading.num_sync_tokens + external
    if local + external >= request.num_tokens or num_tokens > offloading.sync_load_budget:
        return False
    offloading.num_sync_tokens = num_tokens
    return True


def begin_load(state: Replica, request: Request) -> None:
    """Start the load of the chunks after a request's GPU hit into its new blocks."""
    offloading, kv, local = state.offloading, state.kv, state.connector.hit
    end, is_sync = local + state.connector.external, not state.connector.is_async
    s, step = meet(offloading, request), state.num_calls
    side, own_blocks = offloading.states[s], kv.request_blocks[request.own_blocks]
    compute_keys(kv, offloading, side, own_blocks, request)
    j = new_job(offloading, s, step)
    offloading.jobs[j].is_sync = is_sync
    for g in range(offloading.num_groups):
        load_group(state, side, own_blocks, g, j, local, end)
        for place in range(own_blocks.tables[g].length):
            record_got(offloading, own_blocks.tables[g].blocks[place], step)
        side.num_known[g] = 0
        side.cursors[g] = cdiv(end, offloading.groups[g].chunk_tokens)
    due = float(step if is_sync else step + offloading.load_steps)
    launch_load(offloading, j, due)


def load_group(
    state: Replica,
    side: OffloadState,
    own_blocks: RequestBlocks,
    g: int,
    j: int,
    local: int,
    end: int,
) -> None:
    """Add the blocks and chunks that a load copies for one group."""
    offloading, group, table = state.offloading, state.offloading.groups[g], own_blocks.tables[g]
    block_size, size = state.kv.groups[g].block_size, offloading.blocks_per_chunk
    first, stop = cdiv(local, block_size), cdiv(end, block_size)
    while first < stop and not is_target(state.kv, table.blocks[first], offloading.jobs[j].is_sync):
        first += 1
    for place in range(first, stop):
        add_block(offloading, j, table.blocks[place], group.window > 0)
    if first == stop:
        return
    for place in range(first // size, cdiv(stop, size)):
        at = group.first_chunk + place
        k = find_chunk(offloading.host, side.keys[at])
        pin_chunk(offloading.host, k)
        reuse(offloading, side, at, k)
        add_chunk_to(offloading, j, k)


def is_target(kv: KV, block: int, is_sync: bool) -> bool:
    """Return True if a load writes to a block.

    An asynchronous load writes only to blocks that have no key yet. The blocks of a synchronous
    load have their keys already.
    """
    return block != NULL_BLOCK and (is_sync or not kv.pool.blocks[block].hashed)


# -- the end of a step's decision -----------------------------------------------------------------


def flush_preempted(state: Replica, row: int, step: int) -> None:
    """Flush the stores of a preempted request before step ``step``."""
    s = state.offloading.state_of[row] - 1
    if s != NONE:
        flush_all_of(state.offloading, s, step, float(step))


def schedule_stores(state: Replica, batch: Batch) -> None:
    """Start a step's stores, and flush the stores that must end before the step."""
    offloading, step = state.offloading, state.num_calls
    offloading.num_sync_tokens = 0
    offloading.num_reported = 0
    for at in range(state.num_preempted):
        flush_preempted(state, state.requests[state.preempted[at]].request_id, step)
    for at in range(state.num_admitted):
        k = state.admissions[at].request
        s = meet(offloading, state.requests[k])
        offloading.next_bookkeeping_at[k] = 0
        for g in range(offloading.num_groups):
            offloading.states[s].num_known[g] = 0
    for at in range(batch.size):
        k = batch.entries[at].request
        if batch.entries[at].end > offloading.next_bookkeeping_at[k]:
            record_blocks(state, state.requests[k])
    for at in range(batch.size):
        k = batch.entries[at].request
        if batch.entries[at].end > offloading.next_bookkeeping_at[k]:
            store_computed(state, state.requests[k], batch.entries[at].end)
            set_quiet_until(state, state.requests[k])
    for at in range(offloading.num_finished):
        store_finished(state, offloading.finished[at])
    offloading.num_finished = 0
    offloading.has_unpublished = False


def record_blocks(state: Replica, request: Request) -> None:
    """Record the blocks that a request got in this step; flush stores that still read them."""
    offloading, step = state.offloading, state.num_calls
    side = offloading.states[offloading.state_of[request.request_id] - 1]
    own_blocks = state.kv.request_blocks[request.own_blocks]
    for g in range(offloading.num_groups):
        group, table = offloading.groups[g], own_blocks.tables[g]
        for place in range(side.num_known[g], table.length):
            side.blocks[group.first_block + place] = table.blocks[place]
            side.since[group.first_block + place] = step
            record_got(offloading, table.blocks[place], step)
        side.num_known[g] = table.length


def record_got(offloading: Offloading, block: int, step: int) -> None:
    """Record that a request got a block in this step, and flush the stores that watch it."""
    if block != NULL_BLOCK:
        offloading.got[block] = step
        flush_block(offloading, block, step, float(step))


def store_computed(state: Replica, request: Request, end: int) -> None:
    """Store the chunks that a request's tokens of a step complete."""
    offloading, kv, step = state.offloading, state.kv, state.num_calls
    s = offloading.state_of[request.request_id] - 1
    side = offloading.states[s]
    if offloading.prompt_only:
        end = min(end, request.num_prompt_tokens)
    if not is_behind(offloading, side, end):
        return
    compute_keys(kv, offloading, side, kv.request_blocks[request.own_blocks], request)
    due = offloading.ready_time if offloading.timed else float(step + offloading.store_steps)
    store_up_to(offloading, s, end, step, due, False)


def set_quiet_until(state: Replica, request: Request) -> None:
    """Set the token count up to which a request is allocated no block and completes no chunk."""
    offloading, kv = state.offloading, state.kv
    side = offloading.states[offloading.state_of[request.request_id] - 1]
    quiet = kv.max_model_len
    for g in range(offloading.num_groups):
        blocks = side.num_known[g] - kv.groups[g].num_spec_blocks
        quiet = min(quiet, end_within(kv, blocks * kv.groups[g].block_size))
        end = (side.cursors[g] + 1) * offloading.groups[g].chunk_tokens
        if end <= request.num_prompt_tokens or not offloading.prompt_only:
            quiet = min(quiet, end - 1)
    offloading.next_bookkeeping_at[request.place] = quiet


def is_behind(offloading: Offloading, side: OffloadState, end: int) -> bool:
    """Return True if any group has a complete chunk that was not offered yet."""
    for g in range(offloading.num_groups):
        if end // offloading.groups[g].chunk_tokens > side.cursors[g]:
            return True
    return False


def store_finished(state: Replica, s: int) -> None:
    """Store the remaining chunks of a finished request, and free its state."""
    offloading, step = state.offloading, state.num_calls
    end = offloading.states[s].num_stored_tokens
    due = offloading.now if offloading.timed else float(step + offloading.store_steps)
    store_up_to(offloading, s, end, step, due, True)
    watch_all_of(offloading, s, step, float(step))
    release_chunks(offloading, s)


# -- the output of a step -------------------------------------------------------------------------


def record_end(state: Replica, request: Request, is_aborted: bool) -> None:
    """Record the number of tokens of an ending request that are to be stored."""
    offloading, kv = state.offloading, state.kv
    offloading.has_unpublished = True
    s = offloading.state_of[request.request_id] - 1
    if s == NONE:
        return
    side, h = offloading.states[s], request.own_blocks
    if h == NONE:
        h = kv.free_request_blocks[kv.num_free_request_blocks - 1]
    compute_keys(kv, offloading, side, kv.request_blocks[h], request)
    most = request.num_prompt_tokens if offloading.prompt_only else request.num_tokens
    computed = max(request.num_prompt_tokens, request.num_tokens - 1)
    side.num_stored_tokens = min(request.num_computed_tokens if is_aborted else computed, most)
    offloading.state_of[request.request_id] = 0
    offloading.finished[offloading.num_finished] = s
    offloading.num_finished += 1


def begin_copies(state: Replica, batch: Batch, start: float, time: float) -> float:
    """Start the timed stores of a step; return the time at which the step can start.

    Sets ``offloading.slow_time``, the seconds that earlier stores add to the step.
    """
    offloading, totals, size = state.offloading, state.totals, state.kv.bytes_per_block
    begin, free = offloading.store_begin_time, offloading.store_free_time
    share = state.cost.copy_share
    offloading.ready_time = start + time + slowed_by(share, begin, free, start, time)
    schedule_stores(state, batch)
    totals.fetched_bytes += offloading.num_loaded_blocks * size
    totals.stored_bytes += offloading.num_stored_blocks * size
    offloading.num_loaded_blocks = 0
    offloading.num_stored_blocks = 0
    start = max(start, offloading.wait_time)
    offloading.wait_time = 0.0
    offloading.slow_time = slowed_by(share, begin, free, start, time)
    return start


def slowed_by(share: float, begin: float, free: float, start: float, time: float) -> float:
    """Return the seconds that copies from ``begin`` to ``free`` add to a concurrent step.

    While both run, a copy takes a share of the GPU's memory bandwidth, and each second of the
    step takes 1 + share.
    """
    beside = max(time - max(begin - start, 0.0), 0.0)
    left = max(free - max(begin, start), 0.0)
    return min(beside * share, left * share / (1.0 + share))


def report_copies(state: Replica, now: float) -> None:
    """End the copies that are due by ``now``, which is a step number or a time in seconds."""
    offloading, connector = state.offloading, state.connector
    collect_due(offloading, now)
    for at in range(offloading.num_reported):
        job = offloading.jobs[offloading.reported[at]]
        if job.is_load and not job.is_sync:
            connector.received[connector.num_received] = job.row
            connector.num_received += 1
        end_job(offloading, offloading.reported[at])


def has_copies(offloading: Offloading) -> bool:
    """Return True if copies are in flight, or will start because a request has ended."""
    return offloading.has_unpublished or offloading.loads.length + offloading.stores.length > 0
