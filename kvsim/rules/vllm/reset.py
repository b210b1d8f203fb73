"""vLLM's reset_prefix_cache: remove all keys of the pool, if no block is in use.

docs/vllm-rules.md, section 13, describes the rules in words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.connector import NO_CONNECTOR, OFFLOADING
from kvsim.records.record import NONE
from kvsim.rules.abort import reset_shortcuts
from kvsim.rules.batch import preempt
from kvsim.rules.blocks.pool import unlink
from kvsim.rules.connector.pinned import free_or_fence
from kvsim.rules.connector.prefills import end_prefill
from kvsim.rules.events import record_cleared
from kvsim.rules.eviction.policies import evict
from kvsim.rules.kv import free_slots
from kvsim.rules.offloading.scheduler import flush_preempted
from kvsim.rules.vllm.dropping import drop_in_flight_output
from kvsim.rules.vllm.encoder import release_all

if TYPE_CHECKING:
    from kvsim.records.engine import Replica
    from kvsim.records.kv import KV
    from kvsim.records.paged import BlockPool

#: Results of a reset. LEFT: blocks are in use (by loads, pins or fences) although the running
#: requests were preempted; vLLM raises an error then.
REFUSED, DONE_ALL, LEFT = 0, 1, -1


def reset_prefix_cache(state: Replica, with_running: bool) -> int:
    """Remove all cached content; ``with_running``: preempt the running requests first.

    If a block is in use, nothing is removed; the preemptions are not undone.
    """
    if with_running:
        preempt_all(state)
    reset_shortcuts(state)
    if state.kv.pool.num_free < state.kv.pool.num_usable:
        return LEFT if with_running else REFUSED
    remove_all_keys(state.kv)
    return DONE_ALL


def preempt_all(state: Replica) -> None:
    """Preempt the running requests, last to first; their output in flight will be dropped."""
    while state.num_running > 0:
        state.num_running -= 1
        k = state.running[state.num_running]
        request = state.requests[k]
        if state.limits.has_encoder:
            release_all(state, request)
        if state.connector.kind == OFFLOADING:
            flush_preempted(state, request.request_id, state.num_calls + 1)
        if state.connector.kind != NO_CONNECTOR:
            end_prefill(state, k)
            free_or_fence(state, request)
        else:
            free_slots(state.kv, request)
        state.num_preempted = 0  # not counted among the preemptions of a step
        preempt(state, k)
        drop_in_flight_output(state, request)
    state.num_preempted = 0


def remove_all_keys(kv: KV) -> None:
    """Remove all keys of the pool; the order of the free queue stays."""
    pool = kv.pool
    num_named, num_before = pool.num_cached, pool.num_unhashed
    for place in range(num_before - 1, -1, -1):
        pool.unhashed[place + num_named] = pool.unhashed[place]
    for place in range(num_named - 1, -1, -1):
        k = evict(pool)
        remove_keys(pool, k)
        pool.unhashed[place] = k
    pool.num_unhashed = num_named + num_before
    if pool.has_events:
        record_cleared(pool.log)


def remove_keys(pool: BlockPool, k: int) -> None:
    """Remove a free block's key and hash aliases without events."""
    pool.blocks[k].hashed = False
    pool.num_hashed -= 1
    unlink(pool, k)
    if pool.num_hash_aliases == 0:
        return
    card = pool.first_hash_aliases[k]
    pool.first_hash_aliases[k] = NONE
    while card != NONE:
        unlink(pool, card)
        following = pool.places[card].next
        pool.places[card].next = pool.free_hash_alias
        pool.free_hash_alias = card
        card = following
