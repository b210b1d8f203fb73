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

    num_tokens: int = 0  # 0 for nothing
    start: int = 0  # the first of these tokens in the prompt
    page: int = 0
    last_page: int = 0
    node: int = 0  # that is held on the host meanwhile; 0 for none
    node_start: int = 0  # where it began; splits make more of it
    asked: float = 0.0  # when
    begins: float = -1.0  # -1 while others are before it
    base: float = 0.0  # seconds of the read, and of a token of it
    token_time: float = 0.0
    is_done: bool = False


@dataclass(slots=True)
class Storage(Record):
    """The settings of reads, and the reads in flight; a replica's link has one at a time."""

    is_on: bool = False
    stop_rule: int = BEST_EFFORT
    least: int = 256  # tokens, hicache_storage_prefetch_threshold
    timeout: float = 1.0  # seconds, and of a token
    timeout_per_token: float = 0.0
    offered: list[int] = field(default_factory=list)  # by row: first tokens that are there
    held: list[int] = field(default_factory=list)  # by row: that both tiers had then
    base: list[float] = field(default_factory=list)  # by row: seconds to read what is beyond
    token_time: list[float] = field(default_factory=list)  # and of a token of it
    reads: list[Read] = field(default_factory=list)  # beside the requests
    queue: Queue = field(default_factory=Queue)  # reads that have not ended, in order
    places: list[Neighbours] = field(default_factory=list)
    free_time: float = 0.0  # of the link
    num_reads: int = 0  # that brought anything
    num_tokens: int = 0  # that they brought
    num_refused: int = 0  # that found no room on the host
    seconds: float = 0.0  # that those which ended on the link took there


@dataclass(slots=True)
class Told(Record):
    """A span of a request's tokens that the host has copied."""

    row: int = 0
    start: int = 0
    stop: int = 0
