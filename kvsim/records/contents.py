"""Records of contents by key: a FIFO queue with a hash map."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvsim.records.queue import Queue
from kvsim.records.record import Record, Short

NO_CONTENT = 0  # an index that is never used, so that zeroed memory reads as empty


@dataclass(slots=True)
class Content(Record):
    """A content in the queue."""

    key: int = 0
    next: Short = 0
    previous: Short = 0
    chain: Short = 0  # next content in the bucket, or next free record
    pinned: Short = 0  # 1 if it must not be evicted
    count: Short = 0  # how often it was offered, if offers are counted


@dataclass(slots=True)
class Contents(Record):
    """Contents in order of insertion, found by key."""

    rows: list[Content] = field(default_factory=list)
    queue: Queue = field(default_factory=Queue)
    buckets: list[int] = field(default_factory=list)
    bucket_mask: int = 0
    first_free: int = NO_CONTENT  # first record of the free list
    num_made: int = 0  # records in use or in the free list


@dataclass(slots=True)
class HostTier(Record):
    """Host memory behind a block pool: contents of evicted blocks."""

    contents: Contents = field(default_factory=Contents)
    num_blocks: int = 0
    num_found: int = 0  # blocks that the last lookup found on the GPU
    num_fetched: int = 0  # blocks copied since the last step
    num_stored: int = 0
