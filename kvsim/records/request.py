"""A request on a replica: its parameters and its progress."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import IntEnum

from kvsim.records.record import NONE, Hot, Rare, Record, Short, Tiny


class Status(IntEnum):
    """The state of a request. SWAPPED: preempted by swapping, as in the PagedAttention paper."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    SWAPPED = 3
    FINISHED = 4
    WAITING_FOR_REMOTE_KVS = 5
    WAITING_FOR_INPUT = 6


# Rules use these ints instead of the enum: compiled code treats a module's ints as constants.
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
    """A request on a replica, with the counts that vLLM keeps.

    There is no prefill or decode phase: ``num_computed_tokens`` catches up with ``num_tokens``.

    Parameters
    ----------
    request_id : row of the request in the trace
    num_prompt_tokens, max_tokens : tokens of the prompt, and most tokens to generate
    segments : content of the prompt as (content_id, start, num_tokens), in order
    output_content_id : content of the output, with tokens numbered from 0
    num_samples : parallel sequences, all of the same length
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
    first_segment: Rare = 0  # index of its first segment: requests may share the list
    num_segments: Short = NONE

    num_tokens: Short = NONE  # tokens of the prompt and of the output so far
    num_computed_tokens: Short = 0  # tokens scheduled so far, those in flight included
    num_placeholders: Short = 0  # tokens that steps in flight sample: counted, not yet known
    next_bookkeeping_at: Short = 0  # up to this token count nothing but num_filled changes
    num_filled: Short = 0  # tokens with KV once the steps in flight have ended
    max_computed_tokens: Short = 0  # most tokens ever computed; fewer are recomputation
    num_in_flight_tokens: Short = 0  # tokens scheduled, with their output not processed yet
    num_stale_tokens: Short = 0  # tokens that were in flight at a preemption
    status: Short = WAITING
    own_blocks: Short = NONE  # index of its `KV.request_blocks`, NONE without memory
    next: Rare = NONE  # neighbours in the waiting queue
    previous: Rare = NONE
    end: Short = NONE  # token count at which it stops
    is_chunk: Tiny = 0  # 1 if known tokens remained to compute after its last scheduled ones
    num_drafts: Tiny = 0  # drafts to be verified in its next step
    is_deferred: Tiny = 0  # 1 if it was skipped in the queue and has not been admitted since
    last_token_time: Hot = math.nan
    num_preemptions: Rare = 0
    num_cached_tokens: Rare = 0  # tokens of the hit at its first admission
    shared_prefix_boundary: Rare = 0  # tokens of a longer prefix that only some groups hold
    first_scheduled_time: float = math.nan
    first_token_time: float = math.nan
    finish_time: float = math.nan
    place: Rare = NONE  # index in the replica's list of requests
    id_rank: Rare = NONE  # rank of its id among all ids, compared as text
    lora: Rare = 0  # number of its LoRA adapter, 0 for none
    known_end: Rare = NONE  # token count at which it stops as far as the scheduler knows
    next_call: Rare = 0  # pipeline stages: the first call of schedule that may schedule it again

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
        """KV slots filled when the request ends; the last token's KV is never written."""
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
