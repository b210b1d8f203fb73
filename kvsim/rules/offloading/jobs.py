"""Jobs: copies between GPU and host, started with a step and reported with a later step's output.

A store must end before a step that reuses its blocks: it is flushed, and reported with that step.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvsim.records.record import NONE
from kvsim.rules.links import append, remove
from kvsim.rules.offloading.host_cache import finish_writing, unpin_chunk

if TYPE_CHECKING:
    from kvsim.records.offloading import Job, Offloading
    from kvsim.records.queue import Queue


def new_job(offloading: Offloading, s: int, step: int) -> int:
    """Return a new job for the request of state ``s``, without blocks and chunks."""
    j = offloading.free_job
    if j == NONE:
        j = offloading.num_made_jobs
        offloading.num_made_jobs += 1
    else:
        offloading.free_job = offloading.jobs[j].next_of_state
    job, state = offloading.jobs[j], offloading.states[s]
    offloading.last_job += 1
    job.reset()
    job.number = offloading.last_job
    job.state = s
    job.row = state.row
    job.step = step
    state.num_jobs += 1
    return j


def add_block(offloading: Offloading, j: int, block: int, is_window: bool) -> None:
    """Add a GPU block to the blocks that a job reads or writes."""
    b = offloading.free_block
    if b == NONE:
        b = offloading.num_made_blocks
        offloading.num_made_blocks += 1
    else:
        offloading.free_block = offloading.blocks[b].next
    entry, job = offloading.blocks[b], offloading.jobs[j]
    entry.block = block
    entry.job = j
    entry.next = NONE
    entry.watched = 0
    entry.is_window = int(is_window)
    if job.last_block == NONE:
        job.first_block = b
    else:
        offloading.blocks[job.last_block].next = b
    job.last_block = b
    job.num_blocks += 1


def add_chunk_to(offloading: Offloading, j: int, k: int) -> None:
    """Add a chunk of the host cache to the chunks that a job reads or writes."""
    c = offloading.free_chunk
    if c == NONE:
        c = offloading.num_made_chunks
        offloading.num_made_chunks += 1
    else:
        offloading.free_chunk = offloading.chunks[c].next
    entry, job = offloading.chunks[c], offloading.jobs[j]
    entry.chunk = k
    entry.next = NONE
    if job.last_chunk == NONE:
        job.first_chunk = c
    else:
        offloading.chunks[job.last_chunk].next = c
    job.last_chunk = c


def launch_load(offloading: Offloading, j: int, due: float) -> None:
    """Start a load that has all its blocks and chunks; a timed one waits for the link."""
    job = offloading.jobs[j]
    job.is_load = True
    if offloading.timed:
        due = copy_end(offloading, j, max(offloading.now, offloading.load_free_time))
        offloading.load_free_time = due
        offloading.num_loaded_blocks += job.num_blocks
        if job.is_sync:
            offloading.wait_time = max(offloading.wait_time, due)
    job.due = due
    job.latest = due
    insert_by_due(offloading, offloading.loads, j)


def launch_store(offloading: Offloading, j: int, due: float) -> None:
    """Start a store that has all its blocks and chunks; watch its blocks of windows from now on.

    With timed copies, ``due`` is the earliest start in seconds.
    """
    job = offloading.jobs[j]
    if offloading.timed:
        if due > offloading.store_free_time:
            offloading.store_begin_time = due
        due = copy_end(offloading, j, max(due, offloading.store_free_time))
        offloading.store_free_time = due
        offloading.num_stored_blocks += job.num_blocks
    job.due = due
    job.latest = due
    insert_by_due(offloading, offloading.stores, j)
    state = offloading.states[job.state]
    job.next_of_state = state.first_job
    job.previous_of_state = NONE
    if state.first_job != NONE:
        offloading.jobs[state.first_job].previous_of_state = j
    state.first_job = j
    b = job.first_block
    while b != NONE:
        if offloading.blocks[b].is_window > 0:
            watch(offloading, b)
        b = offloading.blocks[b].next


def copy_end(offloading: Offloading, j: int, start: float) -> float:
    """Return the time in seconds at which a job that starts at ``start`` has copied its blocks."""
    blocks = offloading.jobs[j].num_blocks
    return start + offloading.copy_time + blocks * offloading.block_time


def first_due(offloading: Offloading) -> float:
    """Return the earliest due time of the jobs in flight, or infinity."""
    due = math.inf
    if offloading.loads.head != NONE:
        due = offloading.jobs[offloading.loads.head].due
    if offloading.stores.head != NONE:
        due = min(due, offloading.jobs[offloading.stores.head].due)
    return due


def insert_by_due(offloading: Offloading, queue: Queue, j: int) -> None:
    """Insert a job into a queue by due time, after jobs that are due at the same time."""
    jobs, due = offloading.jobs, offloading.jobs[j].due
    at = queue.tail
    while at != NONE and jobs[at].due > due:
        at = jobs[at].previous
    if at == queue.tail:
        append(queue, jobs, j)
        return
    after = queue.head if at == NONE else jobs[at].next
    jobs[j].previous = at
    jobs[j].next = after
    jobs[after].previous = j
    if at == NONE:
        queue.head = j
    else:
        jobs[at].next = j
    queue.length += 1


def hasten(offloading: Offloading, j: int, due: float) -> None:
    """Move a store in flight to an earlier due time."""
    jobs, queue = offloading.jobs, offloading.stores
    remove(queue, jobs, j)
    jobs[j].due = due
    at = queue.head
    while at != NONE and jobs[at].due <= due:
        at = jobs[at].next
    if at == NONE:
        append(queue, jobs, j)
        return
    before = jobs[at].previous
    jobs[j].next = at
    jobs[j].previous = before
    jobs[at].previous = j
    if before == NONE:
        queue.head = j
    else:
        jobs[before].next = j
    queue.length += 1


# -- blocks that other requests may reuse ---------------------------------------------------------


def watch(offloading: Offloading, b: int) -> None:
    """Watch a block, so that its job is flushed when the block is allocated again."""
    entry = offloading.blocks[b]
    first = offloading.watchers[entry.block] - 1
    entry.watched = 1
    entry.previous_watch = NONE
    entry.next_watch = first
    if first != NONE:
        offloading.blocks[first].previous_watch = b
    offloading.watchers[entry.block] = b + 1


def unwatch(offloading: Offloading, b: int) -> None:
    entry = offloading.blocks[b]
    entry.watched = 0
    if entry.next_watch != NONE:
        offloading.blocks[entry.next_watch].previous_watch = entry.previous_watch
    if entry.previous_watch == NONE:
        offloading.watchers[entry.block] = entry.next_watch + 1
    else:
        offloading.blocks[entry.previous_watch].next_watch = entry.next_watch


def flush(offloading: Offloading, j: int, step: int, due: float) -> None:
    """Flush a store: it ends before the step, and is reported with the step or earlier."""
    job = offloading.jobs[j]
    if job.flushed == step:
        return
    job.flushed = step
    if offloading.timed:
        offloading.wait_time = max(offloading.wait_time, job.due)
    else:
        hasten(offloading, j, min(due, job.latest))


def flush_block(offloading: Offloading, block: int, step: int, due: float) -> None:
    """Flush the stores that watch a block; a request was allocated this block in this step."""
    b = offloading.watchers[block] - 1
    while b != NONE:
        flush(offloading, offloading.blocks[b].job, step, due)
        b = offloading.blocks[b].next_watch


def flush_all_of(offloading: Offloading, s: int, step: int, due: float) -> None:
    j = offloading.states[s].first_job
    while j != NONE:
        flush(offloading, j, step, due)
        j = offloading.jobs[j].next_of_state


def watch_all_of(offloading: Offloading, s: int, step: int, due: float) -> None:
    """Watch the blocks of a finished request's stores; flush stores of reused blocks."""
    j = offloading.states[s].first_job
    while j != NONE:
        b = offloading.jobs[j].first_block
        while b != NONE:
            entry = offloading.blocks[b]
            if offloading.got[entry.block] == step:
                flush(offloading, j, step, due)
            if entry.watched == 0:
                watch(offloading, b)
            b = entry.next
        j = offloading.jobs[j].next_of_state


# -- the end of a job -----------------------------------------------------------------------------


def collect_due(offloading: Offloading, now: float) -> None:
    """Write the jobs that are due by ``now`` to ``offloading.reported``, oldest first."""
    offloading.num_reported = 0
    for direction in range(2):
        queue = offloading.loads if direction == 0 else offloading.stores
        while queue.head != NONE and offloading.jobs[queue.head].due <= now:
            j = queue.head
            remove(queue, offloading.jobs, j)
            at = offloading.num_reported
            while at > 0 and is_older(offloading, j, offloading.reported[at - 1]):
                offloading.reported[at] = offloading.reported[at - 1]
                at -= 1
            offloading.reported[at] = j
            offloading.num_reported += 1


def is_older(offloading: Offloading, a: int, b: int) -> bool:
    return offloading.jobs[a].number < offloading.jobs[b].number


def end_job(offloading: Offloading, j: int) -> None:
    """End a job: unpin or complete its chunks, stop watching its blocks, and free its records."""
    job = offloading.jobs[j]
    c = job.first_chunk
    while c != NONE:
        if job.is_load:
            unpin_chunk(offloading.host, offloading.chunks[c].chunk)
        else:
            finish_writing(offloading.host, offloading.chunks[c].chunk)
        after = offloading.chunks[c].next
        offloading.chunks[c].next = offloading.free_chunk
        offloading.free_chunk = c
        c = after
    b = job.first_block
    while b != NONE:
        if offloading.blocks[b].watched > 0:
            unwatch(offloading, b)
        after = offloading.blocks[b].next
        offloading.blocks[b].next = offloading.free_block
        offloading.free_block = b
        b = after
    if job.state != NONE:
        detach_job(offloading, job)
    job.next_of_state = offloading.free_job
    offloading.free_job = j


def detach_job(offloading: Offloading, job: Job) -> None:
    """Remove a job from its request's list."""
    state = offloading.states[job.state]
    state.num_jobs -= 1
    if job.is_load:
        return
    if job.next_of_state != NONE:
        offloading.jobs[job.next_of_state].previous_of_state = job.previous_of_state
    if job.previous_of_state == NONE:
        state.first_job = job.next_of_state
    else:
        offloading.jobs[job.previous_of_state].next_of_state = job.next_of_state


def detach_jobs(offloading: Offloading, s: int) -> None:
    """Detach a finished request from its jobs in flight, which continue."""
    j = offloading.states[s].first_job
    while j != NONE:
        offloading.jobs[j].state = NONE
        j = offloading.jobs[j].next_of_state
    offloading.states[s].first_job = NONE
    offloading.states[s].num_jobs = 0
