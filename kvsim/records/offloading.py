"""Records of native CPU offloading: requests' parts of the host cache, and copies in flight."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvsim.records.host_cache import HostCache
from kvsim.records.queue import Queue
from kvsim.records.record import NONE, Record, Short, Tiny

# What a request has had to do with a chunk.
MISSED, REUSED, STORED = 1, 2, 4


@dataclass(slots=True)
class OffloadGroup(Record):
    """Chunks of a KV-cache group: ``blocks_per_chunk`` of its blocks each."""

    chunk_tokens: int = 0
    keys_per_chunk: int = 1
    first_chunk: int = 0  # of the group in a request's lists by chunk
    first_block: int = 0  # and in those by block
    window: int = 0  # tokens of a sliding window, 0 for full attention
    num_needed: int = 0  # blocks that a hit's end needs, in a window
    run: int = 0  # chunks that it needs
    blocks_per_segment: int = 0  # between ends that later hits may have, 0 for none
    keeps_all: bool = True  # every block may be the end of a hit, or near it


@dataclass(slots=True)
class OffloadState(Record):
    """A request's side of offloading, from its first admission until it has been stored."""

    row: int = NONE  # in the trace
    number: int = 0  # its rank among requests that met the host cache, 0 before
    num_jobs: int = 0  # copies under way
    first_job: int = NONE  # its stores under way
    num_tokens: int = 0  # when it finished
    num_prompt_tokens: int = 0
    num_stored_tokens: int = 0  # most that a finished request stores
    shared_prefix_boundary: int = 0
    keys: list[int] = field(default_factory=list)  # by chunk, group after group
    marks: list[int] = field(default_factory=list)
    num_keys: list[int] = field(default_factory=list)  # by group
    cursors: list[int] = field(default_factory=list)  # the next chunk to store
    num_known: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)  # as scheduled, group after group
    since: list[int] = field(default_factory=list)  # the step in which it got each


@dataclass(slots=True)
class Job(Record):
    """A copy in flight between GPU and host."""

    number: int = 0
    state: int = NONE
    row: int = NONE
    is_load: bool = False
    is_sync: bool = False
    step: int = 0  # that began it
    num_blocks: int = 0
    due: float = 0.0  # reported with the first step from then on
    latest: float = 0.0  # due without a flush
    flushed: int = NONE  # the last step that waited for it
    first_block: int = NONE
    last_block: int = NONE
    first_chunk: int = NONE
    last_chunk: int = NONE
    next: int = NONE  # by due
    previous: int = NONE
    next_of_state: int = NONE  # among the stores of its request, or the next free record
    previous_of_state: int = NONE


@dataclass(slots=True)
class JobBlock(Record):
    """A GPU block that a job reads or writes."""

    block: Short = 0
    job: Short = NONE
    next: Short = NONE  # of the job, or the next free record
    next_watch: Short = NONE  # of those who read the same block
    previous_watch: Short = NONE
    watched: Tiny = 0  # the job has to end before somebody else uses the block
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
    place: Short = 0  # in the group
    chunk: Short = 0  # where it is in host memory
    is_missing: Tiny = 0


@dataclass(slots=True)
class Offloading(Record):
    """The whole state of offloading, laid out if it is on."""

    host: HostCache = field(default_factory=HostCache)
    groups: list[OffloadGroup] = field(default_factory=list)
    num_groups: int = 0
    by_need: list[int] = field(default_factory=list)  # groups: full ones, then longest windows
    num_full: int = 0  # of these
    blocks_per_chunk: int = 1
    segment: int = 0  # tokens: ends of hits are multiples of it
    prompt_only: bool = True
    keeps_boundaries: bool = True  # ends that later hits may have follow from prompts
    sync_load_budget: int = 0  # tokens of a step's loads that the step itself waits for
    num_sync_tokens: int = 0  # of the step being decided
    load_steps: int = 1
    store_steps: int = 1
    timed: bool = False  # copies take time on a link, instead of steps
    block_time: float = 0.0  # seconds to copy a block one way
    copy_time: float = 0.0  # fixed, of a job
    load_free_time: float = 0.0  # when the link is free, to the GPU
    store_free_time: float = 0.0  # and to the host
    store_begin_time: float = 0.0  # since when it has been copying without a pause, to the host
    now: float = 0.0  # when the step being decided is decided
    ready_time: float = 0.0  # and when its results are there
    wait_time: float = 0.0  # it must not start before
    slow_time: float = 0.0  # what stores under way add to it
    num_loaded_blocks: int = 0  # by jobs of the step being decided
    num_stored_blocks: int = 0
    states: list[OffloadState] = field(default_factory=list)
    state_of: list[int] = field(default_factory=list)  # by row of the trace, plus 1; 0 for none
    next_bookkeeping_at: list[int] = field(
        default_factory=list
    )  # by request: tokens, as of its last store
    free_states: list[int] = field(default_factory=list)
    num_free_states: int = 0
    finished: list[int] = field(default_factory=list)  # states, since the last step
    num_finished: int = 0
    has_unpublished: bool = False  # a request has ended since the last schedule
    offers: list[Offer] = field(default_factory=list)  # scratch
    jobs: list[Job] = field(default_factory=list)
    free_job: int = NONE
    num_made_jobs: int = 0
    last_job: int = NONE  # number given last
    loads: Queue = field(default_factory=Queue)  # under way, by due
    stores: Queue = field(default_factory=Queue)
    blocks: list[JobBlock] = field(default_factory=list)
    free_block: int = NONE
    num_made_blocks: int = 0
    chunks: list[JobChunk] = field(default_factory=list)
    free_chunk: int = NONE
    num_made_chunks: int = 0
    watchers: list[int] = field(default_factory=list)  # by GPU block, the first one plus 1
    got: list[int] = field(default_factory=list)  # by GPU block, the step that handed it out
    num_states: int = 0
    reported: list[int] = field(default_factory=list)  # jobs, with the last step taken in
    num_reported: int = 0
