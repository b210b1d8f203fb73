"""The host cache of native CPU offloading: chunks by key, in slots of host memory.

A chunk is first being written, then ready; loads pin it while they read it. Only a ready chunk
without pins can be evicted; ``rules/offloading/lru.py`` or ``rules/offloading/arc.py`` chooses one.

docs/vllm-rules.md, section 13, describes the rules in words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.host_cache import (
    FREQUENT_GHOST,
    HOST_LRU,
    NO_CHUNK,
    RECENT,
    RECENT_GHOST,
    WRITING,
)
from kvsim.records.record import NONE
from kvsim.rules.blocks.contents import add_content, drop_content, find_content, renew_content
from kvsim.rules.links import append, enter_bucket, find_in_bucket, leave_bucket, new_place, remove
from kvsim.rules.offloading.arc import begin_eviction, evict_arc
from kvsim.rules.offloading.lru import evict_lru, insert_entry, restore_skipped

if TYPE_CHECKING:
    from kvsim.records.host_cache import HostCache


def find_record(host: HostCache, key: int) -> int:
    """Return the record of a key, a chunk or a ghost, or NO_CHUNK."""
    return find_in_bucket(host, host.chunks, key)


def find_chunk(host: HostCache, key: int) -> int:
    """Return the chunk of a key in host memory, ready or being written, or NO_CHUNK."""
    k = find_record(host, key)
    return k if k != NO_CHUNK and host.chunks[k].slot != NONE else NO_CHUNK


def is_ready(host: HostCache, k: int) -> bool:
    """Return True if a chunk in host memory is ready to be read."""
    return host.chunks[k].pins != WRITING


def pin_chunk(host: HostCache, k: int) -> None:
    """Pin a ready chunk while a load reads it, so that it is not evicted."""
    chunk = host.chunks[k]
    host.num_ready -= chunk.pins == 0
    chunk.pins += 1


def unpin_chunk(host: HostCache, k: int) -> None:
    chunk = host.chunks[k]
    chunk.pins -= 1
    if chunk.pins == 0:
        host.num_ready += 1
        if host.policy == HOST_LRU:
            insert_entry(host, k)


def finish_writing(host: HostCache, k: int) -> None:
    host.chunks[k].pins = 0
    host.num_writing -= 1
    host.num_ready += 1
    if host.policy == HOST_LRU:
        insert_entry(host, k)


def allocate_slot(host: HostCache) -> int:
    """Allocate a slot: one that was never used if there is any, else the slot freed last."""
    if host.num_slots_used < host.capacity:
        host.num_slots_used += 1
        return host.num_slots_used - 1
    host.num_free_slots -= 1
    return host.free_slots[host.num_free_slots]


def add_chunk(host: HostCache, key: int, order: int) -> int:
    """Start writing a chunk that is not in host memory; the caller has made a slot free."""
    k = find_record(host, key)
    if k == NO_CHUNK:
        k = new_record(host, key)
    else:  # a ghost is stored again
        remove(host.lists[host.chunks[k].place], host.chunks, k)
    chunk = host.chunks[k]
    chunk.slot = allocate_slot(host)
    chunk.pins = WRITING
    chunk.order = order
    chunk.rank = 0
    host.num_chunks += 1
    host.num_writing += 1
    if host.policy != HOST_LRU:
        chunk.place = RECENT
        append(host.lists[RECENT], host.chunks, k)
    return k


def new_record(host: HostCache, key: int) -> int:
    k = new_place(host, host.chunks)
    chunk = host.chunks[k]
    chunk.key = key
    chunk.offer = 0
    chunk.has_entry = 0
    enter_bucket(host, host.chunks, k)
    return k


def drop_record(host: HostCache, k: int) -> None:
    leave_bucket(host, host.chunks, k)
    host.chunks[k].chain = host.first_free
    host.first_free = k


def release_slot(host: HostCache, k: int) -> None:
    """Free the slot of a chunk that leaves host memory."""
    chunk = host.chunks[k]
    host.free_slots[host.num_free_slots] = chunk.slot
    host.num_free_slots += 1
    chunk.slot = NONE
    host.num_chunks -= 1
    host.num_ready -= 1


def evict_chunks(host: HostCache, count: int) -> None:
    """Evict ``count`` chunks without pins that are not in the last offer; enough exist."""
    if host.policy == HOST_LRU:
        for _ in range(count):
            k = evict_lru(host)
            release_slot(host, k)
            drop_record(host, k)
        restore_skipped(host)
        return
    begin_eviction(host)
    for _ in range(count):
        release_slot(host, evict_arc(host))
    for ghosts in (RECENT_GHOST, FREQUENT_GHOST):
        while host.lists[ghosts].length > host.capacity:
            k = host.lists[ghosts].head
            remove(host.lists[ghosts], host.chunks, k)
            drop_record(host, k)


def count_offer(host: HostCache, key: int) -> bool:
    """Count an offer of a chunk; return True if it was offered often enough to be stored.

    If the table of counts is full, the chunk that was not offered for the longest time is dropped.
    """
    offers = host.offers
    k = find_content(offers, key)
    if k == NO_CHUNK:
        if offers.queue.length >= host.most_offers:
            drop_content(offers, offers.queue.head)
        add_content(offers, key)
        k = offers.queue.tail
        offers.rows[k].count = 0
    else:
        renew_content(offers, k)
    offers.rows[k].count += 1
    return offers.rows[k].count >= host.threshold
