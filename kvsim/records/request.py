"""A request on a replica: its parameters and its progress."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import IntEnum

from kvsim.records.record import NONE, Hot, Rare, Record, Short, Tiny


class Status(IntEnum):
    """The state of a request. SWAPPED belongs to the PagedAttention paper's swap preemption."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    SWAPPED = 3
    FINISHED = 4
    WAITING_FOR_REMOTE_KVS = 5
    WAITING_FOR_INPUT = 6


# Rules compare with these; compiled code takes a module's ints for constants.
WAITING, RUNNING, PREEMPTED, SWAPPED, FINISHED, WAITING_FOR_REMOTE_KVS, WAITING_FOR_INPUT = map(
    int, Status
)


@dataclass(slots=True)
class Segment(Record):
    """Part of a content: ``num_tokens`` tokens from ``start`` on."""

    content_id: int = 0
    start: int = 0
    num_tokens: int = 0


@dataclass(slots=True, eq=False)
class Request(Record):
    """One request's progress, as vLLM keeps it.

    There is no prefill or decode phase: ``num_computed_tokens`` catches up with ``num_tokens``.

    Parameters
    ----------
    request_id : its row in the trace
    num_prompt_tokens, max_tokens : tokens in, and tokens to generate before it stops
    segments : content of the prompt, (content_id, start, num_tokens) front to back
    output_content_id : content of the output, token by token from 0
    num_samples : sequences, all of the same length
    """

    request_id: Short = NONE
    arrival_time: float = 0.0
    num_prompt_tokens: Rare = 0
    max_tokens: Rare = 0
    segments: list[Segment] = field(default_factory=list)
    output_content_id: int = 0
    priority: int = 0
    cache_salt: int = 0
    num_samples: Rare = 1
    first_segment: Rare = 0  # of `segments`, which it may share with others
    num_segments: Short = NONE

    num_tokens: Short = NONE  # prompt and generated so far
    num_computed_tokens: Short = 0  # scheduled so far, in flight or done
    num_placeholders: Short = 0  # sampled in a step still in flight: counted, not yet known
    next_bookkeeping_at: Short = 0  # up to this many tokens nothing but num_filled changes
    num_filled: Short = 0  # tokens whose slots are written once the scheduled steps are done
    max_computed_tokens: Short = 0  # high-water mark: computing below it again is waste
    num_in_flight_tokens: Short = 0  # scheduled, output not processed yet
    num_stale_tokens: Short = 0  # in flight when preempted
    status: Short = WAITING
    own_blocks: Short = NONE  # what it holds of the KV cache
    next: Rare = NONE  # in the waiting queue
    previous: Rare = NONE
    end: Short = NONE  # tokens at which it stops
    is_chunk: Tiny = 0  # its last scheduled tokens left known ones to compute
    num_drafts: Tiny = 0  # tokens proposed, to be verified with its next step
    is_deferred: Tiny = 0  # was set aside in the queue, and has not been admitted since
    last_token_time: Hot = math.nan
    num_preemptions: Rare = 0
    num_cached_tokens: Rare = 0  # hit at first admission
    shared_prefix_boundary: Rare = 0  # longer prefix that some KV-cache groups still hold
    first_scheduled_time: float = math.nan
    first_token_time: float = math.nan
    finish_time: float = math.nan
    place: Rare = NONE  # in the replica's list of requests
    id_rank: Rare = NONE  # of its id among all, as text
    lora: Rare = 0  # its adapter, 0 for none
    known_end: Rare = NONE  # tokens at which the scheduler knows beforehand that it stops
    next_call: Rare = 0  # pipeline stages: not scheduled again before this call of schedule

    def __post_init__(self) -> None:
        if self.num_tokens == NONE:
            self.num_tokens = self.num_prompt_tokens
        if self.id_rank == NONE:
            self.id_rank = self.request_id
        if self.end == NONE:
            self.end = self.num_prompt_tokens + self.max_tokens
        if self.known_end == NONE:
            self.known_end = self.end
        if self.num_segments == NONE:
            given = list(self.segments)
            self.segments = [s if isinstance(s, Segment) else Segment(*s) for s in given]
            self.num_segments = len(given)

    @property
    def max_slots(self) -> int:
        """KV slots filled at its end; the last token's KV is never written."""
        return self.end - 1

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return self.num_tokens - self.num_prompt_tokens

    def __repr__(self) -> str:
        return (
            f"<Request {self.request_id} {Status(self.status).name} "
            f"{self.num_computed_tokens}/{self.num_tokens} of "
            f"{self.num_prompt_tokens}+{self.max_tokens}>"
        )
