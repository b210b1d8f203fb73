"""The waiting queue: first come first served, or by priority."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.request import Request


class WaitingQueue(Protocol):
    """Requests that hold no KV yet, or none any more."""

    def append(self, request: Request) -> None:
        """Add a new arrival."""

    def push_front(self, request: Request) -> None:
        """Return a request that was taken out, or preempted."""

    def head(self) -> Request:
        """Next to be admitted; does not mutate."""

    def pop(self) -> Request:
        """Remove and return the head."""

    def remove(self, request: Request) -> None:
        """Remove a request wherever it stands."""

    def __len__(self) -> int:
        """Requests waiting."""

    def __iter__(self) -> Iterator[Request]:
        """Requests, head first."""


class FcfsQueue:
    """In order of arrival; preempted requests in front."""

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()
        self.append = self._requests.append
        self.push_front = self._requests.appendleft
        self.pop = self._requests.popleft
        self.remove = self._requests.remove

    def head(self) -> Request:  # noqa: D102 - see WaitingQueue
        return self._requests[0]

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)


class PriorityQueue:
    """By (priority, arrival time, id), smallest first."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, float, int, Request]] = []

    def append(self, request: Request) -> None:  # noqa: D102
        key = (request.priority, request.arrival_time, request.request_id)
        heappush(self._heap, (*key, request))

    push_front = append

    def head(self) -> Request:  # noqa: D102
        return self._heap[0][3]

    def pop(self) -> Request:  # noqa: D102
        return heappop(self._heap)[3]

    def remove(self, request: Request) -> None:  # noqa: D102
        self._heap = sorted(entry for entry in self._heap if entry[3] is not request)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return (entry[3] for entry in sorted(self._heap))
