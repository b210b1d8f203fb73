"""Bounded replay: the last tokens of a hit are recomputed to fill windows that are not cached.

vLLM does so for DeepSeek-V4.1: a hit covers the blocks of the other layers, and the tokens of the
last window pass through the model again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.records.engine import Replica
    from kvsim.records.kv import KV
    from kvsim.records.paged import RequestBlocks
    from kvsim.records.request import Request


def worth_replaying(state: Replica, hit: int) -> int:
    """Return the hit; if all of it would be recomputed, drop external tokens and return 0."""
    if hit > state.kv.replay_window:
        return hit
    state.connector.hit = 0
    state.connector.external = 0
    state.connector.is_async = False
    return 0


def num_replayed(kv: KV, hit: int) -> int:
    return min(kv.replay_window, hit)


def filled_by_hit(request: Request, own_blocks: RequestBlocks, filled: int) -> int:
    """Return the number of a request's slots with KV, those of a recomputed hit included."""
    return max(filled, min(own_blocks.num_cached_tokens, request.max_slots))
