"""vLLM's pause states: a paused replica admits no new requests, or schedules nothing at all.

docs/vllm-rules.md, section 13, describes the rules in words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.connector import NO_CONNECTOR
from kvsim.records.engine import NO_PAUSE, PAUSED_ALL
from kvsim.rules.waiting_for_kv import num_queued

if TYPE_CHECKING:
    from kvsim.records.engine import Replica


def is_paused(state: Replica) -> bool:
    """Return True if no new requests are admitted."""
    return state.limits.has_pauses and state.pause != NO_PAUSE


def step_budget(state: Replica) -> int:
    """Return the tokens that a step may schedule: none under a full pause."""
    if is_paused(state) and state.pause == PAUSED_ALL:
        return 0
    return state.limits.max_num_scheduled_tokens


def num_admissible(state: Replica) -> int:
    """Return the number of requests that may be admitted; in a pause, only the second queue's."""
    if is_paused(state):
        return state.connector.waiting_for_kv.length
    return num_queued(state)


def rests(state: Replica) -> bool:
    """Return True if a pause leaves nothing to schedule. With a connector, empty steps continue."""
    if not is_paused(state) or state.connector.kind != NO_CONNECTOR:
        return False
    return state.pause == PAUSED_ALL or state.num_running == 0
