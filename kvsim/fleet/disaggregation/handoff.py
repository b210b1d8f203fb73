"""From prefill to decode: the KV of a request, once it is computed, goes where the rest is done.

vLLM's pull (NIXL): the decode replica sees a request when the prefill replica has ended its part,
takes blocks for it, and reads. SGLang's push: it sees it at once, takes blocks, and the KV is
written when both are ready. docs/howto/disaggregation.md tells the terms of a TTFT.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from kvsim.fleet.member import Member

Protocol = Literal["pull", "push"]
FirstTokenFrom = Literal["decode", "prefill"]


@dataclass(slots=True, eq=False)
class Handoff:
    """One request between two replicas.

    Parameters
    ----------
    row : of the trace
    source, target : the replica that computes its prompt, and the one that goes on
    num_offered : tokens whose KV the source has for the target, when it is computed
    num_tokens : that the target lacks; NaN-like -1 until it has asked
    asked_time : when it asked, seconds
    is_computed : the source has ended its part
    is_sent_on : the target knows of it
    transfer : number of the transfer, -1 before there is one
    start_time, end_time : of it, seconds
    """

    row: int
    source: Member
    target: Member
    num_offered: int = 0
    num_tokens: int = -1
    asked_time: float = -1.0
    is_computed: bool = False
    is_sent_on: bool = False
    transfer: int = -1
    start_time: float = -1.0
    end_time: float = -1.0

    @property
    def has_asked(self) -> bool:
        """Whether the target has blocks for what it lacks."""
        return self.num_tokens >= 0

    @property
    def is_on_its_way(self) -> bool:
        """Whether something goes on by itself: its KV, the word of it, or a lost replica's end."""
        moves = self.is_computed and (self.has_asked or not self.is_sent_on)
        return moves or not (self.source.is_alive and self.target.is_alive)
