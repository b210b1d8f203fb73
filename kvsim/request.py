"""A request on its way through a replica: what it asked for, and how far it has come."""

from __future__ import annotations

import math
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class Status(IntEnum):
    """Where a request is. SWAPPED is the state of the PagedAttention paper's swap preemption."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    SWAPPED = 3
    FINISHED = 4


#: Tokens of the output's content; it never runs out.
_ENDLESS = 2**62


class Request:
    """One request's progress, as vLLM keeps it.

    There is no prefill or decode phase: ``num_computed_tokens`` catches up with ``num_tokens``.
    The scheduler moves the counts, the KV-cache manager extends ``block_hashes``, the replica
    stamps the times.

    Parameters
    ----------
    num_prompt_tokens, max_tokens : tokens in, and tokens to generate before it stops
    segments : content of the prompt, (content_id, start, num_tokens) front to back
    output_content_id : content of the output, token by token from 0
    """

    __slots__ = (
        "arrival_time",
        "block_hashes",
        "cache_salt",
        "content",
        "content_cursor",
        "finish_time",
        "first_scheduled_time",
        "first_token_time",
        "last_token_time",
        "max_computed_tokens",
        "max_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_in_flight_tokens",
        "num_placeholders",
        "num_preemptions",
        "num_prompt_tokens",
        "num_samples",
        "num_stale_tokens",
        "num_tokens",
        "priority",
        "request_id",
        "shared_prefix_boundary",
        "status",
    )

    def __init__(
        self,
        request_id: int,
        arrival_time: float,
        num_prompt_tokens: int,
        max_tokens: int,
        segments: Sequence[tuple[int, int, int]],
        output_content_id: int,
        priority: int = 0,
        cache_salt: int = 0,
        num_samples: int = 1,
    ) -> None:
        self.request_id = request_id
        self.arrival_time = arrival_time
        self.priority = priority
        self.num_prompt_tokens = num_prompt_tokens
        self.max_tokens = max_tokens
        self.num_samples = num_samples  # sequences, all of the same length
        self.num_tokens = num_prompt_tokens  # prompt and generated so far
        self.status = Status.WAITING

        self.num_computed_tokens = 0  # scheduled so far, in flight or done
        self.num_in_flight_tokens = 0  # scheduled, output not processed yet
        self.num_placeholders = 0  # sampled in a step still in flight: counted, not yet known
        self.num_stale_tokens = 0  # in flight when preempted
        self.max_computed_tokens = 0  # high-water mark: computing below it again is waste
        self.num_preemptions = 0

        self.content = [*segments, (output_content_id, 0, _ENDLESS)]
        self.content_cursor = (0, 0)  # segment and offset where the next block to hash begins
        self.cache_salt = cache_salt
        self.block_hashes: list[int] = []
        self.shared_prefix_boundary = 0
        self.num_cached_tokens = 0  # hit at first admission

        self.first_scheduled_time = math.nan
        self.first_token_time = math.nan
        self.last_token_time = math.nan
        self.finish_time = math.nan

    @property
    def max_slots(self) -> int:
        """KV slots it will have filled when it ends: the last token's KV is never written."""
        return self.num_prompt_tokens + self.max_tokens - 1

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return self.num_tokens - self.num_prompt_tokens

    def __repr__(self) -> str:
        return (
            f"<Request {self.request_id} {self.status.name} "
            f"{self.num_computed_tokens}/{self.num_tokens} of "
            f"{self.num_prompt_tokens}+{self.max_tokens}>"
        )
