"""Bounded replay: windows that nothing is cached of are computed again behind a hit.

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
    """Return the hit; none, also of a connector's tokens, if all of it would be computed again."""
    if hit > state.kv.replay_window:
        return hit
    state.connector.hit = 0
    state.connector.external = 0
    state.connector.is_async = False
    return 0


def num_replayed(kv: KV, hit: int) -> int:
    """Tokens of a hit that are computed again."""
    return min(kv.replay_window, hit)


def filled_by_hit(request: Request, own_blocks: RequestBlocks, filled: int) -> int:
    """Return how many slots are written: those of a hit are, also where it is computed again."""
    return max(filled, min(own_blocks.num_cached_tokens, request.max_slots))
