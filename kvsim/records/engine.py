"""Records of a replica: its queues, its steps in flight, and its tables."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import IntEnum

from kvsim.engines.policies import VLLM
from kvsim.engines.records.states import EngineStates, Storage
from kvsim.records.connector import Connector
from kvsim.records.cost import Cost
from kvsim.records.encoder import Encoder, Item
from kvsim.records.fairness import Shares
from kvsim.records.kv import KV
from kvsim.records.offloading import Offloading
from kvsim.records.part import Part
from kvsim.records.queue import Queue
from kvsim.records.record import NONE, Record, Short, Tiny
from kvsim.records.request import Request, Segment


class Outcome(IntEnum):
    """The reason why a replica returned to the host."""

    DONE = 0  # nothing more to do up to the horizon
    PAUSED = 1  # after the most steps asked for
    STUCK = 2  # it has work but schedules none of it
    NEEDS_REQUESTS = 3  # a request has arrived and no record is free
    NEEDS_STEPS = 4  # the table of steps is full
    SCHEDULED = 5  # a watched replica has scheduled a step
    COMPLETED = 6  # or taken in the output of one
    NEEDS_EVENTS = 7  # the log of KV cache events is nearly full
    NEEDS_STATES = 8  # more requests may meet the host cache than there are records for
    DIED = 9  # out of memory where the real scheduler dies of it


(
    DONE,
    PAUSED,
    STUCK,
    NEEDS_REQUESTS,
    NEEDS_STEPS,
    SCHEDULED,
    COMPLETED,
    NEEDS_EVENTS,
    NEEDS_STATES,
    DIED,
) = (int(outcome) for outcome in Outcome)


class Pause(IntEnum):
    """The pause of a replica: NEW admits no new request, ALL schedules nothing."""

    NONE = 0
    NEW = 1
    ALL = 2


NO_PAUSE, PAUSED_NEW, PAUSED_ALL = (int(pause) for pause in Pause)


class Operation(IntEnum):
    """Commands of the host to a radix tree."""

    MATCH = 16
    INSERT = 17
    INSERT_ALL = 18
    LOCK = 19
    UNLOCK = 20
    EVICT = 21
    LOAD = 22
    SEE_COPIES = 23
    EVICT_STATES = 24


MATCH, INSERT, INSERT_ALL, LOCK, UNLOCK, EVICT, LOAD, SEE_COPIES, EVICT_STATES = map(int, Operation)


@dataclass(slots=True)
class Entry(Record):
    """A request's part of a step: its next ``num_tokens`` tokens, up to ``end``."""

    request: Short = 0
    num_tokens: Short = 0
    end: Short = 0
    unfinished: Tiny = 0  # the step does not complete its known tokens: nothing is sampled
    num_drafts: Tiny = 0  # of its tokens, those that are only proposed
    num_accepted: Tiny = 0  # of those, once the step is done
    behind: Tiny = 0  # pipeline stages: calls since its token in flight was scheduled, 0 without


@dataclass(slots=True)
class Batch(Record):
    """A step in flight, and the time of its output."""

    end: float = 0.0
    size: int = 0
    num_drafts: int = 0  # to propose after the step, per request
    num_extends: int = 0  # its first entries, which are prompts or parts of them
    number: int = 0  # among those with tokens; with a connector only
    call: int = 0  # of schedule, likewise
    entries: list[Entry] = field(default_factory=list)
    python: object = None  # the plan of a scheduler that is not a rule


@dataclass(slots=True)
class Admission(Record):
    """A request that joined the batch in the step scheduled last."""

    request: int = 0
    hit: int = 0
    resumed: bool = False


@dataclass(slots=True)
class Limits(Record):
    """Limits and switches of a scheduler; names and meanings are vLLM's."""

    scheduler: int = VLLM
    in_python: bool = False  # a user's class decides
    has_own_loop: bool = (
        False  # the engine's rules replace the loop's, kvsim.engines.rules.own_loop
    )
    max_model_len: int = 0
    max_num_seqs: int = 0
    max_active: int = 0
    max_num_batched_tokens: int = 0
    long_prefill_token_threshold: int = 0
    adaptive: bool = False
    enable_chunked_prefill: bool = True
    by_priority: bool = False
    has_own_priority: bool = False  # by rules of a user's
    reranks: bool = False  # whose priorities change while requests wait
    has_own_victim: bool = False  # of preemption
    fairness: int = 0  # how service is shared out between tenants
    swaps: bool = False
    asynchronous: bool = False
    max_num_scheduled_tokens: int = 0
    prefill_schedule_interval: int = 0  # executed steps between those that carry prefill
    max_num_queued_reqs: int = 0  # requests that the front end admits, 0: any number
    max_num_queued_tokens: int = 0  # tokens of prompts without a first token, likewise
    has_loras: bool = False
    max_loras: int = 0  # different adapters of one batch
    has_grammars: bool = False
    has_pauses: bool = False  # the host may pause it
    has_sessions: bool = False  # requests go on with further inputs
    has_drops: bool = False  # output under way may be dropped, and tokens are numbered
    num_drafts: int = 0  # vLLM's num_speculative_tokens, 0 without speculation
    num_draft_slots: int = 0  # of a step's input, per request
    num_prefill_lookahead_tokens: int = 0  # that the drafter reads beyond a chunk
    num_draft_rows: int = 0
    draw_seed: int = 0  # of how many drafts are accepted
    has_encoder: bool = False
    encoder_budget: int = 0  # tokens that a step may encode
    encoder_cache_size: int = 0
    whole_items: bool = False  # vLLM's disable_chunked_mm_input
    completes_all: bool = False  # requests start only if they and all that run can be completed
    chunk_unit: int = 0  # chunks of prompts are multiples of so many tokens, 0: of any length
    backlog: int = 0  # no records are made while so many requests wait in the queue; 0: always
    clock_ties: bool = False  # arrival times may be equal, as in records of steps
    depth: int = 1  # steps that may be under way at once
    num_stages: int = 1


@dataclass(slots=True)
class Phase(Record):
    """Running requests that allocate or fill a block at the same steps of a run."""

    first: int = NONE
    last: int = NONE
    count: int = 0


@dataclass(slots=True)
class Totals(Record):
    """Exact sums over a run; see :class:`kvsim.results.totals.Totals`."""

    token_states_seconds: float = 0.0
    reservation_seconds: float = 0.0
    internal_seconds: float = 0.0
    external_seconds: float = 0.0
    unallocated_seconds: float = 0.0
    cached_seconds: float = 0.0
    usage_seconds: float = 0.0
    heap_active_seconds: float = 0.0
    heap_reserved_seconds: float = 0.0
    running_seconds: float = 0.0
    busy_seconds: float = 0.0  # in which anybody ran
    waiting_seconds: float = 0.0
    refused_seconds: float = 0.0
    running_while_refused_seconds: float = 0.0
    peak_usage: float = 0.0
    peak_running: int = 0
    peak_token_gap: float = 0.0  # the longest time between two tokens of a request
    num_steps: int = 0
    num_preemptions: int = 0
    num_recomputed_tokens: int = 0
    num_allocation_failures: int = 0
    fetched_bytes: int = 0
    stored_bytes: int = 0
    paged_in_bytes: int = 0
    paged_out_bytes: int = 0
    num_drafts: int = 0  # verifications, as vLLM's spec_decode_num_drafts counts them
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_external_queries: int = 0  # tokens asked of a connector, for requests never preempted
    num_external_tokens: int = 0  # that it had
    num_loads: int = 0  # that requests waited for
    loading_seconds: float = 0.0  # requests that waited for loads, over time
    num_encoder_items: int = 0  # of prompts, when they were first scheduled
    num_found_items: int = 0  # of those, the ones whose contents were encoded already
    num_encoded_items: int = 0
    num_encoded_tokens: int = 0
    num_adapter_switches: int = 0  # that joined a batch
    num_turned_away: int = 0  # requests for which the queue had no place
    num_copied_blocks: int = 0  # by sequences about to write into a shared one
    entry_seconds: float = 0.0  # blocks in the tables of sequences that fork, over time
    forked_seconds: float = 0.0  # and the different ones among them


@dataclass(slots=True)
class MemorySample(Record):
    """A row of the memory table."""

    time: float = 0.0
    replica: Short = 0
    num_running: Short = 0
    num_waiting: Short = 0
    kv_usage: float = 0.0
    token_states: int = 0
    reservation: int = 0
    internal: int = 0
    external: int = 0
    free: int = 0
    cached: int = 0


@dataclass(slots=True)
class StepRow(Record):
    """A row of the steps table."""

    replica: Short = 0
    start_time: float = 0.0
    duration: float = 0.0
    num_scheduled_tokens: int = 0
    num_running: Short = 0
    num_preempted: Short = 0
    flops: float = 0.0
    bytes: float = 0.0


@dataclass(slots=True)
class RequestRow(Record):
    """A row of the requests table."""

    request_id: int = 0
    replica: Short = 0
    arrival_time: float = 0.0
    first_scheduled_time: float = 0.0
    first_token_time: float = 0.0
    finish_time: float = 0.0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: Short = 0
    finish_reason: Tiny = 0
    prefill_replica: Short = NONE
    transfer_time: float = 0.0


@dataclass(slots=True)
class Trace(Record):
    """The requests of a trace, by row, and the arrivals at this replica."""

    num_prompt_tokens: list[int] = field(default_factory=list)
    max_tokens: list[int] = field(default_factory=list)
    segment_offsets: list[int] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    output_content_id: list[int] = field(default_factory=list)
    priority: list[int] = field(default_factory=list)
    cache_salt: list[int] = field(default_factory=list)
    has_samples: bool = False
    num_samples: list[int] = field(default_factory=list)  # if any request has several
    has_ranks: bool = False
    id_rank: list[int] = field(default_factory=list)  # of ids as text, if requests have priorities
    has_loras: bool = False
    lora: list[int] = field(default_factory=list)  # with adapters only
    has_tenants: bool = False
    tenant: list[int] = field(default_factory=list)  # numbered from 0, nobody is one, too
    has_rates: bool = False
    accept_rate: list[float] = field(default_factory=list)  # of every draft, NONE for the replica's
    has_accepts: bool = False
    accepts: list[int] = field(default_factory=list)  # by verification, over and over
    accept_offsets: list[int] = field(default_factory=list)
    next_accept: list[int] = field(default_factory=list)  # by row
    has_drafts: bool = False
    drafts: list[int] = field(default_factory=list)  # drafts proposed, time by time
    draft_offsets: list[int] = field(default_factory=list)
    next_draft: list[int] = field(default_factory=list)
    ready_time: list[float] = field(default_factory=list)  # of grammars
    has_grammar_times: bool = False
    grammar_time: list[float] = field(default_factory=list)  # from arrival on, NONE without
    items: list[Item] = field(default_factory=list)  # that an encoder computes, by offset
    item_offsets: list[int] = field(default_factory=list)
    has_skips: bool = False
    skips_reading: list[int] = field(default_factory=list)  # of the prefix cache
    drops_stale: list[int] = field(default_factory=list)  # by row, where that may be
    numbers: list[int] = field(default_factory=list)  # of output tokens, as they were sampled
    number_offsets: list[int] = field(default_factory=list)  # by row
    next_number: list[int] = field(default_factory=list)
    has_eos: bool = False  # some answers end before the tokens that were asked for
    asked_tokens: list[int] = field(default_factory=list)  # max_tokens, as the scheduler knows it
    has_stops: bool = False  # requests say what they ask for beside the output's length
    has_carried: bool = False
    carried: list[int] = field(default_factory=list)  # tokens that another replica has generated
    stop_at: list[int] = field(default_factory=list)  # the output that is EOS, 0 for none
    session: list[int] = field(default_factory=list)  # by row: whether more inputs may come
    session_stop: list[int] = field(default_factory=list)  # number of its stop token, 0 for none
    session_area: list[int] = field(default_factory=list)  # of segments, where its prompt grows
    num_inputs: list[int] = field(default_factory=list)  # by row, that have come
    next_input: list[int] = field(default_factory=list)  # of those, the first that is not taken
    input_offsets: list[int] = field(default_factory=list)  # by row, in the lists of inputs
    input_tokens: list[int] = field(default_factory=list)
    input_max_tokens: list[int] = field(default_factory=list)
    input_time: list[float] = field(default_factory=list)
    input_segments: list[int] = field(default_factory=list)  # offsets of their segments
    ignores_eos: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)  # submitted, in order of arrival
    arrival_time: list[float] = field(default_factory=list)
    entry_time: list[float] = field(default_factory=list)  # when the engine sees them
    num_arrivals: int = 0
    seen: int = 0  # of the arrivals, the first one that has not come yet
    next: int = 0  # and the first one without a record; those between wait behind the queue


@dataclass(slots=True)
class Replica(Record):
    """The whole state of a replica."""

    index: int = 0
    clock: float = 0.0
    horizon: float = math.inf  # the outside may reach it from then on
    end_time: float = math.inf  # it starts no step from then on
    until_finish: bool = False  # stop at the first time at which a request ends
    watched: bool = False  # stop after every step
    stage_free_time: float = 0.0  # when the first pipeline stage can start a step
    stage_free: list[float] = field(default_factory=list)  # when each can, if there are several
    last_token_time: float = math.nan
    requests: list[Request] = field(default_factory=list)
    free_requests: list[int] = field(default_factory=list)
    num_free_requests: int = 0
    num_requests: int = 0  # records
    next_event_time: float = math.inf  # as last asked for
    never_reject: bool = False  # neither rejects nor gives up when it stands still
    probe: Request = field(default_factory=Request)  # a prompt to look up, not a request here
    found_tokens: int = 0  # of the prompt looked up last
    scraped_waiting: int = 0  # requests, when the host last asked for the load
    scraped_usage: float = 0.0  # share of blocks in use, likewise
    num_started: int = 0  # first tokens so far
    num_prompts_tokens: int = 0  # of the prompts of those
    num_generated_tokens: int = 0  # output tokens so far
    published_waiting: int = 0  # requests, when a step's output was last taken in
    published_running: int = 0
    published_usage: float = 0.0
    num_outstanding: int = 0  # submitted and not ended
    num_ended: int = 0  # since the host last looked
    last_end_time: float = -math.inf  # when a request last ended, if the front end counts them
    num_ended_last: int = 0  # these, and the prompts of those whose first token came then
    num_tokens_last: int = 0
    running: list[int] = field(default_factory=list)
    num_running: int = 0
    waiting: Queue = field(default_factory=Queue)
    heap: list[int] = field(default_factory=list)  # the waiting queue by priority
    order: Part = field(default_factory=Part)  # rules of a user's over queue and preemption
    ranks: list[float] = field(default_factory=list)  # priorities by these, a place per request
    shares: Shares = field(default_factory=Shares)  # of tenants in a fair queue
    skipped: list[int] = field(default_factory=list)  # scratch, a place per request
    growing: list[int] = field(default_factory=list)  # who takes a block in the next step
    num_growing: int = 0
    swapped: list[int] = field(default_factory=list)  # requests in host memory
    num_swapped: int = 0
    ended: list[int] = field(default_factory=list)  # of a static batch that still runs
    num_retired: int = 0
    is_full: bool = False  # a request could not grow, and none has ended since
    kv: KV = field(default_factory=KV)
    limits: Limits = field(default_factory=Limits)
    cost: Cost = field(default_factory=Cost)
    batches: list[Batch] = field(default_factory=list)
    first_batch: int = 0
    num_batches: int = 0
    must_complete: bool = False  # the next event is the end of the oldest step
    admissions: list[Admission] = field(default_factory=list)  # of the step scheduled last
    num_admitted: int = 0
    preempted: list[int] = field(default_factory=list)
    num_preempted: int = 0
    swapped_bytes: int = 0
    refused: bool = False  # the last admission attempt failed for lack of KV room
    head_lookup_failed: bool = False
    decode_only: bool = False  # nothing but decodes went on in the last step
    num_empty_steps: int = 0  # in a row
    pause: int = NO_PAUSE
    num_calls: int = 0  # of schedule
    num_executed: int = 0  # steps with at least one token
    last_prefill: int = 0  # of the executed steps, the last that carried prefill
    budget: int = 0  # tokens that the step being decided may still schedule
    input_budget: int = 0  # and slots of its input
    carries_prefill: bool = False  # the step being decided
    carries_chunk: bool = False  # of a request that was running already
    has_scheduled_running: bool = False
    is_prefill_full: bool = False  # requests that could be admitted had to wait
    num_idle: int = 0  # sessions that wait for an input
    num_deferred: int = 0  # waiting requests that were set aside
    loras: list[int] = field(default_factory=list)  # adapters of the step being decided
    num_loras: int = 0
    num_next_drafts: int = 0  # to propose after the step scheduled last
    accept_rates: list[float] = field(default_factory=list)  # of drafts up to each position
    draft_rows: list[int] = field(default_factory=list)  # first, last, drafts by requests of a step
    ready_clock: float = 0.0  # grammars are compiled up to this time
    offloading: Offloading = field(default_factory=Offloading)
    resume_time: float = -math.inf  # nothing can be scheduled before
    surplus_since: float = (
        math.inf
    )  # all requests have ended by then, only surplus steps came after
    connector: Connector = field(default_factory=Connector)
    encoder: Encoder = field(default_factory=Encoder)
    engines: EngineStates = field(default_factory=EngineStates)
    storage: Storage = field(default_factory=Storage)
    totals: Totals = field(default_factory=Totals)
    trace: Trace = field(default_factory=Trace)
    phases: list[Phase] = field(default_factory=list)
    phase_next: list[int] = field(default_factory=list)
    due: list[int] = field(default_factory=list)  # by place: the step of a run at which to grow
    reached: list[int] = field(default_factory=list)  # and the step that counts are of, else 0
    samples: list[MemorySample] = field(default_factory=list)
    num_samples: int = 0
    stride: int = 1  # every stride-th step is sampled, a power of two
    gaps: list[int] = field(default_factory=list)
    rows: list[RequestRow] = field(default_factory=list)
    record_steps: bool = False
    steps: list[StepRow] = field(default_factory=list)
    num_step_rows: int = 0
    max_step_rows: int = 0
    num_bins: int = 0  # of the memory map
    maps: list[Tiny] = field(default_factory=list)  # causes, by sample and bin
    scheduler: object = None  # a scheduler in Python
    plan_of: object = None  # makes the plan that a cost model in Python prices
