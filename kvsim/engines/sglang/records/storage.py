"""Records of the reads from storage for SGLang's waiting requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from kvsim.records.queue import Neighbours, Queue
from kvsim.records.record import Record


class StopRule(IntEnum):
    """The rule that ends a read from storage; SGLang's hicache_storage_prefetch_policy."""

    BEST_EFFORT = 0
    WAIT_COMPLETE = 1
    TIMEOUT = 2


BEST_EFFORT, WAIT_COMPLETE, TIMEOUT = map(int, StopRule)


@dataclass(slots=True)
class Read(Record):
    """A read of one request from storage into pages of the host."""

    num_tokens: int = 0  # 0 without a read
    start: int = 0  # index of the first of these tokens in the prompt
    page: int = 0
    last_page: int = 0
    node: int = 0  # locked on the host meanwhile; 0 for none
    node_start: int = 0  # its start when it was locked; later splits move its start
    asked: float = 0.0  # when the read was queued, s
    begins: float = -1.0  # start of the read, s; -1 while it is queued
    base: float = 0.0  # fixed seconds of the read
    token_time: float = 0.0  # seconds per token
    is_done: bool = False


@dataclass(slots=True)
class Storage(Record):
    """The settings of reads, and the reads in flight; a replica's link has one at a time."""

    is_on: bool = False
    stop_rule: int = BEST_EFFORT
    least: int = 256  # tokens, hicache_storage_prefetch_threshold
    timeout: float = 1.0  # seconds
    timeout_per_token: float = 0.0  # more seconds per token
    offered: list[int] = field(default_factory=list)  # by row: prompt tokens that can be had
    held: list[int] = field(default_factory=list)  # by row: tokens that both tiers had then
    base: list[float] = field(default_factory=list)  # by row: fixed seconds of the read
    token_time: list[float] = field(default_factory=list)  # by row: seconds per token
    reads: list[Read] = field(default_factory=list)  # one per request
    queue: Queue = field(default_factory=Queue)  # reads that have not ended, in order
    places: list[Neighbours] = field(default_factory=list)
    free_time: float = 0.0  # when the link is free, s
    num_reads: int = 0  # reads that brought tokens
    num_tokens: int = 0  # tokens that they brought
    num_refused: int = 0  # reads without room on the host
    seconds: float = 0.0  # time of ended reads on the link


@dataclass(slots=True)
class Told(Record):
    """A span of a request's tokens that the host has copied."""

    row: int = 0
    start: int = 0
    stop: int = 0
