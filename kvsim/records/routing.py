"""Records of routers: a request to place, the replicas as a gateway sees them, random draws."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvsim.records.record import NONE, Record


@dataclass(slots=True)
class Draws(Record):
    """Random words of 64 bits, drawn in bulk: the lower half of each, then its upper half."""

    halves: list[int] = field(default_factory=list)
    num_words: int = 0
    next_word: int = 0
    upper: int = NONE  # of the last word, if only its lower half was used


@dataclass(slots=True)
class Candidate(Record):
    """A replica as a gateway sees it; counts are of requests, and of tokens."""

    index: int = 0
    num_outstanding: int = 0
    num_prompt_tokens: int = 0  # of this gateway's requests there
    num_uncached_tokens: int = 0  # predicted, of those without a first token
    as_of: float = 0.0  # time of the last scrape
    num_waiting: int = 0
    num_running: int = 0
    kv_usage: float = 0.0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    cached_tokens: int = 0  # of the prompt to place, predicted
    num_entries: int = 0  # in the index of prefixes
    num_blocks: int = 0  # different ones of the prompts there


@dataclass(slots=True)
class Placement(Record):
    """A request, the replicas that may serve it, and the choice of the last one."""

    request_id: int = 0
    num_prompt_tokens: int = 0
    num_entries: int = 0  # of the prompt in the index of prefixes
    entry_tokens: int = 1
    least_held: int = 0  # tokens of the shortest and the longest match of any replica
    most_held: int = 0
    ring_key: int = 0  # its place on a hash ring
    candidates: list[Candidate] = field(default_factory=list)
    num_candidates: int = 0
    costs: list[float] = field(default_factory=list)  # scratch, by candidate
    draws: Draws = field(default_factory=Draws)
    branch: int = 0  # the rule that made the choice, of those that the router names


@dataclass(slots=True)
class CountedSince(Record):
    """State of vllm-dp: requests sent to each replica since the last count of its queue."""

    counts_sent: bool = True
    sent: list[int] = field(default_factory=list)
    as_of: list[float] = field(default_factory=list)


@dataclass(slots=True)
class TokenRates(Record):
    """State of aibrix-throughput: counters at the last scrape of each replica, and its rate."""

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
class Balance(Record):
    """Parameters of routers that follow matches until loads are far apart."""

    least_match: float = 0.0  # share of the prompt
    imbalance: float = 0.0  # requests, most less fewest
    ratio: float = 0.0  # most by fewest
    deviations: float = 0.0  # of the mean load, allowed above it


@dataclass(slots=True)
class CostWeights(Record):
    """Parameters of Dynamo's formula."""

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
    among_holders: bool = False  # score matches between the shortest and the longest
    is_random: bool = False  # pick at random


@dataclass(slots=True)
class TokenBound(Record):
    """Parameters of llm-d's token-aware routing."""

    affinity: float = 0.0
    most_ahead: float = 0.0  # tokens in flight that a cached prefix may be worth
