"""The host cache of native CPU offloading: chunks, their slots, and the order of eviction."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from kvsim.records.contents import Contents
from kvsim.records.eviction import Ranking
from kvsim.records.queue import Queue
from kvsim.records.record import NONE, Record, Short, Tiny

NO_CHUNK = 0  # an index that is never used, so that zeroed memory reads as empty
WRITING = -1  # `Chunk.pins` of a chunk that is still being written


class HostPolicy(IntEnum):
    """The rule that evicts the next chunk."""

    LRU = 0
    ARC = 1


HOST_LRU, HOST_ARC = (int(policy) for policy in HostPolicy)


class Place(IntEnum):
    """The ARC list of a chunk: chunks used once, chunks used again, and the ghosts of both."""

    RECENT = 0
    FREQUENT = 1
    RECENT_GHOST = 2
    FREQUENT_GHOST = 3


RECENT, FREQUENT, RECENT_GHOST, FREQUENT_GHOST = (int(place) for place in Place)


@dataclass(slots=True)
class Chunk(Record):
    """A chunk in host memory, or (under ARC) the key of an evicted one."""

    key: int = 0
    rank: int = 0  # LRU: the lowest rank is evicted next
    order: int = 0  # LRU: order among the chunks of one request; lower is evicted first
    slot: Short = NONE
    pins: Short = 0  # number of loads that read it, or WRITING
    next: Short = NONE  # ARC: neighbours in its list
    previous: Short = NONE
    chain: Short = NO_CHUNK  # next chunk in the bucket, or next free record
    offer: int = 0  # number of the last offer that included it
    place: Tiny = 0  # ARC: its list, a `Place`
    has_entry: Tiny = 0  # LRU: 1 while it has an entry in the ranking


@dataclass(slots=True)
class HostCache(Record):
    """Host memory in chunks, found by key."""

    policy: int = HOST_LRU
    capacity: int = 0  # chunks
    chunks: list[Chunk] = field(default_factory=list)
    num_made: int = 0  # records in use or in the free list
    first_free: int = NO_CHUNK  # first record of the free list
    buckets: list[int] = field(default_factory=list)
    bucket_mask: int = 0
    num_chunks: int = 0  # in host memory
    num_ready: int = 0  # written chunks without pins
    num_writing: int = 0
    num_slots_used: int = 0  # slots that have been allocated at least once
    free_slots: list[int] = field(default_factory=list)  # a stack: the last entry is used next
    num_free_slots: int = 0
    last_offer: int = 0
    ranking: Ranking = field(default_factory=Ranking)  # LRU: chunks without pins
    aside: int = NO_CHUNK  # LRU: first of the chunks that an eviction skipped
    orders: int = 1  # LRU: every `Chunk.order` is below it
    last_number: int = 0  # LRU: the last number assigned to a request
    lists: list[Queue] = field(default_factory=list)  # ARC: by `Place`, in eviction order
    next_recent: int = NONE  # ARC: where the search for a victim continues, per list
    next_frequent: int = NONE
    target: float = 0.0  # ARC: target length of RECENT
    threshold: int = 0  # offers of a chunk before it is stored; below 2, the first one suffices
    offers: Contents = field(default_factory=Contents)  # number of offers by chunk
    most_offers: int = 0  # most chunks in ``offers``
