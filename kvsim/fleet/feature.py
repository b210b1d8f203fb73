"""The parts of a fleet that a run may do without, and the hooks by which they take part in it."""

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
    """The fleet, to its features; see :class:`kvsim.fleet.fleet.Fleet`."""

    drive: FleetClock
    clients: Clients
    pools: Sequence[Pool]
    features: list[Feature]
    unplaced: list[int]

    @property
    def is_done(self) -> bool:
        """Whether all requests have been sent and have ended."""

    def place(self, row: int, now: float) -> None:
        """Give a request to a replica, when there is one. Mutates."""

    def choose(self, pool: Pool, row: int, now: float) -> Member | None:
        """Return the replica that a pool's gateways choose; None if they reject the request."""

    def submit(self, member: Member, row: int, now: float) -> None:
        """Give a request to a replica. Mutates."""

    def turn_away(self, row: int) -> None:
        """Answer a request without serving it. Mutates."""

    def place_again(self, rows: list[int]) -> None:
        """Place requests of a lost replica, and those that waited for a replica. Mutates."""

    def tell_ended(self, rows: list[int], time: float) -> None:
        """Tell the clients that requests end at a time. Mutates."""


class Feature:
    """A part of a fleet; each hook does nothing unless a feature overrides it.

    Hooks are called feature by feature in the order of ``Fleet.features``.

    Attributes
    ----------
    num_held_back : requests that wait before they are placed
    num_open : requests between two replicas
    awaits_something : a transfer or a timeout will let a replica continue
    waited_until : when requests have waited at a failed replica until the run's end, seconds
    """

    num_held_back: int = 0
    num_open: int = 0
    awaits_something: bool = False
    waited_until: float = -math.inf

    def processes(self) -> Iterable[Process]:
        """Return what runs in the world beside clients and replicas."""
        return ()

    # -- requests come ---------------------------------------------------------------------------

    def on_send(self, row: int) -> bool:
        """Learn that a request is sent now; True if the feature places it. May mutate."""
        return False

    def on_place(self, row: int, target: Member | None, now: float) -> bool:
        """Learn for which replica a request is meant; True if the feature submits it. May mutate.

        Without a target the gateways have rejected it.
        """
        return False

    def on_submit(self, member: Member, row: int, now: float) -> None:
        """Learn that a request is about to be submitted to a replica. May mutate."""

    def on_turned_away(self, row: int) -> None:
        """Learn that a request is answered without being served. May mutate."""

    # -- replicas report -------------------------------------------------------------------------

    def on_started(self, member: Member, row: int, num_tokens: int, time: float) -> None:
        """Learn that a request has blocks for KV of so many tokens to be loaded. May mutate.

        With 0 tokens it needs none, or computes all.
        """

    def on_ended(self, member: Member, rows: list[int], time: float) -> bool:
        """Learn that requests have ended on a replica; True if the feature tells the clients."""
        return False

    def on_answered(self, time: float) -> None:
        """Learn that clients are told of the end of requests. May mutate."""

    def unblock(self) -> bool:
        """Let requests go on where no replica does; whether something is scheduled. May mutate."""
        return False

    # -- replicas come and go --------------------------------------------------------------------

    def waits_for(self, member: Member) -> bool:
        """Whether a request is on its way from or to a replica."""
        return False

    def on_lost(self, member: Member) -> None:
        """Learn that a replica has failed. May mutate."""

    def on_detected(self, member: Member) -> list[int]:
        """Learn that a failure is detected; return the requests lost besides those there."""
        return []

    def on_resumed(self, rows: Sequence[int]) -> None:
        """Learn that requests are about to continue on another replica. May mutate."""

    # -- the end ---------------------------------------------------------------------------------

    def on_run_ended(self) -> None:
        """Learn that nothing happens any more; the table is not settled yet. May mutate."""

    def settle(self, totals: Mapping[int, Totals]) -> None:
        """Complete the requests table and the totals of each replica, by number. May mutate."""

    def describe(self) -> dict[str, Any]:
        """Return entries of the summary."""
        return {}
