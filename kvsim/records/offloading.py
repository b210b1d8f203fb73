"""Records of native CPU offloading: the state of each request, and the copies in flight."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvsim.records.host_cache import HostCache
from kvsim.records.queue import Queue
from kvsim.records.record import NONE, Record, Short, Tiny

# Marks of a request on a chunk: the request missed the chunk, hit it, or stored it.
MISSED, REUSED, STORED = 1, 2, 4


@dataclass(slots=True)
class OffloadGroup(Record):
    """Chunks of a KV-cache group, each of ``blocks_per_chunk`` blocks."""

    chunk_tokens: int = 0
    keys_per_chunk: int = 1
    first_chunk: int = 0  # index of the group's first chunk in a request's lists by chunk
    first_block: int = 0  # index of the group's first block in a request's lists by block
    window: int = 0  # tokens of a sliding window, 0 for full attention
    num_needed: int = 0  # blocks of a window that a hit needs before its end
    run: int = 0  # chunks of a window that a hit needs before its end
    blocks_per_segment: int = 0  # blocks between possible ends of later hits, 0 for none
    keeps_all: bool = True  # a later hit may need any block
    is_state: bool = False  # a hit needs the state at its end alone


@dataclass(slots=True)
class OffloadState(Record):
    """The offloading state of a request, from its first admission to its last store."""

    row: int = NONE  # in the trace
    number: int = 0  # ranks its chunks under LRU; 0 before it uses the host cache
    num_jobs: int = 0  # its copies in flight
    first_job: int = NONE  # first of its stores in flight
    num_prompt_tokens: int = 0
    num_stored_tokens: int = 0  # tokens that are stored once it has finished
    shared_prefix_boundary: int = 0
    keys: list[int] = field(default_factory=list)  # by chunk, group after group
    marks: list[int] = field(default_factory=list)  # by chunk: MISSED, REUSED, STORED
    num_keys: list[int] = field(default_factory=list)  # by group: known keys
    cursors: list[int] = field(default_factory=list)  # by group: the next chunk to store
    num_known: list[int] = field(default_factory=list)  # by group: known blocks
    blocks: list[int] = field(default_factory=list)  # GPU blocks, group after group
    since: list[int] = field(default_factory=list)  # by block: the step that allocated it


@dataclass(slots=True)
class Job(Record):
    """A copy in flight between GPU and host."""

    number: int = 0
    state: int = NONE
    row: int = NONE
    is_load: bool = False
    is_sync: bool = False
    step: int = 0  # the step that started it
    num_blocks: int = 0
    due: float = 0.0  # step or time at which it is reported
    latest: float = 0.0  # ``due`` if it is not flushed
    flushed: int = NONE  # the last step that waited for it
    first_block: int = NONE
    last_block: int = NONE
    first_chunk: int = NONE
    last_chunk: int = NONE
    next: int = NONE  # neighbours in the queue by ``due``
    previous: int = NONE
    next_of_state: int = NONE  # next store of its request, or next free record
    previous_of_state: int = NONE


@dataclass(slots=True)
class JobBlock(Record):
    """A GPU block that a job reads or writes."""

    block: Short = 0
    job: Short = NONE
    next: Short = NONE  # next block of the job, or next free record
    next_watch: Short = NONE  # neighbours among the jobs that watch the block
    previous_watch: Short = NONE
    watched: Tiny = 0  # 1 if the job must end before another request uses the block
    is_window: Tiny = 0


@dataclass(slots=True)
class JobChunk(Record):
    """A chunk that a job reads or writes."""

    chunk: Short = 0
    next: Short = NONE


@dataclass(slots=True)
class Offer(Record):
    """A chunk of a request that is offered to the host cache."""

    key: int = 0
    order: int = 0
    group: Short = 0
    place: Short = 0  # index of the chunk in the group
    chunk: Short = 0  # index of its record in the host cache
    is_missing: Tiny = 0


@dataclass(slots=True)
class Offloading(Record):
    """The whole state of offloading; empty if offloading is off."""

    host: HostCache = field(default_factory=HostCache)
    groups: list[OffloadGroup] = field(default_factory=list)
    num_groups: int = 0
    by_need: list[int] = field(default_factory=list)  # groups: full ones, then longest windows
    num_full: int = 0  # number of groups with full attention
    blocks_per_chunk: int = 1
    segment: int = 0  # tokens: ends of hits are multiples of it
    prompt_only: bool = True
    keeps_boundaries: bool = True  # later hits may end where prompts or shared prefixes end
    sync_load_budget: int = 0  # most tokens of loads that a step waits for
    num_sync_tokens: int = 0  # such tokens of the step being scheduled
    load_steps: int = 1  # steps that a load takes, if copies are not timed
    store_steps: int = 1
    timed: bool = False  # copies take time on a link, instead of steps
    block_time: float = 0.0  # seconds to copy a block one way
    copy_time: float = 0.0  # fixed seconds of a job
    load_free_time: float = 0.0  # time at which the link to the GPU is free
    store_free_time: float = 0.0  # time at which the link to the host is free
    store_begin_time: float = 0.0  # start of the stores that have followed without a pause
    now: float = 0.0  # time at which the step is scheduled
    ready_time: float = 0.0  # time at which the step's KV can be stored
    wait_time: float = 0.0  # earliest start of the step: loads and flushes end by then
    slow_time: float = 0.0  # seconds that stores in flight add to the step
    num_loaded_blocks: int = 0  # by jobs of the step being scheduled
    num_stored_blocks: int = 0
    states: list[OffloadState] = field(default_factory=list)
    state_of: list[int] = field(default_factory=list)  # by row: index of its state + 1, 0 for none
    next_bookkeeping_at: list[int] = field(default_factory=list)  # by request: tokens
    free_states: list[int] = field(default_factory=list)
    num_free_states: int = 0
    finished: list[int] = field(default_factory=list)  # states, since the last step
    num_finished: int = 0
    has_unpublished: bool = False  # a request has ended since the last step was scheduled
    offers: list[Offer] = field(default_factory=list)  # scratch
    jobs: list[Job] = field(default_factory=list)
    free_job: int = NONE
    num_made_jobs: int = 0
    last_job: int = NONE  # number of the newest job
    loads: Queue = field(default_factory=Queue)  # jobs in flight, by ``due``
    stores: Queue = field(default_factory=Queue)
    blocks: list[JobBlock] = field(default_factory=list)
    free_block: int = NONE
    num_made_blocks: int = 0
    chunks: list[JobChunk] = field(default_factory=list)
    free_chunk: int = NONE
    num_made_chunks: int = 0
    watchers: list[int] = field(default_factory=list)  # by GPU block: first watching `JobBlock` + 1
    got: list[int] = field(default_factory=list)  # by GPU block: the step that allocated it last
    num_states: int = 0
    reported: list[int] = field(default_factory=list)  # jobs that ended with the last step's output
    num_reported: int = 0
