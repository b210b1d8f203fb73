"""What a router believes to be cached where: told by the replicas, or by what it sent them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from kvsim.fleet.parameters import refuse_unread
from kvsim.fleet.prefix_index.index import PrefixIndex

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.fleet.facts import Facts
    from kvsim.fleet.prefix_index.event_index import KeyIndex

Kind = Literal["precise", "approximate"]
#: Characters of a token, where a rule counts characters.
CHARS_PER_TOKEN = 4


#: Of an approximate index of llm-d: tokens of an entry, and entries of a replica.
BLOCK_SIZE, LRU_ENTRIES = 64, 31_250
#: Seconds from a step's end until llm-d's precise index knows.
EVENT_DELAY = 0.01


def delay_of(kind: Kind, event_delay: float | None) -> float | None:
    """Return after how long llm-d's index knows of an event; None for one that reads none."""
    if kind == "approximate":
        return None
    return EVENT_DELAY if event_delay is None else event_delay


def entries_of(
    kind: Kind,
    event_delay: float | None,
    block_size: int | None,
    lru_entries: int | None,
    max_blocks: int | None,
) -> dict[str, Any]:
    """Return an index of llm-d as :class:`PrefixAffinity` takes it; None is not given.

    Raises
    ------
    ValueError
        For what the other kind of index has: a precise one has the replicas' own blocks.
    """
    if kind == "precise":
        why = "with index=precise: its blocks are those of the replicas' KV caches"
        refuse_unread(why, block_size=block_size, lru_entries=lru_entries, max_blocks=max_blocks)
    else:
        refuse_unread("with index=approximate", event_delay=event_delay)
    return {
        "entry_tokens": block_size or BLOCK_SIZE,
        "max_entries": lru_entries or LRU_ENTRIES,
        "max_prompt_entries": max_blocks,
    }


class PrefixAffinity:
    """Cached tokens of a prompt by replica.

    Parameters
    ----------
    facts : of the fleet
    kind : ``precise`` reads the index that the replicas' events keep; ``approximate`` takes a
        prompt for cached from the moment it is sent, whatever the replica does with it
    entry_tokens : of an approximate index; a prompt's end that fills no entry is not in it
    max_entries, ttl : of an approximate index; see ``PrefixIndex``
    max_prompt_entries : of an approximate index: what a prompt has behind so many is not in it
    """

    def __init__(
        self,
        facts: Facts,
        kind: Kind = "approximate",
        *,
        entry_tokens: int = 16,
        max_entries: float = math.inf,
        ttl: float = math.inf,
        max_prompt_entries: int | None = None,
    ) -> None:
        self._facts = facts
        self._is_precise = kind == "precise"
        self.entry_tokens = facts.entry_tokens if self._is_precise else entry_tokens
        self._max_prompt_entries = max_prompt_entries
        self._sent = PrefixIndex(facts.num_replicas, max_entries=max_entries, ttl=ttl)
        self.index: KeyIndex = facts.index if self._is_precise else self._sent

    def keys(self, request: IncomingRequest) -> Sequence[int]:
        """Return the names of a prompt's entries."""
        if self._is_precise:
            return self._facts.entry_keys(request)
        return request.prefix_keys(self.entry_tokens)[: self._max_prompt_entries]

    def cached_tokens(self, request: IncomingRequest) -> list[int]:
        """Return how many of a prompt's first tokens each replica is taken to hold."""
        found: list[int] = self.cached_array(request).tolist()
        return found

    def cached_array(self, request: IncomingRequest) -> NDArray[np.int64]:
        """Return the same as an array."""
        path = self._facts.entry_path(request) if self._is_precise else self.keys(request)
        matched = np.array(self.index.match(path, request.arrival_time), np.int64)
        return matched * self.entry_tokens

    def block_rates(self, request: IncomingRequest, cached_tokens: Sequence[int]) -> list[float]:
        """Return which share of a prompt's entries each replica is taken to hold."""
        number = len(self.keys(request)) * self.entry_tokens
        return [tokens / number if number else 0.0 for tokens in cached_tokens]

    def sent(self, request: IncomingRequest, replica: int) -> None:
        """Note where a request goes, if that is all there is to know. Mutates."""
        if not self._is_precise:
            self._sent.insert(replica, self.keys(request), request.arrival_time)

    def forget(self, replica: int) -> None:
        """Forget a replica that is gone; precise knowledge goes with its events. Mutates."""
        self.shrink(replica, 0)

    def shrink(self, replica: int, num_entries: float) -> None:
        """Keep only so many entries of an approximate index. Mutates."""
        if not self._is_precise:
            self._sent.shrink(replica, num_entries)


def hit_rates(request: IncomingRequest, cached_tokens: Sequence[int]) -> list[float]:
    """Return which share of a prompt each replica is taken to hold."""
    return [tokens / request.num_prompt_tokens for tokens in cached_tokens]
