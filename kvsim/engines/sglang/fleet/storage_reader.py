"""Events of SGLang's replicas about copies in host memory, which a store may keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.events import STORED, UPDATE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.engine.replica import Replica
    from kvsim.fleet.prefix_index.prompt_keys import PromptKeys


class StorageReader:
    """Maps the pages of host copies to a store's keys, by the tokens they hold.

    Parameters
    ----------
    replicas : replicas with a host tier, which emit events
    keys : keys of the trace's prompts and outputs
    page_size : tokens of a page
    """

    def __init__(self, replicas: Sequence[Replica], keys: PromptKeys, page_size: int) -> None:
        self._replicas = list(replicas)
        self._keys = keys
        self.entry_tokens = page_size
        #: Called with the time, the slot and the keys of pages that a replica's host has received.
        self.listeners: list[Callable[[float, int, list[int]], object]] = []
        #: Never called: would get the slot of a replica that has left.
        self.leavers: list[Callable[[int], object]] = []

    def entry_path(self, request: IncomingRequest) -> NDArray[np.int64]:
        """Return the keys of a prompt's full pages."""
        return request.prefix_path(self.entry_tokens)

    def update(self, now: float) -> None:
        """Pass new events to the listeners. Mutates."""
        del now  # no replica is ahead of it
        for place, replica in enumerate(self._replicas):
            for rows in replica.take_events() if replica.event_log.has_events else ():
                self._tell(place, rows.events)

    def _tell(self, place: int, events: NDArray[np.void]) -> None:
        """Pass new events of a log to the listeners, update by update."""
        keys: list[int] = []
        names = ("kind", "row", "first", "stop", "time")
        for kind, row, first, stop, time in zip(*(events[n].tolist() for n in names), strict=True):
            if kind == STORED:
                keys += self._named(row, first, stop)
            elif kind == UPDATE and keys:
                for listener in self.listeners:
                    listener(time, place, keys)
                keys = []

    def _named(self, row: int, first: int, stop: int) -> list[int]:
        """Return the keys of a request's pages between two tokens."""
        size = self.entry_tokens
        path = self._keys.whole(row, stop, size)
        named: list[int] = path[first // size : stop // size].tolist()
        return named
