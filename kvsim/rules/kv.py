"""The operations of KV-cache managers; each calls the rules of the configured manager."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.rules.trees import count_match, num_available
from kvsim.records.kv import CONTIGUOUS, FORKED, OWN, PAGED, PYTHON, RADIX, VIRTUAL
from kvsim.records.record import NONE
from kvsim.rules.blocks.paged import (
    admit_paged,
    allocate_paged,
    cache_blocks,
    free_paged,
    retire_paged,
)
from kvsim.rules.blocks.prefix import find_hit
from kvsim.rules.managers.contiguous import (
    admit_contiguous,
    allocate_contiguous,
    free_contiguous,
    retire_contiguous,
)
from kvsim.rules.managers.forked import admit_forked, allocate_forked, free_forked
from kvsim.rules.managers.own import admit_own, allocate_own, free_own, retire_own
from kvsim.rules.managers.swap import swap_in_forked, swap_in_paged, swap_out_forked, swap_out_paged
from kvsim.rules.managers.tiered import admit_tiered, count_transfers, find_tiered
from kvsim.rules.managers.virtual import (
    admit_virtual,
    allocate_virtual,
    free_virtual,
    retire_virtual,
    swap_in_virtual,
    swap_out_virtual,
)
from kvsim.rules.python import (
    python_admit,
    python_allocate,
    python_cache_computed,
    python_free,
    python_has_blocks,
    python_lookup,
    python_num_free,
    python_retire,
    python_swap_in,
    python_swap_out,
    python_take_transfers,
)

if TYPE_CHECKING:
    from kvsim.records.engine import Batch, Replica
    from kvsim.records.kv import KV
    from kvsim.records.paged import RequestBlocks
    from kvsim.records.request import Request


def has_pool(kv: KV) -> bool:
    """Return True if requests hold blocks of a block pool."""
    return kv.manager == PAGED or kv.manager == FORKED  # noqa: PLR1714 - folded when compiled


def next_own_blocks(kv: KV) -> RequestBlocks:
    """Return the record for the next admitted request; its look-ups use this record, too."""
    return kv.request_blocks[kv.free_request_blocks[kv.num_free_request_blocks - 1]]


def look_up(kv: KV, request: Request) -> int:
    """Return the reusable prefix of a waiting request, in tokens; valid until the pool changes."""
    if kv.manager == PAGED:
        if kv.pool.has_host:
            return find_tiered(kv, request, next_own_blocks(kv))
        return find_hit(kv, request, next_own_blocks(kv))
    if kv.manager == RADIX:
        return count_match(kv.radix, request)
    if kv.manager == PYTHON:
        return python_lookup(kv, request)
    return 0


def admit_slots(kv: KV, request: Request, num_tokens: int, hit: int) -> bool:
    """Allocate slots for the first tokens of a request after the hit of the last :func:`look_up`.

    If there is no room, return False and change nothing.
    """
    if kv.manager == PAGED:
        if kv.pool.has_host:
            admitted = admit_tiered(kv, request, next_own_blocks(kv), num_tokens, hit)
        else:
            admitted = admit_paged(kv, request, next_own_blocks(kv), num_tokens, hit, 0)
    elif kv.manager == FORKED:
        admitted = admit_forked(kv, request, next_own_blocks(kv), num_tokens)
    elif kv.manager == CONTIGUOUS:
        pieces = kv.contiguous.pieces[kv.free_request_blocks[kv.num_free_request_blocks - 1]]
        admitted = admit_contiguous(kv, request, pieces, num_tokens)
    elif kv.manager == VIRTUAL:
        virtual_range = kv.virtual.virtual_ranges[
            kv.free_request_blocks[kv.num_free_request_blocks - 1]
        ]
        admitted = admit_virtual(kv, request, virtual_range, num_tokens)
    elif kv.manager == OWN:
        place = kv.free_request_blocks[kv.num_free_request_blocks - 1]
        admitted = admit_own(kv, request, place, num_tokens)
    else:
        return python_admit(kv, request, num_tokens, hit)
    if admitted:
        allocate_own_blocks(kv, request)
    return admitted


def allocate_own_blocks(kv: KV, request: Request) -> None:
    """Assign to a request the record of :func:`next_own_blocks`."""
    kv.num_held += 1
    kv.num_free_request_blocks -= 1
    request.own_blocks = kv.free_request_blocks[kv.num_free_request_blocks]
    kv.request_blocks[request.own_blocks].request = request.place


def allocate_slots(kv: KV, request: Request, num_tokens: int) -> bool:
    """Allocate slots for the next tokens of a running request; False if there is no room."""
    if kv.manager == PAGED:
        return allocate_paged(kv, request, num_tokens)
    if kv.manager == FORKED:
        return allocate_forked(kv, request, num_tokens)
    if kv.manager == CONTIGUOUS:
        return allocate_contiguous(kv, request, num_tokens)
    if kv.manager == VIRTUAL:
        return allocate_virtual(kv, request, num_tokens)
    if kv.manager == OWN:
        return allocate_own(kv, request, num_tokens)
    return python_allocate(kv, request, num_tokens)


def free_slots(kv: KV, request: Request) -> None:
    if kv.manager == PAGED:
        if kv.pool.tracks_sessions:
            kv.pool.goes_on = kv.pool.sessions[request.request_id]
            kv.pool.hint = kv.pool.hints[request.request_id]
        free_paged(kv, request, kv.request_blocks[request.own_blocks])
        if kv.pool.tracks_sessions:
            kv.pool.goes_on = 0.0
    elif kv.manager == FORKED:
        free_forked(kv, request, kv.request_blocks[request.own_blocks])
    elif kv.manager == CONTIGUOUS:
        free_contiguous(kv, request)
    elif kv.manager == VIRTUAL:
        free_virtual(kv, request)
    elif kv.manager == OWN:
        free_own(kv, request)
    else:
        python_free(kv, request)
        return
    return_own_blocks(kv, request)


def return_own_blocks(kv: KV, request: Request) -> None:
    """Return a request's empty record of blocks to the free list."""
    kv.free_request_blocks[kv.num_free_request_blocks] = request.own_blocks
    kv.num_free_request_blocks += 1
    kv.num_held -= 1
    kv.request_blocks[request.own_blocks].request = NONE
    kv.request_blocks[request.own_blocks].retired = False
    request.own_blocks = NONE
    request.next_bookkeeping_at = 0


def retire(kv: KV, request: Request) -> None:
    """Record that a request of a static batch has ended; its slots stay until the batch ends."""
    if kv.manager == PAGED:
        retire_paged(kv, request, kv.request_blocks[request.own_blocks])
    elif kv.manager == CONTIGUOUS:
        retire_contiguous(kv, request, kv.contiguous.pieces[request.own_blocks])
    elif kv.manager == VIRTUAL:
        retire_virtual(kv, request)
    elif kv.manager == OWN:
        retire_own(kv, request)
    else:
        python_retire(kv, request)
        return
    kv.request_blocks[request.own_blocks].retired = True


def swap_out(kv: KV, request: Request) -> int:
    """Move all KV of a request to the host; return the bytes moved, 0 if impossible.

    The request keeps its record of blocks, which no sum counts until the request is swapped in.
    """
    if kv.manager == PAGED:
        num_bytes = swap_out_paged(kv, request, kv.request_blocks[request.own_blocks])
    elif kv.manager == FORKED:
        num_bytes = swap_out_forked(kv, request, kv.request_blocks[request.own_blocks])
    elif kv.manager == VIRTUAL:
        num_bytes = swap_out_virtual(kv, request)
    elif kv.manager == PYTHON:
        return python_swap_out(kv, request)
    else:
        return 0
    if num_bytes > 0:
        kv.num_held -= 1
        kv.request_blocks[request.own_blocks].request = NONE
    return num_bytes


def swap_in(kv: KV, request: Request) -> int:
    """Move the KV of a request back to the GPU; return the bytes moved, 0 without room."""
    if kv.manager == PAGED:
        num_bytes = swap_in_paged(kv, request, kv.request_blocks[request.own_blocks])
    elif kv.manager == FORKED:
        num_bytes = swap_in_forked(kv, request, kv.request_blocks[request.own_blocks])
    elif kv.manager == VIRTUAL:
        num_bytes = swap_in_virtual(kv, request)
    elif kv.manager == PYTHON:
        return python_swap_in(kv, request)
    else:
        return 0
    if num_bytes > 0:
        kv.num_held += 1
        kv.request_blocks[request.own_blocks].request = request.place
    return num_bytes


def cache_computed(kv: KV, request: Request, num_tokens: int) -> None:
    """Set the keys of the blocks that a running request's computed and known tokens fill."""
    if kv.manager == PAGED:
        if kv.enable_prefix_caching and num_tokens > request.next_bookkeeping_at:
            cache_blocks(kv, request, kv.request_blocks[request.own_blocks], num_tokens)
    elif kv.manager == PYTHON:
        python_cache_computed(kv, request, num_tokens)


def has_blocks(kv: KV, request: Request) -> bool:
    if kv.manager == PYTHON:
        return python_has_blocks(kv, request)
    return has_pool(kv) or kv.manager == OWN


def num_free(kv: KV) -> int:
    """Return the number of free blocks, or of slots or rows of pages, cached ones included."""
    if has_pool(kv):
        return kv.pool.num_free
    if kv.manager == CONTIGUOUS:
        return kv.contiguous.num_slots - kv.contiguous.num_size
    if kv.manager == VIRTUAL:
        return kv.virtual.num_free_pages // kv.virtual.num_tensors
    if kv.manager == OWN:
        return (kv.own.num_slots - kv.own.num_allocated) // kv.own.block_size
    if kv.manager == RADIX:
        return num_available(kv.radix) // kv.radix.pages.page_size
    return python_num_free(kv)


def take_transfers(state: Replica, batch: Batch) -> None:
    """Count the bytes that a step moves to and from the host."""
    if state.kv.manager == PYTHON:
        python_take_transfers(state, batch)
    else:
        count_moved(state.kv)


def count_moved(kv: KV) -> None:
    """Count the bytes that a host tier's fetches and stores since the last step copy."""
    if kv.pool.has_host:
        count_transfers(kv)
