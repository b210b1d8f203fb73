"""vLLM's skip_reading_prefix_cache: such requests reuse no blocks; others may reuse theirs.

docs/vllm-rules.md, section 13, describes the rules in words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.rules.kv import look_up

if TYPE_CHECKING:
    from kvsim.records.engine import Replica
    from kvsim.records.request import Request


def skips_reading(state: Replica, request: Request) -> bool:
    """Return True if a request computes its whole prompt even if the prompt is cached."""
    return state.trace.has_skips and state.trace.skips_reading[request.request_id] > 0


def read_cache(state: Replica, request: Request) -> int:
    """Return the cached tokens that a waiting request may reuse."""
    if skips_reading(state, request):
        request.shared_prefix_boundary = 0
        return 0
    return look_up(state.kv, request)
