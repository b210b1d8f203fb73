"""Slots of a request: one per scheduled token, and lookahead slots in which a drafter writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.records.engine import Replica
    from kvsim.records.kv import KV
    from kvsim.records.request import Request


def has_lookahead(kv: KV) -> bool:
    """Return True if requests allocate slots beyond their scheduled tokens."""
    return kv.num_lookahead_tokens > 0


def num_slots(kv: KV, request: Request, end: int) -> int:
    """Return the slots that a request needs once its tokens up to ``end`` are scheduled."""
    if kv.reserve_output:
        end = max(end, request.max_slots)
    return slots_up_to(kv, end)


def slots_up_to(kv: KV, end: int) -> int:
    """As :func:`num_slots`, without slots reserved for the rest of the output."""
    return min(end + kv.num_lookahead_tokens, kv.max_model_len)


def end_within(kv: KV, slots: int) -> int:
    """Return the number of scheduled tokens for which ``slots`` slots suffice."""
    return slots - kv.num_lookahead_tokens


def slots_of_drafts(state: Replica) -> int:
    """Return the slots of a decode with drafts: its token, the drafts, and the lookahead."""
    return 1 + state.limits.num_drafts + state.kv.num_lookahead_tokens
