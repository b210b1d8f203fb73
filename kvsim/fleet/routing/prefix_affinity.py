"""A router's prediction of cached prefixes, from the replicas' events or its own requests."""

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
    from kvsim.fleet.prefix_index.key_tables import SentIndex

Kind = Literal["precise", "approximate"]
#: Characters per token, for rules that count characters.
CHARS_PER_TOKEN = 4


#: llm-d's approximate index: tokens per entry, and largest number of entries per replica.
BLOCK_SIZE, LRU_ENTRIES = 64, 31_250
#: Seconds from a step's end until llm-d's precise index is updated.
EVENT_DELAY = 0.01


def delay_of(kind: Kind, event_delay: float | None) -> float | None:
    """Return the event delay of llm-d's index; None if the index reads no events."""
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
    """Return the options of :class:`PrefixAffinity` for llm-d's index; None means not given.

    Raises
    ------
    ValueError
        If an option is given that this kind of index does not read.
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
    """Predicts the cached tokens of a prompt at each replica.

    Parameters
    ----------
    facts : properties of the fleet
    kind : ``precise`` reads the index that the replicas' events update; ``approximate`` counts a
        prompt as cached from the moment it is sent, even if the replica does not cache it
    entry_tokens : tokens per entry of an approximate index; a partial entry at the end of a prompt
        is ignored
    max_entries, ttl : limits of an approximate index; see ``PrefixIndex``
    max_prompt_entries : largest number of entries of a prompt in an approximate index
    asks_holders : True if the router reads the holders of single entries
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
        asks_holders: bool = False,
    ) -> None:
        self._facts = facts
        self.is_precise = kind == "precise"
        self.entry_tokens = facts.entry_tokens if self.is_precise else entry_tokens
        self.max_prompt_entries = max_prompt_entries
        self.max_entries, self.ttl = max_entries, ttl
        self._sent = _sent_index(facts, max_entries, ttl, asks_holders=asks_holders)
        self.index: KeyIndex = facts.index if self.is_precise else self._sent

    def keys(self, request: IncomingRequest) -> Sequence[int]:
        """Return the keys of a prompt's entries."""
        if self.is_precise:
            return self._facts.entry_keys(request)
        return request.prefix_keys(self.entry_tokens)[: self.max_prompt_entries]

    def _path(self, request: IncomingRequest) -> Any:
        """Return the keys of a prompt's entries in the type that the index reads."""
        if self.is_precise:
            return self._facts.entry_path(request)
        if isinstance(self._sent, PrefixIndex):
            return self.keys(request)
        return request.prefix_path(self.entry_tokens)[: self.max_prompt_entries]

    def num_entries(self, request: IncomingRequest) -> int:
        """Return the number of a prompt's entries."""
        return len(self._path(request))

    def size(self, replica: int) -> int:
        return self.index.size(replica)

    def cached_tokens(self, request: IncomingRequest) -> list[int]:
        """Return the number of leading prompt tokens that each replica is predicted to hold."""
        found: list[int] = self.cached_array(request).tolist()
        return found

    def cached_array(self, request: IncomingRequest) -> NDArray[np.int64]:
        """Return :meth:`cached_tokens` as an array."""
        matched = np.array(self.index.match(self._path(request), request.arrival_time), np.int64)
        return matched * self.entry_tokens

    def block_rates(self, request: IncomingRequest, cached_tokens: Sequence[int]) -> list[float]:
        """Return the share of a prompt's entries that each replica is predicted to hold."""
        number = self.num_entries(request) * self.entry_tokens
        return [tokens / number if number else 0.0 for tokens in cached_tokens]

    def sent(self, request: IncomingRequest, replica: int) -> None:
        """Record a request as cached on a replica, in an approximate index. Mutates."""
        if not self.is_precise:
            self._sent.insert(replica, self._path(request), request.arrival_time)

    def forget(self, replica: int) -> None:
        """Remove a replica's entries from an approximate index. Mutates."""
        self.shrink(replica, 0)

    def shrink(self, replica: int, num_entries: float) -> None:
        """Evict a replica's entries from an approximate index until a number remain. Mutates."""
        if not self.is_precise:
            self._sent.shrink(replica, num_entries)


def _sent_index(
    facts: Facts, max_entries: float, ttl: float, *, asks_holders: bool
) -> PrefixIndex | SentIndex:
    """Return an approximate index; a compiled one has equal results, and is faster."""
    if not facts.compiled or ttl < math.inf or asks_holders:
        return PrefixIndex(facts.num_replicas, max_entries=max_entries, ttl=ttl)
    from kvsim.fleet.prefix_index.key_tables import SentIndex

    return SentIndex(facts.num_replicas, max_entries)


def hit_rates(request: IncomingRequest, cached_tokens: Sequence[int]) -> list[float]:
    """Return the share of a prompt that each replica is predicted to hold."""
    return [tokens / request.num_prompt_tokens for tokens in cached_tokens]
