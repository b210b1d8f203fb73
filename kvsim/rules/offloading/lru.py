"""LRU over the chunks of the host cache, as in vLLM's native offloading.

Every request that uses the cache has a number, which ranks the chunks that it touches. Among these,
later positions of the prompt are evicted before earlier ones. When the request ends, its chunks get
new ranks, one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.host_cache import NO_CHUNK
from kvsim.rules.eviction.ranking import rise, sink

if TYPE_CHECKING:
    from kvsim.records.host_cache import HostCache


def new_number(host: HostCache) -> int:
    """Return the next number, which is higher than all earlier ones."""
    host.last_number += 1
    return host.last_number


def rank_chunk(host: HostCache, k: int, number: int) -> None:
    """Rank a chunk by a number, unless its rank is higher already."""
    chunk = host.chunks[k]
    chunk.rank = max(chunk.rank, number * host.orders + chunk.order)


def insert_entry(host: HostCache, k: int) -> None:
    """Insert a chunk without pins into the ranking, if it has no entry there."""
    chunk, ranking = host.chunks[k], host.ranking
    if chunk.has_entry == 0:
        chunk.has_entry = 1
        ranking.length += 1
        rise(ranking, ranking.length - 1, chunk.rank, k)


def evict_lru(host: HostCache) -> int:
    """Remove and return the lowest-ranked chunk without pins that is not in the last offer.

    Chunks of the last offer are skipped. An entry below its chunk's current rank is moved back. The
    entry of a pinned chunk is dropped; the chunk gets a new entry when it is unpinned.
    """
    ranking, found = host.ranking, NO_CHUNK
    while found == NO_CHUNK:
        first = ranking.entries[0]
        k, chunk = first.block, host.chunks[first.block]
        if chunk.pins == 0 and chunk.rank > first.rank:
            sink(ranking, chunk.rank, k)
            continue
        ranking.length -= 1
        last = ranking.entries[ranking.length]
        sink(ranking, last.rank, last.block)
        chunk.has_entry = 0
        if chunk.pins == 0 and chunk.offer == host.last_offer:
            chunk.next = host.aside
            host.aside = k
        elif chunk.pins == 0:
            found = k
    return found


def restore_skipped(host: HostCache) -> None:
    """Return the skipped chunks to the ranking."""
    while host.aside != NO_CHUNK:
        k = host.aside
        host.aside = host.chunks[k].next
        insert_entry(host, k)
