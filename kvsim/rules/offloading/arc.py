"""ARC over the chunks of the host cache (Megiddo and Modha 2003), as in vLLM's offloading.

Chunks used once and chunks used again are in separate queues. Keys of evicted chunks remain as
ghosts. If a request stores the key of a ghost, the target length of the first queue changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.host_cache import FREQUENT, FREQUENT_GHOST, RECENT, RECENT_GHOST
from kvsim.records.record import NONE
from kvsim.rules.links import append, remove

if TYPE_CHECKING:
    from kvsim.records.host_cache import HostCache


def move_to(host: HostCache, k: int, place: int) -> None:
    """Move a chunk, or its ghost, to the end of the list of a `Place`."""
    chunk = host.chunks[k]
    remove(host.lists[chunk.place], host.chunks, k)
    chunk.place = place
    append(host.lists[place], host.chunks, k)


def record_miss(host: HostCache, k: int) -> None:
    """Adapt the target when a request stores a chunk that has a ghost."""
    place = host.chunks[k].place
    recent, frequent = host.lists[RECENT_GHOST].length, host.lists[FREQUENT_GHOST].length
    if place == RECENT_GHOST:
        host.target = min(host.target + max(1.0, frequent / recent), float(host.capacity))
    else:
        host.target = max(host.target - max(1.0, recent / frequent), 0.0)
    move_to(host, k, place)


def can_leave(host: HostCache, k: int) -> bool:
    """Return True if a chunk has no pins and is not part of the last offer."""
    return host.chunks[k].pins == 0 and host.chunks[k].offer != host.last_offer


def begin_eviction(host: HostCache) -> None:
    """Start the search for evictable chunks at the front of both queues."""
    host.next_recent = host.lists[RECENT].head
    host.next_frequent = host.lists[FREQUENT].head


def next_recent(host: HostCache) -> int:
    """Return the next evictable chunk used once, or NONE."""
    while host.next_recent != NONE and not can_leave(host, host.next_recent):
        host.next_recent = host.chunks[host.next_recent].next
    return host.next_recent


def next_frequent(host: HostCache) -> int:
    """Return the next evictable chunk used again, or NONE."""
    while host.next_frequent != NONE and not can_leave(host, host.next_frequent):
        host.next_frequent = host.chunks[host.next_frequent].next
    return host.next_frequent


def evict_arc(host: HostCache) -> int:
    """Turn the next chunk to evict into a ghost, and return it; an evictable chunk must exist.

    A chunk used once is evicted if the number of such chunks has reached the target.
    """
    k = NONE
    if host.lists[RECENT].length >= int(host.target):
        k = next_recent(host)
    if k == NONE:
        k = next_frequent(host)
    if k == NONE:
        k = next_recent(host)
    if host.chunks[k].place == RECENT:
        host.next_recent = host.chunks[k].next
        move_to(host, k, RECENT_GHOST)
    else:
        host.next_frequent = host.chunks[k].next
        move_to(host, k, FREQUENT_GHOST)
    return k
