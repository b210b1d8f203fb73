"""A router's view of a replica: exact counters of its own requests, and scraped metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kvsim.engine.backend import Backend
    from kvsim.engine.incoming import IncomingRequest


class Scraped(NamedTuple):
    """A replica's metrics as last scraped.

    Attributes
    ----------
    as_of : time of the scrape, seconds
    num_waiting, num_running : numbers of requests after the last step before the scrape
    kv_usage : share of its blocks in use
    prompt_tokens : tokens of all prompts with a first token: vLLM's ``prompt_tokens_total``
    generation_tokens : tokens of all outputs: vLLM's ``generation_tokens_total``
    """

    as_of: float
    num_waiting: int = 0
    num_running: int = 0
    kv_usage: float = 0.0
    prompt_tokens: int = 0
    generation_tokens: int = 0


@dataclass(slots=True)
class Local:
    """Exact counters of one gateway's own requests on a replica, without delay.

    Attributes
    ----------
    num_requests : requests that were sent and have not ended
    num_prefilling : requests among these without a first token
    num_prompt_tokens : prompt tokens of all requests that have not ended
    num_uncached_tokens : predicted uncached tokens of the prompts without a first token
    """

    num_requests: int = 0
    num_prefilling: int = 0
    num_prompt_tokens: int = 0
    num_uncached_tokens: int = 0


class ReplicaView:
    """One replica, as one gateway sees it.

    Attributes
    ----------
    index : number of the replica
    local : exact counters of this gateway's requests; updated for routers with ``watches_requests``
    scraped : the replica's metrics; updated for routers with a ``scrape_interval``
    """

    __slots__ = ("_replica", "index", "local", "scraped", "shares")

    def __init__(self, index: int, replica: Backend, *, shares: bool) -> None:
        self.index = index
        self._replica = replica
        self.local = Local()
        self.scraped = Scraped(0.0)
        self.shares = shares  # with other gateways

    def replace(self, replica: Backend, now: float) -> None:
        """Show a new replica in this slot from now on. Mutates."""
        self._replica = replica
        self.local = Local()
        self.scraped = Scraped(now)

    @property
    def clock(self) -> float:
        """Time of the last event the replica has processed."""
        return self._replica.clock

    def next_event_time(self) -> float:
        """Time of the replica's next event if no request arrives, ``inf`` for none."""
        return self._replica.next_event_time()

    def num_outstanding(self) -> int:
        """Number of requests that this gateway sent and that have not ended."""
        return self.local.num_requests if self.shares else self._replica.num_outstanding()

    def num_cached_tokens(self, request: IncomingRequest) -> int:
        """Tokens of a prompt that the prefix cache would hit now: no real router knows this."""
        return self._replica.num_cached_tokens(request)
