"""A prefix index that replicas keep up to date by their own KV cache events, after a delay.

vLLM publishes what its blocks hold at the end of every update of its scheduler; a consumer that
counts what is stored and removed knows the pool's content (docs/vllm-rules.md, section 13).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from kvsim.fleet.prefix_index import PrefixIndex
from kvsim.records.events import REMOVED, STORED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.engine.replica import Replica
    from kvsim.kv.events import EventRows

    Change = tuple[bool, list[int]]  # stored or removed, and the keys


class EventFeed:
    """Reads the events of all replicas.

    Parameters
    ----------
    replicas : that tell events
    delay : seconds from the end of a step until the index knows what it changed
    group : of KV, whose blocks are followed
    keeps : keep what was read, for the file that gets all events
    """

    def __init__(
        self, replicas: Sequence[Replica], delay: float, *, group: int = 0, keeps: bool = False
    ) -> None:
        self.index = PrefixIndex(len(replicas))
        kv = replicas[0].state.kv
        self._unit, self._ahead = kv.hash_block_size, kv.num_hash_lookahead_tokens
        self._per_entry = kv.groups[group].keys_per_block
        self.read: list[list[EventRows]] = [[] for _ in replicas]
        self._replicas = list(replicas)
        self._delay = delay
        self._group = group
        self._keeps = keeps
        self._counts: list[dict[int, int]] = [{} for _ in replicas]
        self._open: list[list[Change]] = [[] for _ in replicas]
        self._coming: list[deque[tuple[float, list[Change]]]] = [deque() for _ in replicas]
        #: Called with the time, the place and the keys of what a replica stored in a step.
        self.listeners: list[Callable[[float, int, list[int]], object]] = []

    @property
    def entry_tokens(self) -> int:
        """Tokens that an entry stands for: a block's, whatever the look-ups of a router are."""
        return int(self._unit * self._per_entry)

    def entry_keys(self, request: IncomingRequest) -> Sequence[int]:
        """Return the keys by which the replicas know a prompt's blocks."""
        keys = request.prefix_keys(self._unit, self._ahead)
        return keys[self._per_entry - 1 :: self._per_entry]

    def replace(self, place: int, replica: Replica) -> None:
        """Follow another replica, whose cache is empty. Mutates."""
        self._replicas[place] = replica
        self.index.shrink(place, 0)
        self._counts[place] = {}
        self._open[place] = []
        self._coming[place] = deque()

    def update(self, now: float) -> None:
        """Bring the index to what has arrived by now. Mutates."""
        for place, replica in enumerate(self._replicas):
            if replica.has_events:
                self._take(place, replica.take_events())
            coming = self._coming[place]
            while coming and coming[0][0] <= now - self._delay:
                self._apply(place, coming.popleft()[1])

    def _take(self, place: int, chunks: list[EventRows]) -> None:
        if self._keeps:
            self.read[place] += chunks
        changes = self._open[place]
        for events, keys, _ in chunks:
            names = ("kind", "group", "key", "first_key", "key_count", "time")
            for kind, group, key, first, count, time in zip(
                *(events[name].tolist() for name in names), strict=True
            ):
                if kind == STORED:
                    if group == self._group:
                        changes.append((True, keys[first : first + count].tolist()))
                elif kind == REMOVED:
                    if group == self._group:
                        changes.append((False, [key]))
                else:
                    self._coming[place].append((time, changes))
                    self._tell(place, time, changes)
                    changes = self._open[place] = []

    def _tell(self, place: int, time: float, changes: list[Change]) -> None:
        """Tell what was stored in a step."""
        for listener in self.listeners:
            listener(time, place, [key for is_stored, keys in changes if is_stored for key in keys])

    def _apply(self, place: int, changes: list[Change]) -> None:
        """Count blocks by key: several may hold the same content."""
        counts = self._counts[place]
        for is_stored, keys in changes:
            for key in keys:
                number = counts.get(key, 0)
                if is_stored:
                    counts[key] = number + 1
                    if not number:
                        self.index.add(place, key)
                elif number > 1:
                    counts[key] = number - 1
                elif number:
                    del counts[key]
                    self.index.remove(place, key)
