"""Optional features of a fleet, and the hooks through which they take part in a run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvsim.fleet.clients import Clients
    from kvsim.fleet.clock import FleetClock
    from kvsim.fleet.member import Member
    from kvsim.fleet.pool import Pool
    from kvsim.fleet.world import Process
    from kvsim.results.totals import Totals


class Host(Protocol):
    """The interface of :class:`kvsim.fleet.fleet.Fleet` to its features."""

    drive: FleetClock
    clients: Clients
    pools: Sequence[Pool]
    features: list[Feature]
    unplaced: list[int]

    @property
    def is_done(self) -> bool:
        """Return True if all requests have been sent and have ended."""

    def place(self, row: int, now: float) -> None:
        """Assign a request to a replica, now or as soon as one is ready. Mutates."""

    def choose(self, pool: Pool, row: int, now: float) -> Member | None:
        """Return the replica that a pool's gateways choose; None if they reject the request."""

    def submit(self, member: Member, row: int, now: float) -> None:
        """Submit a request to a replica. Mutates."""

    def turn_away(self, row: int) -> None:
        """Answer a request without serving it. Mutates."""

    def place_again(self, rows: list[int]) -> None:
        """Place the requests of a lost replica, and all requests without a replica. Mutates."""

    def notify_ended(self, rows: list[int], time: float) -> None:
        """Notify the clients that requests end at a time. Mutates."""


class Feature:
    """A part of a fleet; each hook does nothing unless a feature overrides it.

    Hooks are called feature by feature in the order of ``Fleet.features``.

    Attributes
    ----------
    num_held_back : requests that wait before they are placed
    num_open : requests in handoff between two replicas
    awaits_something : True if a pending transfer or timeout will let a replica continue
    waited_until : earliest time at which the run may end, seconds, since requests wait at a failed
        replica until then
    """

    num_held_back: int = 0
    num_open: int = 0
    awaits_something: bool = False
    waited_until: float = -math.inf

    def processes(self) -> Iterable[Process]:
        """Return the processes that the feature adds to the world."""
        return ()

    # -- requests arrive -------------------------------------------------------------------------

    def on_send(self, row: int) -> bool:
        """Handle a request that is sent now; True if the feature places it. May mutate."""
        return False

    def on_place(self, row: int, target: Member | None, now: float) -> bool:
        """Handle the choice of a replica for a request; True if the feature submits it. May mutate.

        ``target`` is None if the gateways have rejected the request.
        """
        return False

    def on_submit(self, member: Member, row: int, now: float) -> None:
        """Handle a request that is about to be submitted to a replica. May mutate."""

    def on_turned_away(self, row: int) -> None:
        """Handle a request that is answered without being served. May mutate."""

    # -- replicas report -------------------------------------------------------------------------

    def on_started(self, member: Member, row: int, num_tokens: int, time: float) -> None:
        """Handle a request that has blocks for ``num_tokens`` of KV to be loaded. May mutate.

        With 0 tokens it needs no external KV, or its replica computes all tokens.
        """

    def on_ended(self, member: Member, rows: list[int], time: float) -> bool:
        """Handle requests that have ended on a replica; True if the feature notifies clients."""
        return False

    def on_answered(self, time: float) -> None:
        """Handle the notice to clients that requests have ended. May mutate."""

    def unblock(self) -> bool:
        """Release requests if no replica can run; True if an event is scheduled. May mutate."""
        return False

    # -- replicas start and stop -----------------------------------------------------------------

    def waits_for(self, member: Member) -> bool:
        """Return True if a request is in transfer from or to a replica."""
        return False

    def on_lost(self, member: Member) -> None:
        """Handle the failure of a replica. May mutate."""

    def on_detected(self, member: Member) -> list[int]:
        """Handle the detection of a failure; return requests that it cost other replicas."""
        return []

    def on_resumed(self, rows: Sequence[int]) -> None:
        """Handle requests that are about to continue on another replica. May mutate."""

    # -- the end ---------------------------------------------------------------------------------

    def on_run_ended(self) -> None:
        """Handle the end of the run's events, before ``settle`` is called. May mutate."""

    def settle(self, totals: Mapping[int, Totals]) -> None:
        """Complete the requests table, and the totals by replica number. May mutate."""

    def describe(self) -> dict[str, Any]:
        """Return the feature's entries of the summary."""
        return {}
