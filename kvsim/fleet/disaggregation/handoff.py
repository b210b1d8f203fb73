"""Handoff from prefill to decode: a request's KV moves to its decode replica.

With pull (vLLM's NIXL), the decode replica receives a request after its prefill, allocates blocks,
and reads the KV. With push, it receives the request at once and allocates blocks; the prefill
replica writes the KV when both are ready. docs/howto/disaggregation.md lists the terms of a TTFT.
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
    """One request on its way from its prefill replica to its decode replica.

    Parameters
    ----------
    row : row of the trace
    source, target : the prefill replica, and the decode replica
    num_offered : tokens of KV that the source has for the target after the prefill
    num_tokens : tokens that the target lacks; -1 until it has blocks for them
    is_computed : the source has computed the prompt
    is_sent_on : the request was submitted to the target
    transfer : number of the transfer, -1 before there is one
    start_time, end_time : start and end of the transfer, seconds
    """

    row: int
    source: Member
    target: Member
    num_offered: int = 0
    num_tokens: int = -1
    is_computed: bool = False
    is_sent_on: bool = False
    transfer: int = -1
    start_time: float = -1.0
    end_time: float = -1.0

    @property
    def has_allocated(self) -> bool:
        """Return True if the target has blocks for the tokens it lacks."""
        return self.num_tokens >= 0

    @property
    def is_on_its_way(self) -> bool:
        """Return True if an event will advance the handoff: a transfer, a notice, or a failure."""
        moves = self.is_computed and (self.has_allocated or not self.is_sent_on)
        return moves or not (self.source.is_alive and self.target.is_alive)
