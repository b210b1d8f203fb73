"""Functions that read a replica's state between two steps, from objects or flat memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.registry import engine_by_policy
from kvsim.kv.block_pool import BlockPool
from kvsim.records.memory import column
from kvsim.records.record import NONE
from kvsim.records.request import FINISHED
from kvsim.rules.kv import has_pool
from kvsim.rules.vllm.reset import DONE_ALL, reset_prefix_cache

if TYPE_CHECKING:
    from kvsim.engine.replica import Replica
    from kvsim.records.engine import Replica as State


def place_of(state: State, row: int) -> int | None:
    """Return the index of a request's record, None if the request is not here or has ended."""
    ids = column(state.requests, "request_id", state.num_requests)
    for k, found in enumerate(ids):
        if found == row and state.requests[k].status != FINISHED:
            return k
    return None


def block_table(replica: Replica, place: int) -> list[list[int]]:
    """Return the blocks that a request holds, by group."""
    state = replica.state
    own = engine_by_policy(state.limits.scheduler).block_table(state, place)
    if own is not None and not state.limits.in_python:
        return [own]
    request = state.requests[place]
    if has_pool(state.kv) and request.own_blocks == NONE:
        return [[] for _ in range(state.kv.num_groups)]
    return [list(table) for table in replica.kv.block_ids(request)]


def free_queue(replica: Replica, allocator: str) -> list[int]:
    """Return the free blocks in the order in which they will be allocated."""
    check_pool(replica, allocator, "free_queue")
    return list(BlockPool.over(replica.state.kv).free_queue())


def cached_blocks(replica: Replica, allocator: str) -> list[int]:
    """Return the blocks with content that a later prompt can hit, in use or free."""
    check_pool(replica, allocator, "cached_blocks")
    return BlockPool.over(replica.state.kv).hashed_blocks()


def reset_cache(replica: Replica, allocator: str) -> bool:
    """Clear the prefix cache; False if a block is in use.

    The rule runs as Python under both backends, because few compiled variants contain it.
    """
    check_pool(replica, allocator, "reset_prefix_cache")
    return reset_prefix_cache(replica.state, False) == DONE_ALL


def check_pool(replica: Replica, allocator: str, what: str) -> None:
    """Refuse an allocator without a pool of blocks."""
    if not has_pool(replica.state.kv):
        raise ValueError(f"{what}: allocator {allocator!r} has no pool of blocks; paged has one")
