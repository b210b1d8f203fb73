"""A check of a router, for authors of routers."""

from __future__ import annotations

from functools import partial
from operator import index
from typing import TYPE_CHECKING, Any

from kvsim.fleet.routing.router import REJECT, ROUTERS, Router, make_router
from kvsim.results.check import equal_tables
from kvsim.testing.serving import Run, check_runs, checked, pool_of_any_size, random_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.fleet.facts import Facts
    from kvsim.fleet.routing.view import ReplicaView


def check_router(
    router: str | Callable[..., Router], *, num_runs: int = 20, seed: int = 0, **options: Any
) -> None:
    """Check a router on random small traces, with one to four replicas.

    It must choose an existing replica, change no replica, and read only the members of a replica
    that its attributes declare. Every request must be served, and a second run must give the same
    tables. With one replica, the tables must be those of any other router. :mod:`kvsim.testing` has
    the parameters.

    Examples
    --------
    >>> from kvsim.testing import check_router
    >>> check_router("least-outstanding", num_runs=2)
    """
    check_runs(ROUTERS, router, _fleet, _check, num_runs, seed, options)


def _fleet(rng: np.random.Generator, number: int) -> dict[str, Any]:
    return pool_of_any_size(rng, number) | {
        "data_parallel_size": int(rng.integers(2, 5)),
        "max_concurrency": [None, None, 1, 3][int(rng.integers(4))],
        "enable_prefix_caching": True,
    }


def _check(run: Run) -> None:
    trace = random_trace(run.rng, max_requests=16)
    with ROUTERS.lend(partial(_Spy, run.name)) as spy:
        checked(trace, run.options | {"router": spy})
        alone = run.options | {"data_parallel_size": 1}
        one = checked(trace, alone | {"router": spy})
    other = checked(trace, alone | {"router": "round-robin"})
    for table in ("requests", "memory", "steps"):
        if not equal_tables(getattr(one, table), getattr(other, table)):
            raise AssertionError(f"with one replica, its {table} table differs from round-robin's")


#: Members of a view that a router may use, and the attribute that declares each use.
DECLARED = {
    "num_cached_tokens": "needs_prefix_cache",
    "local": "watches_requests",
    "scraped": "scrape_interval",
}


class _Guarded:
    """A replica view that only offers the members that its router declares."""

    def __init__(self, replica: ReplicaView, router: Router) -> None:
        self._replica, self._router = replica, router

    def __getattr__(self, name: str) -> Any:
        router, said = self._router, DECLARED.get(name)
        if said is not None and getattr(router, said) in (False, None):
            raise AssertionError(f"it reads {name}, and {said} is {getattr(router, said)}")
        if not (router.looks or name == "index"):
            raise AssertionError(f"it reads {name}, and looks_at_replicas is False")
        if name in ("submit", "advance", "settle"):
            raise AssertionError(f"it calls {name}, which changes a replica")
        return getattr(self._replica, name)


class _Spy(Router):
    """A wrapper that observes another router."""

    def __init__(self, name: str) -> None:
        self._router = router = make_router(name)
        self.looks_at_replicas = router.looks_at_replicas
        self.needs_prefix_cache = router.needs_prefix_cache
        self.watches_requests = router.watches_requests
        self.scrape_interval = router.scrape_interval
        self.event_delay = router.event_delay

    def start(self, facts: Facts) -> None:
        self._router.start(facts)

    def choose(self, request: IncomingRequest, replicas: Sequence[ReplicaView]) -> int:
        guarded: Any = [_Guarded(replica, self._router) for replica in replicas]
        choice = index(self._router.choose(request, guarded))
        if not REJECT <= choice < len(replicas):
            raise AssertionError(f"it chooses replica {choice} of {len(replicas)}")
        self.branch = self._router.branch
        self.predicted_tokens = self._router.predicted_tokens
        return choice

    def on_first_token(self, request_id: int, replica: int, time: float) -> None:
        self._router.on_first_token(request_id, replica, time)

    def on_finish(self, request_id: int, replica: int, time: float, num_tokens: int) -> None:
        self._router.on_finish(request_id, replica, time, num_tokens)
