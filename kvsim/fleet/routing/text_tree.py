"""The text that a router has sent to each replica: a radix tree with periodic eviction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.fleet.routing.prefix_affinity import CHARS_PER_TOKEN, PrefixAffinity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.fleet.facts import Facts


class TextTree:
    """A tree of prompts by replica; its limits are in characters, four to a token.

    Parameters
    ----------
    facts : properties of the fleet
    entry_tokens : tokens that are matched as one
    interval : seconds between two evictions
    most, target : characters of a replica above which its least recently used leaves are evicted,
        and down to which
    """

    def __init__(
        self, facts: Facts, *, entry_tokens: int, interval: float, most: float, target: float
    ) -> None:
        self._prefix_affinity = PrefixAffinity(facts, entry_tokens=entry_tokens)
        self._interval = interval
        per_entry = CHARS_PER_TOKEN * entry_tokens
        self._most, self._target = most // per_entry, target // per_entry
        self._next = facts.start_time + interval
        self._num_replicas = facts.num_replicas

    def cached_tokens(self, request: IncomingRequest) -> list[int]:
        """Return the number of leading prompt tokens that were sent to each replica. Mutates."""
        now = request.arrival_time
        if now >= self._next:
            self._next += self._interval * (1 + (now - self._next) // self._interval)
            for replica in range(self._num_replicas):
                if self._prefix_affinity.index.size(replica) > self._most:
                    self._prefix_affinity.shrink(replica, self._target)
        return self._prefix_affinity.cached_tokens(request)

    def sizes(self) -> Sequence[int]:
        """Return the size of each replica's tree."""
        return [self._prefix_affinity.index.size(replica) for replica in range(self._num_replicas)]

    def sent(self, request: IncomingRequest, replica: int) -> None:
        """Insert a prompt. Mutates."""
        self._prefix_affinity.sent(request, replica)
