"""Contiguous KV: one extent of memory per sequence, reserved as a whole at admission.

These are the baselines of the PagedAttention paper (section 6.1): Orca (Max) reserves the longest
possible sequence, Orca (Pow2) rounds the output up to a power of two, Orca (Oracle) knows the
output. An extent never moves and never grows. If every layer has a sliding window, the extent is a
rolling buffer of at most one window (Mistral 7B, arXiv 2310.06825).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.contiguous import RESERVE_MAX, RESERVE_POW2, RESERVE_PYTHON
from kvsim.records.record import NONE
from kvsim.rules.managers.address_space import allocate_piece, free_piece, order_of, piece_size
from kvsim.rules.python import python_reserve

if TYPE_CHECKING:
    from kvsim.records.contiguous import AddressSpace, Allocations
    from kvsim.records.kv import KV
    from kvsim.records.request import Request


def rolled(kv: KV, num_tokens: int) -> int:
    """Return the slots that the first ``num_tokens`` tokens of a sequence fill."""
    window = kv.contiguous.window
    return min(num_tokens, window) if window > 0 else num_tokens


def num_asked_slots(kv: KV, request: Request) -> int:
    """Return the number of slots that each sequence of a request reserves."""
    if kv.contiguous.reserve == RESERVE_PYTHON:
        return rolled(kv, python_reserve(kv, request))
    return rolled(kv, num_reserved_slots(kv, request, kv.contiguous.reserve))


def num_reserved_slots(kv: KV, request: Request, reserve: int) -> int:
    """Return the slots that a `Reserve` rule reserves, as if there were no window."""
    if reserve == RESERVE_MAX:
        return kv.max_model_len
    output = request.max_tokens
    if reserve == RESERVE_POW2:
        output = 1 << order_of(output)  # 25 -> 32
    return min(request.num_prompt_tokens + output, kv.max_model_len)


def allocate_pieces(space: AddressSpace, pieces: Allocations, count: int, asked: int) -> bool:
    """Allocate ``count`` extents of ``asked`` slots, or none; return False if one does not fit."""
    for k in range(count):
        pieces.starts[k] = allocate_piece(space, asked)
        if pieces.starts[k] == NONE:
            free_pieces(space, pieces, k)
            return False
    return True


def free_pieces(space: AddressSpace, pieces: Allocations, count: int) -> None:
    for k in range(count):
        free_piece(space, pieces.starts[k], pieces.size)


def admit_contiguous(kv: KV, request: Request, pieces: Allocations, num_tokens: int) -> bool:
    """Reserve all slots of a waiting request; False, with nothing changed, if there is no room."""
    memory, count, asked = kv.contiguous, request.num_samples, num_asked_slots(kv, request)
    pieces.size = piece_size(memory.space, asked)
    if not allocate_pieces(memory.space, pieces, count, asked):
        return False
    pieces.asked = asked
    pieces.last = min(rolled(kv, request.max_slots), asked)
    memory.num_size += count * pieces.size
    memory.num_asked += count * asked
    memory.num_last += count * pieces.last
    request.num_filled = rolled(kv, num_tokens)
    kv.num_filled += count * request.num_filled
    return True


def allocate_contiguous(kv: KV, request: Request, num_tokens: int) -> bool:
    """Fill reserved slots, which always suffice."""
    end = rolled(kv, min(request.num_computed_tokens + num_tokens, request.max_slots))
    count = request.num_samples if kv.contiguous.has_samples else 1
    kv.num_filled += count * (end - request.num_filled)
    request.num_filled = end
    return True


def retire_contiguous(kv: KV, request: Request, pieces: Allocations) -> None:
    """Record that a request of a static batch has ended; its slots stay until the batch ends."""
    kv.num_filled -= request.num_samples * request.num_filled
    kv.contiguous.num_last -= request.num_samples * pieces.last


def free_contiguous(kv: KV, request: Request) -> None:
    memory, count = kv.contiguous, request.num_samples
    pieces = memory.pieces[request.own_blocks]
    if not kv.request_blocks[request.own_blocks].retired:
        retire_contiguous(kv, request, pieces)
    memory.num_size -= count * pieces.size
    memory.num_asked -= count * pieces.asked
    free_pieces(memory.space, pieces, count)


def measure_contiguous(kv: KV) -> None:
    """Set ``kv.usage``, in bytes, from the sums over all extents."""
    memory, usage = kv.contiguous, kv.usage
    slot = memory.slot_bytes
    usage.token_states = kv.num_filled * slot
    usage.reservation = (memory.num_last - kv.num_filled) * slot
    usage.internal = (memory.num_asked - memory.num_last) * slot
    usage.external = (memory.num_size - memory.num_asked) * slot
    usage.unallocated = (memory.num_slots - memory.num_size) * slot
    usage.cached = 0
