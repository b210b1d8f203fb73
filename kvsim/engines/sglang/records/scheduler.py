"""Records of SGLang's scheduler, and of the progress of requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from kvsim.engines.sglang.records.adapters import Adapters
from kvsim.engines.sglang.records.states import Holding
from kvsim.records.record import NONE, Record, Short


class Order(IntEnum):
    """The order of admission; SGLang's schedule_policy."""

    FCFS = 0
    LPM = 1
    DFS_WEIGHT = 2
    HRRN = 3
    LOF = 4
    SHORTEST_PREFILL_FIRST = 5
    RANDOM = 6


FCFS, LPM, DFS_WEIGHT, HRRN, LOF, SHORTEST_PREFILL_FIRST, RANDOM = map(int, Order)


class Mode(IntEnum):
    """The kind of a batch."""

    NO_BATCH = 0
    EXTEND = 1
    MIXED = 2
    DECODE = 3


NO_BATCH, EXTEND, MIXED, DECODE = map(int, Mode)


class Verdict(IntEnum):
    """The verdict on a prefill pass after a request: it continues, or the reason why it stops."""

    CONTINUE = 0
    NO_TOKEN = 1
    OTHER = 2


CONTINUE, NO_TOKEN, OTHER = map(int, Verdict)


@dataclass(slots=True)
class Delayer(Record):
    """Limits of the delay of prefills, and the state of the current delay."""

    is_on: bool = False
    low_usage: float = 0.0  # share of the fuller pool below which no prefill waits
    queue_ratio: float = 0.0  # waiting requests per running one that end a delay; 0: any number
    most_waited: float = 0.0  # longest delay for these requests, s
    most_at_once: int = 0  # most requests in a prefill so far
    has_spared: bool = False  # the first delay was skipped
    is_asked: bool = False  # this pass has decided
    delays: bool = False  # the decision of this pass
    waits: bool = False  # this pass delays a prefill
    had_waited: bool = False  # the previous pass delayed a prefill
    since: float = 0.0  # start of the current delay, s


@dataclass(slots=True)
class Speculation(Record):
    """The tokens that a step verifies, and the slots that rows have beyond their tokens."""

    is_on: bool = False
    num_verified: int = 1  # draft tokens of a request, the target's own included
    depth: int = 0  # most drafts that a step accepts
    reserve: int = 0  # slots beyond the committed tokens, for two steps


@dataclass(slots=True)
class Progress(Record):
    """The progress of a request; its common record holds ``num_computed_tokens``.

    Its next chunk starts after ``prefix`` matched or computed tokens and stops at ``end``. The
    first ``num_shared`` tokens are in the tree, on the path to ``node``; then come its own pages.
    """

    max_new: Short = 0
    most: Short = 0  # prompt tokens plus ``max_new``
    ignores_eos: bool = False
    prefix: Short = 0
    end: Short = 0
    num_known: Short = 0  # tokens known when its batch was built
    num_shared: Short = 0
    num_inserted: Short = 0
    node: Short = 0  # last node that it locks
    row: Short = NONE
    page: Short = 0
    last_page: Short = 0
    before_last: Short = 0  # the page before the last one; 0 if unknown
    num_pages: Short = 0
    num_slots: Short = 0  # of its row, the reserve for drafts included; 0 without drafts
    num_on_device: Short = 0  # outputs, those of steps in flight included
    num_internal: Short = 0  # slots in its last page that it will not use
    dead: Short = 0  # its first tokens, which have no window slots
    dead_page: Short = 0  # own page after these tokens, if some of them are in own pages
    branch: Short = 0  # tokens that a match passed, if it could not resume after them; else 0
    edge: int = 0  # mark up to which it locks window slots
    num_middle: Short = 0  # batches in flight that yield no token for it
    num_extends: Short = 0  # prefills since it was admitted
    num_loaded: Short = 0  # tokens that its last load brought from the host
    has_decoded: bool = False  # since its last prefill
    number: int = 0  # of its last entry into the queue
    seen: int = 0  # tokens processed by the replica when it entered
    waits_since: float = 0.0  # when it entered, in the time of adapter loads
    is_retracted: bool = False
    is_aborted: bool = False  # ends with its next token
    is_listed: bool = False  # in the running batch or the last one
    tried_known: int = 0  # tokens at the last attempt to admit it
    tried_prefix: int = 0  # tokens matched then
    is_victim: bool = False
    is_late: bool = False  # deferred after another request with the same first tokens
    group: int = 0  # key of requests with the same first tokens
    matched: int = 0  # last node of its last match in the queue
    num_match: int = 0
    first: float = 0.0  # sort keys
    second: float = 0.0
    third: int = 0


@dataclass(slots=True)
class Sglang(Record):
    """The scheduler's settings and state; names are SGLang's."""

    page_size: int = 1
    pool_size: int = 0  # max_total_num_tokens
    context_len: int = 0
    max_running: int = 0
    chunk_size: int = 0  # 0 for off
    max_prefill_tokens: int = 0
    prefill_max_requests: int = 0  # 0 for no limit
    order: int = FCFS
    mixes: bool = False
    by_priority: bool = False
    sign: int = -1  # 1 if low values go first
    preempts: bool = False
    threshold: int = 0
    retracts_by_priority: bool = False
    init_ratio: float = 0.7
    min_ratio: float = 0.14
    decay: float = 0.0
    max_new_tokens: int = 0  # of every request; 0: the request's output length
    ignore_eos: bool = False
    max_queued: int = 0  # most waiting requests; 0 for no limit
    recv_interval: int = 1  # passes that only decode, before requests are received
    decode_interval: int = 0  # passes without prefill after a prefill
    decode_interval_min: int = 0  # running requests below which that interval ends
    min_free_slots: int = 0  # free places that admission needs while requests are running
    words: list[int] = field(default_factory=list)  # of the random generator (policy random)
    num_drawn: int = 0  # of these words, so far

    progress: list[Progress] = field(default_factory=list)  # one per request
    speculation: Speculation = field(default_factory=Speculation)
    adapters: Adapters = field(default_factory=Adapters)
    delayer: Delayer = field(default_factory=Delayer)
    held: list[Holding] = field(default_factory=list)  # slots of states, one per request
    ratio: float = 0.7
    is_full: bool = False  # the running batch takes no more requests
    running: list[int] = field(default_factory=list)
    num_running: int = 0
    running_tokens: int = 0  # of the prefill from which the running batch was made
    last: list[int] = field(default_factory=list)  # the last batch, if a prefill
    num_last: int = 0
    last_mode: int = NO_BATCH
    last_tokens: int = 0
    last_chunked: int = NONE
    chunked: int = NONE
    rows: list[int] = field(default_factory=list)  # free rows
    num_rows: int = 0
    num_entries: int = 0  # into the queue so far
    processed: int = 0
    sorts_by_tree: bool = False
    num_sorts: int = 0  # sorts without matches
    has_ended: bool = False  # a request has ended that may be listed as running
    may_finish: bool = False  # the next token of a request may be its last
    is_idle: bool = True
    is_deaf: bool = False  # requests that arrive are not received before the next pass
    num_deaf: int = 0  # passes since requests were received; a prefill counts as 1000
    num_decodes_due: int = 0  # before the next prefill
    is_dead: bool = False  # out of memory in a prefill
    order_now: list[int] = field(default_factory=list)  # scratch: requests to sort
    merged: list[int] = field(default_factory=list)  # scratch
    admitted: list[int] = field(default_factory=list)
    num_admitted: int = 0
    preempted: list[int] = field(default_factory=list)  # in this pass
    num_preempted: int = 0
    num_fruitless: int = 0  # passes that preempted since a request last got a token

    budget: float = 0.0  # tokens promised so far in the pass
    current: int = 0  # tokens taken so far in the pass
    rem_input: int = 0
    rem_chunk: int = 0
    num_mixed: int = 0
    window_budget: int = 0  # window slots promised so far in the pass
    num_states: int = -1  # entries of ``states_left``, ``states_held``; -1 until they are made
    states_left: list[float] = field(default_factory=list)
    states_held: list[int] = field(default_factory=list)
