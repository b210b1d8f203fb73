"""Ends of prompt chunks, chosen so that chunks leave states where later hits can end.

Some kernels also leave a state inside a chunk, a *checkpoint*, so the chunk need not end there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.rules.blocks.attention import cdiv

if TYPE_CHECKING:
    from kvsim.records.engine import Replica
    from kvsim.records.kv import KV
    from kvsim.records.paged import KVGroup
    from kvsim.records.request import Request


def last_state(kv: KV, num_tokens: int, unit: int) -> int:
    """Return the last multiple of ``unit`` at which a hit on ``num_tokens`` tokens can end."""
    if kv.drops_last_block:
        return max(num_tokens // unit * unit - unit, 0)
    return max(num_tokens - max(1, kv.num_hash_lookahead_tokens), 0) // unit * unit


def allows_checkpoint(kv: KV, size: int, start: int, end: int, place: int) -> bool:
    """Return True if the chunk of tokens start to end can leave a state after ``place`` tokens."""
    unit, alignment = kv.hash_block_size, kv.states.checkpoint_alignment
    if alignment == 0 or start % unit != 0 or cdiv(end, size) - 2 <= (start - 1) // size:
        return False
    return start + unit <= place < end and (place - start) % alignment == 0


def takes_checkpoint(kv: KV, group: KVGroup, start: int, end: int) -> bool:
    """Return True if a chunk leaves a state inside it."""
    place = last_state(kv, end, kv.alignment)
    return allows_checkpoint(kv, group.block_size, start, end, place)


def num_to_state(state: Replica, request: Request, start: int, num_tokens: int) -> int:
    """Return the number of tokens of a prompt chunk, cut to end at a useful state; may be 0."""
    kv, limits = state.kv, state.limits
    size = kv.states.block_size
    prefill_end = max(request.num_prompt_tokens, request.num_tokens - 1)
    if start >= prefill_end:
        return num_tokens
    end = start + num_tokens
    if end < prefill_end:
        longest = limits.max_num_scheduled_tokens
        if limits.long_prefill_token_threshold > 0:
            longest = min(longest, limits.long_prefill_token_threshold)
        whole = end // size * size
        if whole > start or size <= longest:
            end = whole
    return max(first_stop(kv, request, start, end, prefill_end) - start, 0)


def first_stop(kv: KV, request: Request, start: int, end: int, prefill_end: int) -> int:
    """Return the first position at which a chunk must stop to leave a state, or the chunk's end."""
    size, unit, prompt = kv.states.block_size, kv.hash_block_size, request.num_prompt_tokens
    stop, shared = end, request.shared_prefix_boundary
    last = last_state(kv, prefill_end, kv.alignment)
    if end < prefill_end or not allows_checkpoint(kv, size, start, end, last):
        if start % size > 0:
            stop = min(stop, cdiv(start, size) * size)
        last = last_state(kv, request.num_tokens, size)
        if start < last:
            stop = min(stop, last)
        tail = last_state(kv, prompt, unit)
        if kv.matches_partially and last < tail < prompt and start < tail:
            stop = min(stop, tail)
    if start < shared < end:
        whole = start + (shared - start) // size * size
        if kv.states.keeps_shared and shared <= prompt:
            whole = shared
        if start < whole:
            stop = min(stop, whole)
    return stop
