"""Offloading state of a request: the keys of its chunks, and their ranks when it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.host_cache import FREQUENT, HOST_LRU, NO_CHUNK
from kvsim.records.offloading import REUSED, STORED
from kvsim.records.record import NONE
from kvsim.rules.blocks.keys import extend_keys, mix
from kvsim.rules.offloading.arc import move_to
from kvsim.rules.offloading.host_cache import find_chunk
from kvsim.rules.offloading.jobs import detach_jobs
from kvsim.rules.offloading.lru import new_number, rank_chunk

if TYPE_CHECKING:
    from kvsim.records.kv import KV
    from kvsim.records.offloading import OffloadGroup, Offloading, OffloadState
    from kvsim.records.paged import RequestBlocks
    from kvsim.records.request import Request


def meet(offloading: Offloading, request: Request) -> int:
    """Return the index of a request's offloading state, which is created if there is none."""
    s = offloading.state_of[request.request_id] - 1
    if s != NONE:
        return s
    offloading.num_free_states -= 1
    s = offloading.free_states[offloading.num_free_states]
    offloading.state_of[request.request_id] = s + 1
    state = offloading.states[s]
    state.row = request.request_id
    state.number = 0
    state.num_jobs = 0
    state.first_job = NONE
    for g in range(offloading.num_groups):
        state.num_keys[g] = 0
        state.cursors[g] = 0
        state.num_known[g] = 0
    return s


def num_chunk_keys(kv: KV, group: OffloadGroup, num_tokens: int) -> int:
    """Return the number of chunks that ``num_tokens`` tokens complete."""
    return num_tokens // kv.hash_block_size // group.keys_per_chunk


def key_of(own_blocks: RequestBlocks, group: OffloadGroup, g: int, place: int) -> int:
    """Return the key of a chunk: that of its last block, combined with its group."""
    key = own_blocks.keys[(place + 1) * group.keys_per_chunk - 1]
    return key if g == 0 else mix(key, g)


def chunk_order(offloading: Offloading, group: OffloadGroup, g: int, place: int) -> int:
    """Return a chunk's order among chunks with one number: later positions are evicted first."""
    end, num_groups = (place + 1) * group.chunk_tokens, offloading.num_groups
    return offloading.host.orders - 1 - (end * num_groups + num_groups - 1 - g)


def compute_keys(
    kv: KV, offloading: Offloading, state: OffloadState, own_blocks: RequestBlocks, request: Request
) -> None:
    """Compute the keys of all whole chunks of a request's known tokens."""
    unit = kv.hash_block_size
    state.num_prompt_tokens = request.num_prompt_tokens
    state.shared_prefix_boundary = request.shared_prefix_boundary
    for g in range(offloading.num_groups):
        group = offloading.groups[g]
        count = num_chunk_keys(kv, group, request.num_tokens)
        if state.num_keys[g] < count:
            extend_keys(own_blocks, request, request.num_tokens // unit, unit, 0)
            for place in range(state.num_keys[g], count):
                state.keys[group.first_chunk + place] = key_of(own_blocks, group, g, place)
                state.marks[group.first_chunk + place] = 0
            state.num_keys[g] = count


def assign_number(offloading: Offloading, state: OffloadState) -> None:
    """Assign to a request the number that ranks its chunks, unless it has one."""
    if state.number == 0:
        state.number = new_number(offloading.host)


def reuse(offloading: Offloading, state: OffloadState, at: int, k: int) -> None:
    """Record that a request loads a chunk, or offers one that is present."""
    assign_number(offloading, state)
    if state.marks[at] & STORED == 0:
        state.marks[at] |= REUSED
    if offloading.host.policy == HOST_LRU:
        rank_chunk(offloading.host, k, state.number)


def release_chunks(offloading: Offloading, s: int) -> None:
    """Touch the chunks of a finished request, from the last to the first, and free its state."""
    state = offloading.states[s]
    last = NONE
    while state.number > 0:
        last = last_marked(offloading, state)
        if last == NONE:
            break
        touch_at_end(offloading, state.keys[last], state.marks[last])
        state.marks[last] = 0
    detach_jobs(offloading, s)
    offloading.free_states[offloading.num_free_states] = s
    offloading.num_free_states += 1


def last_marked(offloading: Offloading, state: OffloadState) -> int:
    """Return the marked chunk that ends last in a request's prompt, or NONE.

    On a tie, it is the chunk of the highest group. Unmarked chunks after it are dropped from
    ``num_keys``.
    """
    last, end = NONE, 0
    for g in range(offloading.num_groups):
        group = offloading.groups[g]
        while state.num_keys[g] > 0:
            at = group.first_chunk + state.num_keys[g] - 1
            if state.marks[at] > 0:
                if state.num_keys[g] * group.chunk_tokens >= end:
                    last, end = at, state.num_keys[g] * group.chunk_tokens
                break
            state.num_keys[g] -= 1
    return last


def touch_at_end(offloading: Offloading, key: int, marks: int) -> None:
    """Make a chunk the newest: under LRU by its rank, under ARC in its list.

    Under ARC, a chunk marked as reused moves to the list of chunks used again.
    """
    host = offloading.host
    k = find_chunk(host, key)
    if k == NO_CHUNK:
        return
    if host.policy == HOST_LRU:
        rank_chunk(host, k, new_number(host))
    else:
        move_to(host, k, FREQUENT if marks & REUSED > 0 else host.chunks[k].place)
