"""Records of routers: a request to place, the replicas as a gateway sees them, random draws."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from kvsim.records.engine import Replica
from kvsim.records.record import NONE, Record, Short


@dataclass(slots=True)
class Draws(Record):
    """Random words of 64 bits, drawn in bulk and stored as halves, the lower half first."""

    halves: list[int] = field(default_factory=list)
    num_words: int = 0
    next_word: int = 0
    upper: int = NONE  # upper half of the last word, if only its lower half was used


@dataclass(slots=True)
class Candidate(Record):
    """A replica as a gateway sees it.

    ``num_outstanding``, ``num_waiting`` and ``num_running`` count requests.
    """

    index: int = 0
    num_outstanding: int = 0
    num_prompt_tokens: int = 0  # prompts of this gateway's requests on the replica
    num_uncached_tokens: int = 0  # predicted, of those of its requests without a first token
    as_of: float = 0.0  # time of the last scrape, which set the next five values
    num_waiting: int = 0
    num_running: int = 0
    kv_usage: float = 0.0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    cached_tokens: int = 0  # predicted hit of the request to place
    num_entries: int = 0  # the replica's entries in the index of prefixes
    num_blocks: int = 0  # distinct blocks of the prompts on the replica
    queued_seconds: float = 0.0  # predicted, of those of its requests without a first token
    own_seconds: float = 0.0  # predicted until the first token of the request to place, if alone
    step_seconds: float = 0.0  # predicted, of a step that also decodes the request to place


@dataclass(slots=True)
class Placement(Record):
    """A request, and the replicas that may serve it."""

    request_id: int = 0
    num_prompt_tokens: int = 0
    num_entries: int = 0  # entries that the prompt has in the index of prefixes
    entry_tokens: int = 1  # tokens of an entry
    least_held: int = 0  # tokens of the shortest and the longest match of any replica
    most_held: int = 0
    ring_key: int = 0  # position of the request on a hash ring; NONE without a session
    candidates: list[Candidate] = field(default_factory=list)
    num_candidates: int = 0
    costs: list[float] = field(default_factory=list)  # scratch, by candidate
    draws: Draws = field(default_factory=Draws)
    branch: int = 0  # the branch of the router's rule that made the choice


@dataclass(slots=True)
class CountedSince(Record):
    """State of vllm-dp: requests sent to each replica since its last scrape."""

    counts_sent: bool = True
    sent: list[int] = field(default_factory=list)
    as_of: list[float] = field(default_factory=list)


@dataclass(slots=True)
class TokenRates(Record):
    """State of aibrix-throughput: each replica's counters at its last scrape, and its rate."""

    as_of: list[float] = field(default_factory=list)
    prompt_tokens: list[int] = field(default_factory=list)
    generation_tokens: list[int] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)


@dataclass(slots=True)
class BoundedRing(Record):
    """State of chwbl: the points of a hash ring in order, and the replica of each."""

    epsilon: float = 0.0
    points: list[int] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    num_points: int = 0


@dataclass(slots=True)
class Lookups(Record):
    """State of production-stack's kvaware policy."""

    threshold: int = 0  # tokens by which a match may be shorter than the prompt
    relief: int = NONE  # difference of requests in flight from which the fewest win; NONE for never
    ring: BoundedRing = field(default_factory=BoundedRing)  # the owners of sessions
    recent: list[int] = field(default_factory=list)  # requests in the window, by replica


@dataclass(slots=True)
class Balance(Record):
    """Parameters of routers that choose the longest prefix match unless loads differ too much."""

    least_match: float = 0.0  # shortest match that counts, as a share of the prompt
    imbalance: float = 0.0  # allowed difference of the most and the fewest requests
    ratio: float = 0.0  # allowed ratio of the most to the fewest requests
    deviations: float = 0.0  # allowed standard deviations above the mean load


@dataclass(slots=True)
class CostWeights(Record):
    """Parameters of the cost formula of Dynamo's router."""

    credit: float = 0.0
    prefill: float = 0.0
    active: float = 0.0
    decay: float = 0.0


@dataclass(slots=True)
class ScoreWeights(Record):
    """Parameters of llm-d's scores."""

    prefix: float = 0.0
    queue: float = 0.0
    kv: float = 0.0
    running: float = 0.0
    active: float = 0.0
    tokens: float = 0.0
    load: float = 0.0
    among_holders: bool = False  # score a match relative to the shortest and the longest one
    is_random: bool = False  # choose at random, without scores


@dataclass(slots=True)
class TokenBound(Record):
    """Parameters of llm-d's token-aware routing."""

    affinity: float = 0.0  # smallest share of the prompt on a warm replica
    most_ahead: float = 0.0  # most extra tokens in flight that a warm replica may have


@dataclass(slots=True)
class PrefillPrice(Record):
    """An idle replica, with the cost of its steps."""

    replica: Replica = field(default_factory=Replica)
    most_tokens: int = 0  # of a step
    is_python: bool = True  # prices come from functions in Python
    python: Any = None  # properties of the fleet, with these functions


@dataclass(slots=True)
class FirstTokens(Record):
    """Parameters of the Conductor, and its functions of time."""

    ttft_slo: float = math.inf
    tbt_slo: float = math.inf
    threshold: float = 1.0
    only_decodes: bool = False
    can_read: bool = False  # replicas read each other's memory
    price: PrefillPrice = field(default_factory=PrefillPrice)


@dataclass(slots=True)
class EntryUses(Record):
    """The uses of an entry of recent prompts, and the misses among them."""

    key: int = 0
    number: Short = 0
    missed: Short = 0
    holders: Short = 0  # its set of holders; 0 without misses
    chain: Short = 0  # the next entry of its bucket, or the next free record; 0 for none


@dataclass(slots=True)
class HolderSet(Record):
    """Replicas that hold some entries, and the misses of these entries."""

    missed: int = 0
    num_replicas: int = 0
    stamp: int = 0  # as that of the misses if its replicas are stale
    after: int = 0  # the next free record; 0 for none


@dataclass(slots=True)
class RecentMisses(Record):
    """The entries of recent prompts, and the prefill seconds that each replica bears for them.

    A bit mask of replicas is stored in words of 32 bits. No entry and no set has the index 0.
    """

    num_replicas: int = 0
    num_words: int = 0
    piece_time: float = 0.0  # seconds to compute an entry
    buckets: list[Short] = field(default_factory=list)
    bucket_mask: int = 0
    uses: list[EntryUses] = field(default_factory=list)
    num_made: int = 0  # records of uses
    first_free: int = 0  # of uses
    sets: list[HolderSet] = field(default_factory=list)
    num_sets: int = 1  # records made
    free_set: int = 0
    masks: list[int] = field(default_factory=list)  # by set
    order: list[int] = field(default_factory=list)  # the sets in use, by their masks as numbers
    ranked: list[int] = field(default_factory=list)  # their masks, in this order
    num_ordered: int = 0
    room: int = 0  # records of either kind for which there is memory
    asked: list[int] = field(default_factory=list)  # mask of the holders of the entry to count
    stamp: int = 1
    is_stale: list[int] = field(default_factory=list)  # by replica
    seconds: list[float] = field(default_factory=list)  # by replica


@dataclass(slots=True)
class LastValues(Record):
    """The last values of each replica, and their median."""

    most: int = 0  # values of a replica
    numbers: list[int] = field(default_factory=list)  # of values, ever
    values: list[float] = field(default_factory=list)  # the last one replaces the oldest
    ranked: list[float] = field(default_factory=list)
    medians: list[float] = field(default_factory=list)


@dataclass(slots=True)
class PrebleCosts(Record):
    """State of preble."""

    balance: float = 0.0
    warm_up: int = 0  # requests
    capacity: int = 0  # entries of a replica
    own_prefill: bool = False
    window: float = 0.0  # seconds
    num_sent: int = 0
    num_forgotten: int = 0  # of these, the first ones, which left the window
    misses: RecentMisses = field(default_factory=RecentMisses)
    outputs: LastValues = field(default_factory=LastValues)  # tokens of ended requests
    tpots: LastValues = field(default_factory=LastValues)  # seconds per output token
    loads: list[float] = field(default_factory=list)  # scratch, by replica
    price: PrefillPrice = field(default_factory=PrefillPrice)
