"""The last observed state of a replica's blocks: the part common to all kinds of memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from kvsim.engine.history.block_tables import live
from kvsim.results.block_events import BlockEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.records.engine import Replica

    #: Kind, request, block, place and key of an event.
    Change = tuple[int, int, int, int, int]

ALLOC, HIT, REF_ADD, REF_DROP, FREE, STORE, EVICT, PREEMPT, *REST = map(int, BlockEvent)
ADMIT, RECV, SEND, LOAD, COPY = REST


class Watch(ABC):
    """The last observed state of a replica's memory.

    Parameters
    ----------
    state : records of the replica
    """

    def __init__(self, state: Replica) -> None:
        self.state = state
        self.clock: Callable[[], float] = live(state, "clock")
        self._num_preempted: Callable[[], Any] = live(state, "num_preempted")
        self._num_admitted: Callable[[], Any] = live(state, "num_admitted")

    def changes(self, *, scheduled: bool) -> list[Change]:
        """Return the events since the last observation: kind, request, block, index, key."""
        state = self.state
        events: list[Change] = []
        admitted: dict[int, int] = {}
        if scheduled and (self._num_preempted() or self._num_admitted()):
            ids = state.requests
            lost = [state.preempted[k] for k in range(state.num_preempted)]
            events += [(PREEMPT, ids[place].request_id, -1, -1, 0) for place in lost]
            for k in range(state.num_admitted):
                one = state.admissions[k]
                admitted[ids[one.request].request_id] = one.hit
        self.see(events, admitted, scheduled=scheduled)
        events += [(ADMIT, row, -1, hit, 0) for row, hit in admitted.items()]
        return events

    @abstractmethod
    def see(self, events: list[Change], admitted: dict[int, int], *, scheduled: bool) -> None:
        """Append the changes of blocks.

        ``admitted`` has the hit tokens of each request that joined the batch. This method fills it
        if the rules keep no list of these requests.
        """
