"""The waiting queue of a scheduler: first come first served, by priority, or tenant by tenant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.fairness import VTC
from kvsim.records.growth import adopt
from kvsim.records.record import NONE
from kvsim.rules.queue import dequeue, enqueue, head_of, requeue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.records.engine import Replica
    from kvsim.records.request import Request


class WaitingQueue:
    """Requests without KV, new or preempted; a view of a replica's state."""

    def __init__(self, state: Replica) -> None:
        self._state = state

    def _place(self, request: Request) -> int:
        return adopt(self._state, request) if request.place == NONE else request.place

    def append(self, request: Request) -> None:
        """Add a new arrival. Mutates."""
        enqueue(self._state, self._place(request))

    def push_front(self, request: Request) -> None:
        """Put back a request that was popped or preempted. Mutates."""
        requeue(self._state, self._place(request))

    def head(self) -> Request:
        """Return the next request to be admitted. Does not mutate."""
        return self._state.requests[head_of(self._state)]

    def pop(self) -> Request:
        """Remove and return the head. Mutates."""
        head = self.head()
        dequeue(self._state, head.place)
        return head

    def remove(self, request: Request) -> None:
        """Remove a request from any position. Mutates."""
        dequeue(self._state, request.place)

    def __len__(self) -> int:
        return self._state.waiting.length

    def __iter__(self) -> Iterator[Request]:
        state = self._state
        if state.limits.by_priority:
            places = [state.heap[k] for k in range(state.waiting.length)]
            ranks = list(state.ranks)  # empty without a user's priorities

            def urgency(k: int) -> list[float]:
                request = state.requests[k]
                then = [request.priority, request.arrival_time, request.id_rank]
                return [*ranks[k : k + 1], *then]

            yield from (state.requests[k] for k in sorted(places, key=urgency))
            return
        queues = [state.waiting]
        if state.limits.fairness == VTC:  # tenant by tenant, the next turn first
            tenants = [state.shares.tenants[t] for t in range(state.shares.num_tenants)]
            queues = [tenant.queue for tenant in sorted(tenants, key=lambda t: t.counter)]
        for queue in queues:
            k = queue.head
            while k >= 0:
                yield state.requests[k]
                k = state.requests[k].next
