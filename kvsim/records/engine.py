"""Records of a replica: its queues, its steps in flight, and the rows of its result tables."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

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
    """The reason for which a replica returned control to the host, the Python code that runs it."""

    DONE = 0  # nothing more to do up to the horizon
    PAUSED = 1  # the maximum number of steps was reached
    STUCK = 2  # it has work but schedules none of it
    NEEDS_REQUESTS = 3  # a request has arrived, but no record is free
    NEEDS_STEPS = 4  # the table of steps is full
    SCHEDULED = 5  # a watched replica has scheduled a step
    COMPLETED = 6  # a watched replica has processed a step's output
    NEEDS_EVENTS = 7  # the log of KV cache events is nearly full
    NEEDS_STATES = 8  # too few records for the requests that may use the host cache
    DIED = 9  # out of memory, where the real scheduler crashes


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
    """The pause of a replica: under NEW it admits no request, under ALL it schedules nothing."""

    NONE = 0
    NEW = 1
    ALL = 2


NO_PAUSE, PAUSED_NEW, PAUSED_ALL = (int(pause) for pause in Pause)


class Operation(IntEnum):
    """Commands that the host sends to a radix tree."""

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
    unfinished: Tiny = 0  # 1 if known tokens remain after the step, so that nothing is sampled
    num_drafts: Tiny = 0  # drafts among its tokens
    num_accepted: Tiny = 0  # accepted drafts, set when the step has ended
    behind: Tiny = 0  # pipeline stages: calls of schedule since its token in flight, 0 without one


@dataclass(slots=True)
class Batch(Record):
    """A step in flight; its output is available at ``end``, in seconds."""

    end: float = 0.0
    size: int = 0
    num_drafts: int = 0  # drafts to propose after the step, per request
    num_extends: int = 0  # leading entries that are prompts or prompt chunks
    number: int = 0  # with a connector: its number among steps with tokens
    call: int = 0  # with a connector: its number among all calls of schedule
    entries: list[Entry] = field(default_factory=list)
    python: Any = None  # the plan of a scheduler in Python


@dataclass(slots=True)
class Admission(Record):
    """A request that joined the batch in the step scheduled last."""

    request: int = 0
    hit: int = 0
    resumed: bool = False


@dataclass(slots=True)
class Limits(Record):
    """Limits and switches of a scheduler; fields with vLLM's names have vLLM's meaning."""

    scheduler: int = VLLM
    in_python: bool = False  # a user's class schedules
    has_own_loop: bool = False  # rules of kvsim.engines.rules.own_loop replace those of the loop
    max_model_len: int = 0
    max_num_seqs: int = 0
    max_active: int = 0
    max_num_batched_tokens: int = 0
    long_prefill_token_threshold: int = 0
    adaptive: bool = False
    enable_chunked_prefill: bool = True
    by_priority: bool = False
    has_own_priority: bool = False  # a user's rules set priorities
    reranks: bool = False  # these priorities change while requests wait
    has_own_victim: bool = False  # a user's rules choose the request to preempt
    fairness: int = 0  # a `Fairness`
    swaps: bool = False
    asynchronous: bool = False
    max_num_scheduled_tokens: int = 0
    max_num_queued_reqs: int = 0  # most unfinished requests of the front end, 0: no limit
    max_num_queued_tokens: int = 0  # most prompt tokens without a first token, 0: no limit
    has_loras: bool = False
    has_grammars: bool = False
    has_pauses: bool = False  # the host may pause the replica
    has_sessions: bool = False  # requests may continue with further inputs
    has_drops: bool = False  # output in flight may be dropped, so output tokens are numbered
    num_drafts: int = 0  # vLLM's num_speculative_tokens, 0 without speculation
    num_draft_slots: int = 0  # slots of a step's input for drafts, per request
    num_prefill_lookahead_tokens: int = 0  # tokens after a chunk that the drafter reads
    num_draft_rows: int = 0
    draw_seed: int = 0  # seed of the numbers of accepted drafts
    has_encoder: bool = False
    encoder_budget: int = 0  # tokens that a step may encode
    encoder_cache_size: int = 0
    whole_items: bool = False  # vLLM's disable_chunked_mm_input
    completes_all: bool = False  # admit only if the new and all running requests can complete
    chunk_unit: int = 0  # prompt chunks are multiples of this number of tokens, 0: of any length
    backlog: int = 0  # most requests of the queue with records, 0: no limit
    clock_ties: bool = False  # arrival times may be equal, as in recorded cases
    depth: int = 1  # most steps in flight
    num_stages: int = 1
    has_features: bool = False  # any class of kvsim.features is on


@dataclass(slots=True)
class Phase(Record):
    """Linked list of running requests that allocate or fill a block in the same steps.

    A run is a series of decode steps of the same requests.
    """

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
    busy_seconds: float = 0.0  # time with at least one running request
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
    num_external_queries: int = 0  # tokens queried from a connector, without preempted requests
    num_external_tokens: int = 0  # tokens of these that the connector had
    num_loads: int = 0  # loads that requests waited for
    loading_seconds: float = 0.0  # number of requests in the second queue, integrated over time
    num_encoder_items: int = 0  # items of prompts, counted when they are first looked up
    num_found_items: int = 0  # items among these that were in the encoder cache
    num_encoded_items: int = 0
    num_encoded_tokens: int = 0
    num_adapter_switches: int = 0  # adapters that joined a batch
    num_turned_away: int = 0  # requests that the front end rejected
    num_copied_blocks: int = 0  # shared blocks that were copied before a write
    entry_seconds: float = 0.0  # block-table entries of forked sequences, integrated over time
    forked_seconds: float = 0.0  # distinct blocks of these entries, integrated over time


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
    """The requests of a trace, by row, and the arrivals at this replica, in order."""

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
    id_rank: list[int] = field(default_factory=list)  # rank of ids as text, with priorities only
    has_loras: bool = False
    lora: list[int] = field(default_factory=list)  # number of the adapter, 0 for none
    has_tenants: bool = False
    tenant: list[int] = field(default_factory=list)  # number; requests without one share one
    has_rates: bool = False
    accept_rate: list[float] = field(default_factory=list)  # per draft; NONE: the replica's rates
    has_accepts: bool = False
    accepts: list[int] = field(default_factory=list)  # accepted drafts by verification, cyclic
    accept_offsets: list[int] = field(default_factory=list)
    next_accept: list[int] = field(default_factory=list)  # by row
    has_drafts: bool = False
    drafts: list[int] = field(default_factory=list)  # proposed drafts by step, cyclic
    draft_offsets: list[int] = field(default_factory=list)
    next_draft: list[int] = field(default_factory=list)
    ready_time: list[float] = field(default_factory=list)  # time at which the grammar is compiled
    has_grammar_times: bool = False
    grammar_time: list[float] = field(default_factory=list)  # seconds to compile it, NONE without
    items: list[Item] = field(default_factory=list)  # encoder inputs of each row, by offset
    item_offsets: list[int] = field(default_factory=list)
    has_skips: bool = False
    skips_reading: list[int] = field(default_factory=list)  # 1 if it skips the prefix cache
    drops_stale: list[int] = field(default_factory=list)  # with `Limits.has_drops` only
    numbers: list[int] = field(default_factory=list)  # sampling number of each output token
    number_offsets: list[int] = field(default_factory=list)  # by row
    next_number: list[int] = field(default_factory=list)
    has_eos: bool = False  # some outputs end before their max_tokens
    asked_tokens: list[int] = field(default_factory=list)  # max_tokens that the scheduler knows
    has_stops: bool = False  # requests have ``stop_at`` and ``ignores_eos``
    has_carried: bool = False
    carried: list[int] = field(default_factory=list)  # tokens that another replica has generated
    stop_at: list[int] = field(default_factory=list)  # number of the output token EOS, 0 for none
    session: list[int] = field(default_factory=list)  # 1 if more inputs may come, 2 after the last
    session_stop: list[int] = field(default_factory=list)  # number of its stop token, 0 for none
    session_area: list[int] = field(default_factory=list)  # index in ``segments`` for its prompt
    num_inputs: list[int] = field(default_factory=list)  # inputs that have arrived
    next_input: list[int] = field(default_factory=list)  # the first of these not yet used
    input_offsets: list[int] = field(default_factory=list)  # by row, in the next lists
    input_tokens: list[int] = field(default_factory=list)
    input_max_tokens: list[int] = field(default_factory=list)
    input_time: list[float] = field(default_factory=list)
    input_segments: list[int] = field(default_factory=list)  # offsets in ``segments``
    ignores_eos: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)  # rows in order of arrival
    arrival_time: list[float] = field(default_factory=list)
    entry_time: list[float] = field(default_factory=list)  # time at which the engine sees it
    num_arrivals: int = 0
    seen: int = 0  # the first arrival that is still in the future
    next: int = 0  # the first arrival without a record; from it up to ``seen``, arrivals wait


@dataclass(slots=True)
class Replica(Record):
    """The whole state of a replica."""

    index: int = 0
    clock: float = 0.0
    horizon: float = math.inf  # earliest time at which another part can affect the replica
    end_time: float = math.inf  # no step starts at this time or later
    until_finish: bool = False  # stop when a request ends
    watched: bool = False  # stop after every step
    stage_free_time: float = 0.0  # time at which the first pipeline stage can start a step
    stage_free: list[float] = field(default_factory=list)  # by stage, if there are several
    last_token_time: float = math.nan
    requests: list[Request] = field(default_factory=list)
    free_requests: list[int] = field(default_factory=list)
    num_free_requests: int = 0
    num_requests: int = 0  # records in ``requests``, free ones included
    next_event_time: float = math.inf  # as of the last command that computes it
    quiet_until: float = -math.inf  # no request ends or gets its first token before
    never_reject: bool = False  # rejects no request, and does not stop without progress
    probe: Request = field(default_factory=Request)  # scratch request for look-ups of prompts
    found_tokens: int = 0  # result of the last such look-up
    scraped_waiting: int = 0  # waiting requests when the host last read the load
    scraped_usage: float = 0.0  # share of blocks in use at that time
    num_started: int = 0  # requests that have got their first token
    num_prompts_tokens: int = 0  # prompt tokens of these requests
    num_generated_tokens: int = 0  # output tokens so far
    published_waiting: int = 0  # metrics after the last processed output
    published_running: int = 0
    published_usage: float = 0.0
    num_outstanding: int = 0  # requests submitted and not ended
    num_ended: int = 0  # requests that ended since the host last read this counter
    last_end_time: float = -math.inf  # last end of a request, if the front end has limits
    num_ended_last: int = 0  # requests that ended at that time
    num_tokens_last: int = 0  # their prompt tokens, if their first token came at that time, too
    running: list[int] = field(default_factory=list)
    num_running: int = 0
    waiting: Queue = field(default_factory=Queue)
    heap: list[int] = field(default_factory=list)  # the waiting queue by priority
    features: list[Part] = field(default_factory=list)  # the states of kvsim.features, in order
    order: Part = field(default_factory=Part)  # a user's rules for priority and preemption
    ranks: list[float] = field(default_factory=list)  # by request: its priority by these rules
    shares: Shares = field(default_factory=Shares)  # the state of a fair queue
    skipped: list[int] = field(default_factory=list)  # scratch, by request
    growing: list[int] = field(default_factory=list)  # requests that allocate in the next step
    num_growing: int = 0
    swapped: list[int] = field(default_factory=list)  # requests in host memory
    num_swapped: int = 0
    ended: list[int] = field(default_factory=list)  # ended requests of a running static batch
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
    refused: bool = False  # the last admission attempt was refused for lack of KV memory
    head_lookup_failed: bool = False
    decode_only: bool = False  # the last step computed only decodes
    num_empty_steps: int = 0  # consecutive empty steps
    pause: int = NO_PAUSE
    num_calls: int = 0  # calls of schedule
    budget: int = 0  # tokens that the current step may still schedule
    input_budget: int = 0  # slots of the current step's input that are left
    carries_prefill: bool = False  # the current step has prefill
    carries_chunk: bool = False  # the current step has a chunk of a running request
    has_scheduled_running: bool = False
    num_idle: int = 0  # sessions that wait for an input
    num_deferred: int = 0  # waiting requests that were skipped
    loras: list[int] = field(default_factory=list)  # adapters of the current step
    num_loras: int = 0
    num_lora_slots: int = 0  # most of these
    num_next_drafts: int = 0  # drafts to propose after the last scheduled step, per request
    accept_rates: list[float] = field(default_factory=list)  # P(all drafts up to it are accepted)
    draft_rows: list[int] = field(default_factory=list)  # (first, last, drafts) by size of a step
    ready_clock: float = 0.0  # time up to which grammars are compiled
    offloading: Offloading = field(default_factory=Offloading)
    resume_time: float = -math.inf  # nothing can be scheduled before this time
    surplus_since: float = math.inf  # end of the last request; later steps were surplus
    connector: Connector = field(default_factory=Connector)
    encoder: Encoder = field(default_factory=Encoder)
    engines: EngineStates = field(default_factory=EngineStates)
    storage: Storage = field(default_factory=Storage)
    totals: Totals = field(default_factory=Totals)
    trace: Trace = field(default_factory=Trace)
    phases: list[Phase] = field(default_factory=list)
    phase_next: list[int] = field(default_factory=list)
    due: list[int] = field(default_factory=list)  # by running request: step of a run that grows it
    reached: list[int] = field(default_factory=list)  # step of a run that its counts describe
    samples: list[MemorySample] = field(default_factory=list)
    num_samples: int = 0
    stride: int = 1  # every stride-th step is sampled; a power of two
    gaps: list[int] = field(default_factory=list)  # tokens by bin of the gap before them
    first_gap: int = 1 << 21  # the first of these bins with a token, behind all if none has
    rows: list[RequestRow] = field(default_factory=list)
    record_steps: bool = False
    steps: list[StepRow] = field(default_factory=list)
    num_step_rows: int = 0
    max_step_rows: int = 0
    num_bins: int = 0  # bins of the memory map
    maps: list[Tiny] = field(default_factory=list)  # causes, by sample and bin
    scheduler: Any = None  # a scheduler in Python
    plan_of: Any = None  # function that makes the plan for a cost model in Python
