"""Deadlocks of a fleet: requests that wait for each other forever, and their resolution.

A request that does not run may hold blocks: for KV that is in transfer, that has arrived, or that
another replica is to read. Several such requests may each need blocks that another one holds. A
real server aborts them after minutes. Here the oldest one keeps its blocks, and DECISIONS.md, D144,
has the proof that all requests end.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from kvsim.errors import UnfinishedError, shown_numbers
from kvsim.fleet.admission.admissibility import reset_requests
from kvsim.fleet.feature import Feature

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvsim.fleet.disaggregation.handoffs import Handoffs
    from kvsim.fleet.feature import Host
    from kvsim.fleet.member import Member
    from kvsim.fleet.world import World

#: Consecutive events without progress or KV in transfer after which the run ends with an error.
MOST_IDLE_EVENTS = 100_000


class Standstill(Feature):
    """Detects that no replica can continue, and takes blocks from all but the oldest request.

    Parameters
    ----------
    world : the SimPy environment
    host : the fleet
    table : the requests table of the run
    handoffs : requests between two replicas, if prefill is disaggregated

    Attributes
    ----------
    held_back : requests that are placed again when another one has ended
    """

    def __init__(
        self, world: World, host: Host, table: NDArray[Any], handoffs: Handoffs | None
    ) -> None:
        self._world, self._host, self._table, self._handoffs = world, host, table, handoffs
        self.held_back: list[int] = []
        self._is_planned = False
        self._num_solved = 0  # releases since a request has ended
        self._num_idle = 0

    @property
    def num_held_back(self) -> int:  # type: ignore[override]
        """Number of requests that are placed again when another one has ended."""
        return len(self.held_back)

    def unblock(self) -> bool:
        """Schedule the release of requests if no replica can continue; True if it was scheduled.

        Raises
        ------
        UnfinishedError
            If no request can ever continue.
        """
        pools, features = self._host.pools, self._host.features
        everybody = [one for pool in pools for one in pool.places if one is not None]
        if self._is_planned or any(one.awaits_something for one in features):
            return False
        has_work = any(one.num_open for one in features) or any(one.rows for one in everybody)
        if not has_work:
            return self._place_held()
        if len(self._holders()) < 2:
            self._count_idle(everybody)
            return False
        time = max(self._world.now, *(one.replica.clock for one in everybody))
        if time >= everybody[0].replica.state.end_time:
            return False
        self._is_planned = True
        self._world.call_at(time, self._free_others)
        return True

    def on_answered(self, time: float) -> None:
        self._num_solved = self._num_idle = 0
        if self.held_back:
            self._place_held(time)

    def _place_held(self, time: float = -math.inf) -> bool:
        """Place the requests held back, at a time or now; False if there are none. Mutates."""
        rows, self.held_back = self.held_back, []
        if rows:
            self._world.call_at(max(time, self._world.now), lambda: self._place(rows))
        return bool(rows)

    def _place(self, rows: list[int]) -> None:
        for row in rows:
            self._host.place(row, self._world.now)

    def _holders(self) -> dict[int, Member | None]:
        """Return the requests that hold blocks without running, oldest first, with their replicas.

        The replica of a request in handoff is None.
        """
        handoffs = self._handoffs
        found: dict[int, Member | None] = {}
        for pool in self._host.pools:
            for member in pool.places:
                if member is not None and member.is_alive and member.rows:
                    found |= dict.fromkeys(member.replica.holders(), member)
        if handoffs is not None:
            found = {row: None if handoffs.is_open(row) else at for row, at in found.items()}
            found |= dict.fromkeys(handoffs.holders())
        return dict(sorted(found.items()))

    def _free_others(self) -> None:
        """Free the blocks of all but the oldest request, and place the others again. Mutates.

        They are placed at once if a request has ended since the last call, else after the next end.
        """
        self._is_planned = False
        now, handoffs = self._world.now, self._handoffs
        rows = list(self._holders().items())[1:]
        for row, member in rows:
            if member is None:
                assert handoffs is not None
                handoffs.roll_back(row, now)
            else:
                member.withdraw(row, now)
                self._host.drive.touch(member)
                reset_requests(self._table, [row])
                if handoffs is not None and handoffs.has_stayed(row):
                    handoffs.leave(row)
        if handoffs is not None:
            handoffs.num_taken_back += len(rows)
        taken = [row for row, _ in rows]
        self._num_solved += 1
        if self._num_solved > len(self._table) + 1:  # impossible, by the proof
            raise UnfinishedError(f"requests {shown_numbers(taken)} restart again and again")
        if self._num_solved == 1:
            self._place(taken)
        else:
            self.held_back += taken

    def _count_idle(self, everybody: list[Member]) -> None:
        """Count an event without progress; raise an error after MOST_IDLE_EVENTS of them."""
        self._num_idle += 1
        if self._num_idle > MOST_IDLE_EVENTS:
            rows = sorted({row for one in everybody for row in one.rows})
            numbers, now = shown_numbers(rows), self._world.now
            raise UnfinishedError(
                f"no replica makes progress at {now:g} s, and requests {numbers} wait"
            )
