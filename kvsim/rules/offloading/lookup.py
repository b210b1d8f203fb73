"""Look-up of a prompt in the host cache, after its hit on the GPU.

All groups must be able to resume at the end of a hit. Groups of full attention are checked first.
Each group may shorten the hit, and groups checked before may then have to be checked again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.host_cache import NO_CHUNK
from kvsim.records.record import NONE
from kvsim.rules.blocks.attention import cdiv
from kvsim.rules.blocks.keys import extend_keys
from kvsim.rules.offloading.host_cache import find_chunk, is_ready
from kvsim.rules.offloading.request import key_of, num_chunk_keys

if TYPE_CHECKING:
    from kvsim.records.kv import KV
    from kvsim.records.offloading import OffloadGroup, Offloading
    from kvsim.records.paged import RequestBlocks
    from kvsim.records.request import Request

#: Returned while the host cache cannot answer yet.
UNKNOWN = -1


def find_offloaded(
    kv: KV, offloading: Offloading, request: Request, own_blocks: RequestBlocks, local: int
) -> int:
    """Return the number of tokens after the first ``local`` ones that can be loaded, or UNKNOWN."""
    if has_own_copies(offloading, request):
        return UNKNOWN
    extend_keys(
        own_blocks, request, request.num_tokens // kv.hash_block_size, kv.hash_block_size, 0
    )
    if offloading.num_groups == 1 and offloading.groups[0].window == 0:
        end, unknown = find_in_one(kv, offloading, request, own_blocks, local)
    else:
        end, unknown = find_in_all(kv, offloading, request, own_blocks, local)
    if end <= local:
        return 0
    if unknown > 0 or (kv.enable_prefix_caching and is_loading(offloading, own_blocks, local, end)):
        return UNKNOWN
    return end - local


def has_own_copies(offloading: Offloading, request: Request) -> bool:
    """Return True if copies of the request are in flight; reset the cursors of its stores."""
    s = offloading.state_of[request.request_id] - 1
    if s == NONE:
        return False
    state = offloading.states[s]
    for g in range(offloading.num_groups):
        state.cursors[g] = 0
    return state.num_jobs > 0


def find_in_one(
    kv: KV, offloading: Offloading, request: Request, own_blocks: RequestBlocks, local: int
) -> tuple[int, int]:
    """Return (end of the hit in tokens, 0 without one; 1 if part of it is still being written)."""
    group = offloading.groups[0]
    known = num_chunk_keys(kv, group, request.num_tokens) * group.chunk_tokens
    end, unknown = find_run(offloading, own_blocks, 0, local, known)
    if end - local < group.chunk_tokens:
        return 0, 0
    return end, unknown


def find_in_all(
    kv: KV, offloading: Offloading, request: Request, own_blocks: RequestBlocks, local: int
) -> tuple[int, int]:
    """As :func:`find_in_one`, for several groups or windows."""
    end, unknown = request.num_tokens - 1, 0
    first, again = 0, True
    while again:
        again, begin, first = False, first, 0
        has_window = False
        for at in range(begin, offloading.num_groups):
            g = offloading.by_need[at]
            group = offloading.groups[g]
            known = num_chunk_keys(kv, group, request.num_tokens) * group.chunk_tokens
            end = min(end, known)
            if end - local < group.chunk_tokens:
                return 0, 0
            if group.window > 0:
                found, writing = find_end_of_run(offloading, own_blocks, g, local, end)
            else:
                found, writing = find_run(offloading, own_blocks, g, local, end)
                if found - local < group.chunk_tokens:
                    return 0, 0
            if found == 0:
                return 0, 0
            if found < end:
                end = found
                if unknown > 0:
                    unknown, again, first = 0, True, 0
                elif has_window and not again:
                    again, first = True, offloading.num_full
            unknown |= writing
            has_window |= group.window > 0
    return end, unknown


def chunk_at(offloading: Offloading, own_blocks: RequestBlocks, g: int, place: int) -> int:
    """Return the chunk at index ``place`` of a prompt if it is in host memory, or NO_CHUNK."""
    return find_chunk(offloading.host, key_of(own_blocks, offloading.groups[g], g, place))


def find_run(
    offloading: Offloading, own_blocks: RequestBlocks, g: int, local: int, end: int
) -> tuple[int, int]:
    """As :func:`find_in_one`, for the consecutive chunks after ``local`` tokens.

    The end is 0 if the first chunk is missing.
    """
    size, unknown = offloading.groups[g].chunk_tokens, 0
    first = local // size
    place = first
    while place * size < end:
        k = chunk_at(offloading, own_blocks, g, place)
        if k == NO_CHUNK:
            break
        unknown |= int(not is_ready(offloading.host, k))
        place += 1
    return min(end, place * size) if place > first else 0, unknown


def run_to(group: OffloadGroup, end: int) -> int:
    """Return the number of chunks that a window needs before the end of a hit.

    The hit may end inside a chunk.
    """
    reach = group.window - 1 + -end % group.chunk_tokens
    return max(group.run, cdiv(reach, group.chunk_tokens))


def find_end_of_run(
    offloading: Offloading, own_blocks: RequestBlocks, g: int, local: int, end: int
) -> tuple[int, int]:
    """As :func:`find_run`, for a window: find the last run of chunks that fills a window.

    A state is a window of one chunk, and the hit ends where that chunk ends.
    """
    group = offloading.groups[g]
    size = group.chunk_tokens
    if group.is_state:
        end = end // size * size
    first = local // size
    run, needed, unknown = 0, run_to(group, end), 0
    place = cdiv(end, size) - 1
    while place >= first and run < needed:
        k = chunk_at(offloading, own_blocks, g, place)
        if k == NO_CHUNK:
            run, needed, unknown = 0, group.run, 0
        else:
            run += 1
            unknown |= int(not is_ready(offloading.host, k))
        place -= 1
    if run == 0:
        return 0, 0
    return min(end, (place + 1 + run) * size), unknown


def is_loading(offloading: Offloading, own_blocks: RequestBlocks, local: int, end: int) -> bool:
    """Return True if a chunk of a hit is being loaded for another request."""
    for g in range(offloading.num_groups):
        group = offloading.groups[g]
        first, last = local // group.chunk_tokens, cdiv(end, group.chunk_tokens)
        if group.window > 0:
            first = max(first, last - run_to(group, end))
        for place in range(first, last):
            k = chunk_at(offloading, own_blocks, g, place)
            if k != NO_CHUNK and offloading.host.chunks[k].pins > 0:
                return True
    return False
