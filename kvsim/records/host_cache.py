"""The host cache of native CPU offloading: chunks, their slots, and the order of eviction."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from kvsim.records.contents import Contents
from kvsim.records.eviction import Ranking
from kvsim.records.queue import Queue
from kvsim.records.record import NONE, Record, Short, Tiny

NO_CHUNK = 0  # a place that is never taken, so that untouched memory reads as empty
WRITING = -1  # the pins of a chunk that is not there yet


class HostPolicy(IntEnum):
    """The rule that evicts the next chunk."""

    LRU = 0
    ARC = 1


HOST_LRU, HOST_ARC = (int(policy) for policy in HostPolicy)


class Place(IntEnum):
    """The list of ARC that a chunk is in: seen once, seen again, and the ghosts of both."""

    RECENT = 0
    FREQUENT = 1
    RECENT_GHOST = 2
    FREQUENT_GHOST = 3


RECENT, FREQUENT, RECENT_GHOST, FREQUENT_GHOST = (int(place) for place in Place)


@dataclass(slots=True)
class Chunk(Record):
    """A chunk in host memory, or (under ARC) the key of an evicted one."""

    key: int = 0
    rank: int = 0  # LRU: the lowest leaves next
    order: int = 0  # LRU: among chunks of one number
    slot: Short = NONE
    pins: Short = 0  # loads that read it, or WRITING
    next: Short = NONE  # ARC: in its list
    previous: Short = NONE
    chain: Short = NO_CHUNK  # next chunk in the bucket, or next free record
    offer: int = 0  # the last offer that it was part of
    place: Tiny = 0  # ARC: its list
    has_entry: Tiny = 0  # LRU: whether it stands in the ranking


@dataclass(slots=True)
class HostCache(Record):
    """Host memory in chunks, found by key."""

    policy: int = HOST_LRU
    capacity: int = 0  # chunks
    chunks: list[Chunk] = field(default_factory=list)
    num_made: int = 0  # records in use or given back
    first_free: int = NO_CHUNK  # of the records given back
    buckets: list[int] = field(default_factory=list)
    bucket_mask: int = 0
    num_chunks: int = 0  # in host memory
    num_ready: int = 0  # without pins
    num_writing: int = 0
    num_slots_used: int = 0  # handed out so far, each once
    free_slots: list[int] = field(default_factory=list)  # a stack: the next one out is last
    num_free_slots: int = 0
    last_offer: int = 0
    ranking: Ranking = field(default_factory=Ranking)  # LRU: chunks without pins
    aside: int = NO_CHUNK  # LRU: the first of those that an eviction passed over
    orders: int = 1  # LRU: chunks of one number differ in less than this
    last_number: int = 0  # LRU: given so far
    lists: list[Queue] = field(default_factory=list)  # ARC: by place, the next one out first
    next_recent: int = NONE  # ARC: where an eviction goes on
    next_frequent: int = NONE
    target: float = 0.0  # ARC: chunks that RECENT should have
    threshold: int = 0  # offers of a chunk before it is stored, if two or more
    offers: Contents = field(default_factory=Contents)  # how often chunks were offered
    most_offers: int = 0  # chunks whose offers are remembered
