"""TensorRT-LLM's capacity scheduler and its context chunks, by its public documentation.

GUARANTEED_NO_EVICT starts a request only if it and all running ones can be completed: no started
request is ever paused. MAX_UTILIZATION reserves only the blocks of the next step, and pauses the
request started last when they run out, as the loop of vLLM's rules does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.paged import NULL_BLOCK
from kvsim.rules.blocks.paged import most_blocks, num_found

if TYPE_CHECKING:
    from kvsim.records.engine import Replica
    from kvsim.records.kv import KV
    from kvsim.records.paged import RequestBlocks
    from kvsim.records.request import Request


def can_complete(state: Replica, request: Request, hit: int) -> bool:
    """Return True if a waiting request and all running ones can run to their ends.

    The blocks of its hit count as needed unless running requests hold them, too.
    """
    kv = state.kv
    own_blocks = kv.request_blocks[kv.free_request_blocks[kv.num_free_request_blocks - 1]]
    need = blocks_to_end(kv, request) - blocks_in_use(kv, own_blocks, hit)
    for place in range(state.num_running):
        need += blocks_left(kv, state.requests[state.running[place]])
    return need <= kv.pool.num_free


def blocks_to_end(kv: KV, request: Request) -> int:
    """Return the largest number of blocks that a request holds at once."""
    total, slots = 0, min(request.known_end - 1, kv.max_model_len)
    for g in range(kv.num_groups):
        total += most_blocks(kv.groups[g], slots, True)
    return total


def blocks_left(kv: KV, request: Request) -> int:
    """Return the blocks that a running request still allocates until its last token."""
    left, slots = 0, min(request.known_end - 1, kv.max_model_len)
    for g in range(kv.num_groups):
        table = kv.request_blocks[request.own_blocks].tables[g]
        left += max(most_blocks(kv.groups[g], slots, True) - (table.length - table.num_null), 0)
    return left


def blocks_in_use(kv: KV, own_blocks: RequestBlocks, hit: int) -> int:
    """Return the number of blocks of a hit that are on the GPU and have references."""
    shared = 0
    for g in range(kv.num_groups):
        table = own_blocks.tables[g]
        found = kv.pool.host.num_found if kv.pool.has_host else num_found(kv, kv.groups[g], hit)
        for place in range(found):
            block = table.blocks[place]
            shared += block != NULL_BLOCK and kv.pool.blocks[block].ref_cnt > 0
    return shared


def whole_units(state: Replica, request: Request, computed: int, num_tokens: int) -> int:
    """Return the tokens of a context chunk: whole blocks, except for the prompt's last chunk."""
    if computed + num_tokens >= request.num_tokens:
        return num_tokens
    return num_tokens - num_tokens % state.limits.chunk_unit
