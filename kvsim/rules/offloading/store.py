"""Stores: each chunk that a request has computed is offered to the host cache once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.host_cache import HOST_LRU, NO_CHUNK, RECENT_GHOST
from kvsim.records.offloading import MISSED, STORED
from kvsim.records.paged import NULL_BLOCK
from kvsim.records.record import NONE
from kvsim.rules.offloading.arc import record_miss
from kvsim.rules.offloading.host_cache import (
    add_chunk,
    count_offer,
    evict_chunks,
    find_chunk,
    find_record,
    is_ready,
)
from kvsim.rules.offloading.jobs import add_block, add_chunk_to, launch_store, new_job
from kvsim.rules.offloading.lru import rank_chunk
from kvsim.rules.offloading.request import assign_number, chunk_order, reuse
from kvsim.rules.offloading.window import is_chunk_reachable, known_block, worth_storing

if TYPE_CHECKING:
    from kvsim.records.offloading import Offloading, OffloadState


def last_to_store(offloading: Offloading, state: OffloadState, g: int, num_tokens: int) -> int:
    """Return the number of a group's chunks that are complete, with known blocks and keys."""
    group, size = offloading.groups[g], offloading.blocks_per_chunk
    last = min(num_tokens // group.chunk_tokens, state.num_known[g] // size)
    return min(last, state.num_keys[g])


def store_up_to(
    offloading: Offloading, s: int, num_tokens: int, step: int, due: float, is_finished: bool
) -> int:
    """Offer the chunks of a request's first tokens; return the job that copies them, or NONE."""
    state, count = offloading.states[s], 0
    for g in range(offloading.num_groups):
        last = last_to_store(offloading, state, g, num_tokens)
        count = offer_group(offloading, state, g, last, count, is_finished)
    job = NONE
    if count > 0:
        num_missing = prepare_store(offloading, state, count)
        if num_missing == NONE:
            return NONE
        if num_missing > 0:
            job = begin_store(offloading, s, num_missing, step, due)
    for g in range(offloading.num_groups):
        last = last_to_store(offloading, state, g, num_tokens)
        state.cursors[g] = max(state.cursors[g], last)
    return job


def offer_group(
    offloading: Offloading, state: OffloadState, g: int, last: int, count: int, is_finished: bool
) -> int:
    """Append the chunks of a group that were not offered yet; return the total number of offers."""
    group, cursor = offloading.groups[g], state.cursors[g]
    if group.window == 0:
        for place in range(cursor, last):
            count = add_offer(offloading, state, g, place, count)
        return count
    size, prompt = offloading.blocks_per_chunk, state.num_prompt_tokens // group.chunk_tokens
    horizon, first = NONE, cursor
    if is_finished:
        horizon = last * size
        if last > prompt and not offloading.keeps_boundaries and group.blocks_per_segment > 0:
            # Now that the output has ended, more chunks of its last segment may be worth storing.
            segment = group.blocks_per_segment
            first = min(cursor, last * size // segment * segment // size)
    elif last <= prompt:
        horizon = prompt * size
    for place in range(first, last):
        if place < cursor and is_chunk_reachable(offloading, state, g, place, prompt * size):
            continue
        if worth_storing(offloading, state, g, place, horizon):
            count = add_offer(offloading, state, g, place, count)
    return count


def add_offer(offloading: Offloading, state: OffloadState, g: int, place: int, count: int) -> int:
    """Append a chunk to the offers; return the new number of offers."""
    group, offer = offloading.groups[g], offloading.offers[count]
    offer.key = state.keys[group.first_chunk + place]
    offer.order = chunk_order(offloading, group, g, place)
    offer.group = g
    offer.place = place
    return count + 1


def prepare_store(offloading: Offloading, state: OffloadState, count: int) -> int:
    """Make room for the offered chunks that are missing, and add them to the host cache.

    Returns the number of added chunks; only their offers remain. If there is no room, returns NONE:
    nothing is stored, but the chunks' new ranks stay.
    """
    host = offloading.host
    count = often_enough(offloading, count)
    num_missing, num_pinned = touch_offered(offloading, state, count)
    record_missing(offloading, state, count)
    num_to_evict = num_missing - (host.capacity - host.num_chunks)
    if num_to_evict > 0:
        if num_to_evict > host.num_ready - num_pinned:
            return NONE
        evict_chunks(host, num_to_evict)
    kept = 0
    for at in range(count):
        offer = offloading.offers[at]
        if offer.is_missing == 0:
            continue
        offer.chunk = add_chunk(host, offer.key, offer.order)
        if host.policy == HOST_LRU:
            rank_chunk(host, offer.chunk, state.number)
        state.marks[offloading.groups[offer.group].first_chunk + offer.place] |= STORED
        move_offer(offloading, at, kept)
        kept += 1
    return num_missing


def often_enough(offloading: Offloading, count: int) -> int:
    """Remove offers of chunks that were offered too rarely; return the number of the others."""
    if offloading.host.threshold < 2:
        return count
    kept = 0
    for at in range(count):
        if count_offer(offloading.host, offloading.offers[at].key):
            move_offer(offloading, at, kept)
            kept += 1
    return kept


def move_offer(offloading: Offloading, at: int, to: int) -> None:
    """Copy the offer at index ``at`` to index ``to``."""
    old, new = offloading.offers[at], offloading.offers[to]
    new.key = old.key
    new.order = old.order
    new.group = old.group
    new.place = old.place
    new.chunk = old.chunk


def touch_offered(offloading: Offloading, state: OffloadState, count: int) -> tuple[int, int]:
    """Mark the offers of missing chunks, and touch the present ones.

    Returns (number of missing chunks, number of evictable chunks that must stay).
    """
    host, num_missing, num_pinned = offloading.host, 0, 0
    host.last_offer += 1
    for at in range(count):
        offer = offloading.offers[at]
        k = find_chunk(host, offer.key)
        offer.is_missing = int(k == NO_CHUNK)
        if k == NO_CHUNK:
            num_missing += 1
            continue
        host.chunks[k].offer = host.last_offer
        if is_ready(host, k):
            num_pinned += host.chunks[k].pins == 0
            mark = offloading.groups[offer.group].first_chunk + offer.place
            reuse(offloading, state, mark, k)
    return num_missing, num_pinned


def record_missing(offloading: Offloading, state: OffloadState, count: int) -> None:
    """Report each missing chunk to the policy once per request, the last chunk first."""
    host = offloading.host
    for at in range(count - 1, -1, -1):
        offer = offloading.offers[at]
        if offer.is_missing == 0:
            continue
        assign_number(offloading, state)
        mark = offloading.groups[offer.group].first_chunk + offer.place
        if state.marks[mark] & MISSED > 0:
            continue
        state.marks[mark] |= MISSED
        if host.policy != HOST_LRU:
            k = find_record(host, offer.key)
            if k != NO_CHUNK and host.chunks[k].place >= RECENT_GHOST:
                record_miss(host, k)


def begin_store(offloading: Offloading, s: int, count: int, step: int, due: float) -> int:
    """Start the job that copies the offered chunks to the host; return its index."""
    j, state, size = new_job(offloading, s, step), offloading.states[s], offloading.blocks_per_chunk
    for at in range(count):
        offer = offloading.offers[at]
        group = offloading.groups[offer.group]
        add_chunk_to(offloading, j, offer.chunk)
        for place in range(offer.place * size, (offer.place + 1) * size):
            block = known_block(offloading, state, group, place)
            if block != NULL_BLOCK:
                add_block(offloading, j, block, group.window > 0)
    launch_store(offloading, j, due)
    return j
