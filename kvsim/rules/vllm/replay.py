"""Bounded replay: windows without cached KV are recomputed after a hit.

vLLM does so for the windows of DeepSeek-V4.1: the other layers' blocks are hit, and the last tokens
of the hit go through the model once more, so that the windows fill.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.records.engine import Replica
    from kvsim.records.kv import KV
    from kvsim.records.paged import RequestBlocks
    from kvsim.records.request import Request


def worth_replaying(state: Replica, hit: int) -> int:
    """Return the hit; 0, also for a connector's tokens, if all of it would be recomputed."""
    if hit > state.kv.replay_window:
        return hit
    state.connector.hit = 0
    state.connector.external = 0
    state.connector.is_async = False
    return 0


def num_replayed(kv: KV, hit: int) -> int:
    """Return the tokens of a hit that are recomputed."""
    return min(kv.replay_window, hit)


def filled_by_hit(request: Request, own_blocks: RequestBlocks, filled: int) -> int:
    """Return how many slots are written, those of a recomputed hit included."""
    return max(filled, min(own_blocks.num_cached_tokens, request.max_slots))
