"""Reader of the replicas' KV cache events, which updates an index after a delay.

At the end of every scheduler update, vLLM publishes the blocks that were stored and removed; from
these a consumer knows the content of the pool (docs/vllm-rules.md, section 13).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsim.fleet.prefix_index.event_index import PlainEventIndex
from kvsim.records.events import STORED, UPDATE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.engine.replica import Replica
    from kvsim.fleet.prefix_index.event_index import EventIndex
    from kvsim.kv.events import EventRows


@dataclass(slots=True)
class Chunk:
    """Events that were read together; the first ``taken`` are in the index.

    ``ends`` has the index after the last event of each scheduler update, ``times`` its time.
    """

    rows: EventRows
    ends: NDArray[np.intp]
    times: NDArray[np.float64]
    taken: int = 0

    @classmethod
    def of(cls, rows: EventRows) -> Chunk:
        """Return a chunk of rows, with the ends of its scheduler updates."""
        last = np.flatnonzero(rows.events["kind"] == UPDATE)
        return cls(rows, last + 1, rows.events["time"][last])


class EventReader:
    """Reads the events of all replicas.

    Parameters
    ----------
    replicas : replicas that emit events
    delay : seconds from the end of a step until the index has its changes
    group : KV cache group of the indexed blocks
    keeps : keep all events, which the run writes to a file
    """

    def __init__(
        self, replicas: Sequence[Replica], delay: float, *, group: int = 0, keeps: bool = False
    ) -> None:
        self.index = self._make_index(len(replicas), group)
        kv = replicas[0].state.kv
        self._unit, self._ahead = kv.hash_block_size, kv.num_hash_lookahead_tokens
        self._per_entry = kv.groups[group].keys_per_block
        self.read: list[list[EventRows]] = [[] for _ in replicas]
        self._replicas = list(replicas)
        self._delay = delay
        self._group = group
        self._keeps = keeps
        self._coming: list[deque[Chunk]] = [deque() for _ in replicas]
        self._open: list[list[int]] = [[] for _ in replicas]
        #: Called with the time, the slot and the keys of blocks that a replica stored in a step.
        self.listeners: list[Callable[[float, int, list[int]], object]] = []
        #: Called with the slot of a replica that has been removed.
        self.leavers: list[Callable[[int], object]] = []

    def _make_index(self, num_replicas: int, group: int) -> EventIndex:
        return PlainEventIndex(num_replicas, group)

    @property
    def entry_tokens(self) -> int:
        """Tokens per entry of the index: those of a block."""
        return int(self._unit * self._per_entry)

    def entry_path(self, request: IncomingRequest) -> NDArray[np.int64]:
        """Return the keys by which the replicas name a prompt's blocks."""
        keys = request.prefix_path(self._unit, self._ahead)
        return keys[self._per_entry - 1 :: self._per_entry]

    def deepest(self, request: IncomingRequest) -> int | None:
        """Return the replica with the longest cached prefix of a prompt; None if unknown."""
        del request
        return None

    def replace(self, place: int, replica: Replica) -> None:
        """Read the events of a new replica in this slot, which has an empty cache. Mutates.

        Listeners still receive the blocks that the previous replica had stored.
        """
        if self.listeners and self._replicas[place].event_log.has_events:
            self._fetch(place)
        for leaver in self.leavers:
            leaver(place)
        self._replicas[place] = replica
        self.index.forget(place)
        self._coming[place] = deque()
        self._open[place] = []

    def update(self, now: float) -> None:
        """Apply the events that have arrived by now to the index. Mutates."""
        for place in range(len(self._replicas)):
            self._read(place, now)

    def _read(self, place: int, now: float) -> None:
        """Read a replica's events, and apply those that have arrived by now."""
        if self._replicas[place].event_log.has_events:
            self._fetch(place)
        if self._coming[place]:
            self._apply(place, now - self._delay)

    def _fetch(self, place: int) -> None:
        """Move a replica's events out of its log."""
        chunks = self._replicas[place].take_events()
        self.read[place] += chunks if self._keeps else ()
        self._coming[place] += map(Chunk.of, chunks)
        if self.listeners:
            self._emit(place, chunks)

    def _apply(self, place: int, until: float) -> None:
        coming = self._coming[place]
        last, stop = -1, 0
        for number, chunk in enumerate(coming):
            due = int(np.searchsorted(chunk.times, until, "right"))
            if due:
                last, stop = number, int(chunk.ends[due - 1])
            if due < len(chunk.times):
                break
        for number in range(last + 1):
            chunk = coming[0]
            upto = stop if number == last else len(chunk.rows.events)
            if upto > chunk.taken:
                self.index.take(place, chunk.rows.events, chunk.rows.keys, chunk.taken, upto)
                chunk.taken = upto
            if upto == len(chunk.rows.events):
                coming.popleft()

    def _emit(self, place: int, chunks: Sequence[EventRows]) -> None:
        """Pass the stored keys to the listeners, update by update."""
        for events, keys, _ in chunks:
            names = ("kind", "group", "first_key", "key_count", "time")
            for kind, group, first, count, time in zip(
                *(events[name].tolist() for name in names), strict=True
            ):
                if kind == STORED and group == self._group:
                    self._open[place] += keys[first : first + count].tolist()
                elif kind == UPDATE:
                    for listener in self.listeners:
                        listener(time, place, self._open[place])
                    self._open[place] = []
