"""A request that was refused for lack of blocks: when it is refused again without a look-up.

An admission needs a block for each block of the request's tokens, less the blocks of its hit that
other requests hold. The number of these rises only if a request is admitted, if a block of the same
prompt gets its key, or if a copy in use takes the place of an evicted block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.paged import FULL
from kvsim.records.record import NONE

if TYPE_CHECKING:
    from kvsim.records.kv import KV
    from kvsim.records.paged import BlockPool, RequestBlocks
    from kvsim.records.request import Request


def record_shortage(kv: KV, request: Request, num_in_use: int) -> None:
    """Record a refused request, of whose hit other requests hold ``num_in_use`` blocks."""
    group = kv.groups[0]
    if kv.num_groups > 1 or group.kind != FULL or group.keys_per_block > 1:
        return
    if not (kv.pool.has_host or kv.matches_partially or kv.replay_window > 0):
        kv.pool.short_request, kv.pool.num_short_in_use = request.request_id, num_in_use


def stays_short(kv: KV, request: Request, num_blocks: int, free: int) -> bool:
    """Return True if a request of ``num_blocks`` blocks still needs more than ``free`` ones."""
    pool = kv.pool
    return pool.short_request == request.request_id and num_blocks - pool.num_short_in_use > free


def forget_if_shared(kv: KV, own_blocks: RequestBlocks, first: int, stop: int) -> None:
    """Forget a refused request if its prompt has blocks that get keys, from ``first`` to ``stop``.

    Its own keys are in the record of the next admission, unless another request uses that record.
    """
    short, kv.pool.short_request = kv.pool.short_request, NONE
    if kv.num_free_request_blocks == 0:
        return
    head = kv.request_blocks[kv.free_request_blocks[kv.num_free_request_blocks - 1]]
    is_shared = first < min(stop, head.num_keys) and head.keys[first] == own_blocks.keys[first]
    if head.owner == short and not is_shared:
        kv.pool.short_request = short


def count_heir(pool: BlockPool, heir: int) -> None:
    """Count a copy that takes the place of an evicted block, as if a refused request hits it."""
    pool.num_short_in_use += int(pool.blocks[heir].ref_cnt > 0)
