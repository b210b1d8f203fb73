"""The text that a router has sent to each replica: a radix tree with periodic eviction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.fleet.routing.prefix_affinity import CHARS_PER_TOKEN, PrefixAffinity
from kvsim.rules.routing.timing import next_eviction

if TYPE_CHECKING:
    from kvsim.engine.incoming import IncomingRequest
    from kvsim.fleet.facts import Facts


class TextTree:
    """A tree of prompts by replica, with limits in characters (four per token).

    Parameters
    ----------
    facts : properties of the fleet
    entry_tokens : tokens per entry
    interval : seconds between two evictions
    most : characters of a replica above which its least recently used leaves are evicted
    target : characters of a replica that remain after an eviction
    """

    def __init__(
        self, facts: Facts, *, entry_tokens: int, interval: float, most: float, target: float
    ) -> None:
        self.affinity = PrefixAffinity(facts, entry_tokens=entry_tokens)
        self.entry_tokens = entry_tokens
        self.interval = interval
        per_entry = CHARS_PER_TOKEN * entry_tokens
        self.most, self.target = most // per_entry, target // per_entry
        self.due = facts.start_time + interval
        self._num_replicas = facts.num_replicas

    def num_entries(self, request: IncomingRequest) -> int:
        """Return the number of a prompt's entries."""
        return self.affinity.num_entries(request)

    def cached_tokens(self, request: IncomingRequest) -> list[int]:
        """Return the number of leading prompt tokens that were sent to each replica. Mutates."""
        now = request.arrival_time
        if now >= self.due:
            self.due = next_eviction(now, self.due, self.interval)
            for replica in range(self._num_replicas):
                if self.affinity.size(replica) > self.most:
                    self.affinity.shrink(replica, self.target)
        return self.affinity.cached_tokens(request)

    def size(self, replica: int) -> int:
        return self.affinity.size(replica)

    def sent(self, request: IncomingRequest, replica: int) -> None:
        """Insert a prompt. Mutates."""
        self.affinity.sent(request, replica)
