"""Memory that a user's rules allocate: kvsim requests slots, and counts the allocated ones.

The user's ``allocate`` makes room for a request's first tokens, and returns the number of tokens
for which the request then has room. It is called again when the request outgrows this number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.record import NONE
from kvsim.rules.blocks.attention import cdiv
from kvsim.rules.blocks.slots import end_within, num_slots
from kvsim.rules.own_order import record_wrong
from kvsim.rules.python import python_allocate_room, python_free_room

if TYPE_CHECKING:
    from kvsim.records.engine import Replica
    from kvsim.records.kv import KV
    from kvsim.records.request import Request


def admit_own(kv: KV, request: Request, place: int, num_tokens: int) -> bool:
    """Allocate the first slots of a waiting request; False, without an allocation, if full."""
    own, slots = kv.own, num_slots(kv, request, num_tokens)
    free = own.num_slots - (own.num_spared if kv.num_held > 0 else 0)
    least = min(request.num_tokens, kv.max_model_len) if kv.reserve_full_isl else 0
    blocks = cdiv(max(slots, least), own.block_size)
    if own.num_allocated + blocks * own.block_size > free:
        return False
    request.own_blocks = place
    if not grow_own(kv, request, slots):
        request.own_blocks = NONE
        return False
    if free < own.num_allocated <= own.num_slots:  # the rules allocated more than expected
        free_own(kv, request)
        request.own_blocks = NONE
        return False
    request.num_filled = num_tokens
    kv.num_filled += num_tokens
    return True


def allocate_own(kv: KV, request: Request, num_tokens: int) -> bool:
    """Allocate slots for the next tokens of a running request; False without room."""
    end = request.num_computed_tokens + num_tokens
    if end > request.next_bookkeeping_at and not grow_own(kv, request, num_slots(kv, request, end)):
        return False
    end = min(end, request.max_slots)  # a surplus step goes beyond the request's end
    kv.num_filled += end - request.num_filled
    request.num_filled = end
    return True


def grow_own(kv: KV, request: Request, slots: int) -> bool:
    """Request room for ``slots`` slots from the rules; False if they return less."""
    room = python_allocate_room(kv, request, slots)
    if room < 0:
        record_wrong(kv.own.part, 0, room)
    if room < slots:
        return False
    count_room(kv, request, room)
    request.next_bookkeeping_at = min(end_within(kv, room), kv.max_model_len)
    return True


def tend_own(state: Replica, step: int) -> bool:
    """Allocate the room that one step of a run needs, in running order; False without room."""
    kv = state.kv
    if step < kv.own.num_quiet_steps:
        return True
    quiet = kv.max_model_len
    for place in range(state.num_running):
        request = state.requests[state.running[place]]
        end = request.num_computed_tokens + step + 1
        if end > request.next_bookkeeping_at and not grow_in_run(kv, request, step, end):
            return False
        quiet = min(quiet, request.next_bookkeeping_at - request.num_computed_tokens)
    kv.own.num_quiet_steps = quiet
    return True


def grow_in_run(kv: KV, request: Request, step: int, end: int) -> bool:
    """As :func:`grow_own`, with the token counts that the request has at a step of a run."""
    request.num_computed_tokens += step
    request.num_tokens += step
    has_grown = grow_own(kv, request, num_slots(kv, request, end))
    request.num_computed_tokens -= step
    request.num_tokens -= step
    return has_grown


def count_room(kv: KV, request: Request, room: int) -> None:
    """Set the room of a live request, in slots, and update the sums."""
    own, before = kv.own, kv.own.rooms[request.own_blocks]
    own.num_allocated += room - before
    own.is_overdrawn = own.is_overdrawn or own.num_allocated > own.num_slots
    own.num_last += min(room, request.max_slots) - min(before, request.max_slots)
    own.rooms[request.own_blocks] = room


def retire_own(kv: KV, request: Request) -> None:
    """Record that a request of a static batch has ended; its slots stay until the batch ends."""
    kv.num_filled -= request.num_filled
    kv.own.num_last -= min(kv.own.rooms[request.own_blocks], request.max_slots)


def free_own(kv: KV, request: Request) -> None:
    own, place = kv.own, request.own_blocks
    if not kv.request_blocks[place].retired:
        retire_own(kv, request)
    own.num_allocated -= own.rooms[place]
    own.rooms[place] = 0
    python_free_room(kv, request)


def measure_own(kv: KV) -> None:
    """Set ``kv.usage``, in bytes, from the sums over requests."""
    own, usage = kv.own, kv.usage
    usage.token_states = kv.num_filled * own.slot_bytes
    usage.reservation = (own.num_last - kv.num_filled) * own.slot_bytes
    usage.internal = (own.num_allocated - own.num_last) * own.slot_bytes
    usage.external = 0
    usage.unallocated = (own.num_slots - own.num_allocated) * own.slot_bytes
    usage.cached = 0
