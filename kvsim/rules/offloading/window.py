"""Chunks of a sliding window that are worth storing: those that a later hit could need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.paged import NULL_BLOCK
from kvsim.records.record import NONE

if TYPE_CHECKING:
    from kvsim.records.offloading import OffloadGroup, Offloading, OffloadState

# A group's blocks up to the horizon, the end of the tokens to store:
#
#   |   segment   |   segment   |  incomplete  |
#   |          xx |          xx |           xx |   x: needed by a hit that ends after it


def is_reachable(
    offloading: Offloading, state: OffloadState, group: OffloadGroup, block: int, horizon: int
) -> bool:
    """Return True if a later hit could need a block; ``horizon`` is in blocks, NONE for none."""
    needed, per = group.num_needed, group.blocks_per_segment
    if group.keeps_all or (per > 0 and (needed >= per or block % per >= per - needed)):
        return True
    if offloading.keeps_boundaries:
        prompt, shared = state.num_prompt_tokens - 1, state.shared_prefix_boundary
        return is_near(offloading, group, prompt, block) or is_near(
            offloading, group, shared, block
        )
    if horizon == NONE or per == 0:
        return False
    return horizon > block >= max(horizon - needed, horizon // per * per)


def is_near(offloading: Offloading, group: OffloadGroup, boundary: int, block: int) -> bool:
    """Return True if a hit of up to ``boundary`` tokens needs a block."""
    block_size = group.chunk_tokens // offloading.blocks_per_chunk
    end = boundary // offloading.segment * offloading.segment // block_size
    return end - group.num_needed <= block < end


def worth_storing(
    offloading: Offloading, state: OffloadState, g: int, place: int, horizon: int
) -> bool:
    """Return True if a chunk is worth storing, and all blocks of it that a hit needs are known.

    Of a chunk of states a hit needs the last one.
    """
    group, size = offloading.groups[g], offloading.blocks_per_chunk
    if known_block(offloading, state, group, place * size + size - 1) == NULL_BLOCK:
        return False
    if group.is_state:
        return True
    found = group.keeps_all
    for block in range(place * size, (place + 1) * size):
        if is_reachable(offloading, state, group, block, horizon):
            found = True
            if known_block(offloading, state, group, block) == NULL_BLOCK:
                return False
    return found


def is_chunk_reachable(
    offloading: Offloading, state: OffloadState, g: int, place: int, horizon: int
) -> bool:
    """Return True if a hit could need any block of a chunk."""
    size, found = offloading.blocks_per_chunk, False
    for block in range(place * size, (place + 1) * size):
        found |= is_reachable(offloading, state, offloading.groups[g], block, horizon)
    return found


def known_block(
    offloading: Offloading, state: OffloadState, group: OffloadGroup, place: int
) -> int:
    """Return the block at index ``place`` that a request was allocated, or NULL_BLOCK.

    NULL_BLOCK also stands for a block of a window that was allocated again since.
    """
    block = state.blocks[group.first_block + place]
    if group.window > 0 and offloading.got[block] > state.since[group.first_block + place]:
        return NULL_BLOCK
    return block
