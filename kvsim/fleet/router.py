"""Which replica serves a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kvsim.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.engine.backend import Backend


class Router(Protocol):
    """Chooses a replica for each request, in order of arrival.

    ``looks_at_replicas`` says whether a choice depends on the replicas' state. If not, the choices
    can be made before the run, and the replicas need not wait for each other.
    """

    looks_at_replicas: bool

    def choose(self, request_id: int, replicas: Sequence[Backend]) -> int:
        """Return the index of the replica. Mutates only the router."""


ROUTERS: Registry[Router] = Registry("router")


@ROUTERS.register("round-robin")
class RoundRobin:
    """One after the other."""

    looks_at_replicas = False

    def __init__(self) -> None:
        self._next = 0

    def choose(self, request_id: int, replicas: Sequence[Backend]) -> int:  # noqa: D102 - see Router
        del request_id
        choice = self._next
        self._next = (choice + 1) % len(replicas)
        return choice


@ROUTERS.register("least-outstanding")
class LeastOutstanding:
    """The replica with the fewest unfinished requests, the first of several."""

    looks_at_replicas = True

    def choose(self, request_id: int, replicas: Sequence[Backend]) -> int:  # noqa: D102
        del request_id
        loads = [replica.num_outstanding() for replica in replicas]
        return loads.index(min(loads))
