"""Which replica serves a request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from kvsim.registry import Registry, parse_spec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.engine.backend import Backend
    from kvsim.engine.incoming import IncomingRequest


class Router(ABC):
    """Chooses a replica for each request, in order of arrival.

    :func:`kvsim.testing.check_router` tells whether one does what it says.

    Attributes
    ----------
    looks_at_replicas : a choice depends on the replicas' state; if not, the choices are made
        before the run, and the replicas need not wait for each other
    needs_prefix_cache : it calls ``num_cached_tokens`` of a replica; then it looks at the replicas,
        too, and need not say so. Where prefix caching is off, the answer is 0
    """

    looks_at_replicas = False
    needs_prefix_cache = False

    @abstractmethod
    def choose(self, request: IncomingRequest, replicas: Sequence[Backend]) -> int:
        """Choose who serves a request. Mutates only the router.

        Parameters
        ----------
        request : the request, read-only
        replicas : all replicas as they are now; ask ``num_outstanding``, ``num_cached_tokens``,
            ``clock`` and ``next_event_time``, and nothing that changes them

        Returns
        -------
        int
            The index of the replica.
        """


#: Factories take keyword parameters only.
ROUTERS: Registry[Router] = Registry("router", "kvsim.fleet.routers", Router, "kvsim.routers")


def make_router(text: str) -> Router:
    """Make the router ``NAME[+KEY=VALUE]...``.

    Raises
    ------
    ValueError
        For an unknown name, an unknown parameter, or a value of the wrong type.
    """
    name, params = parse_spec(text)
    return ROUTERS.create(name, **params)
