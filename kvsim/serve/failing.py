"""Failures of live replicas, drawn by the option ``failures`` or ordered by a request's header."""

from __future__ import annotations

import asyncio
import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from kvsim.config import Config
from kvsim.engine.setup import of_engine
from kvsim.fleet.pool_setups import resolve_fleet
from kvsim.fleet.scaling.cold_start import make_cold_start
from kvsim.fleet.scaling.failures import FAILURES
from kvsim.registry import parse_spec
from kvsim.serve.messages import Refused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kvsim.fleet.scaling.failures import Failures
    from kvsim.pool_config import PoolConfig
    from kvsim.serve.live import Live

#: Header of a request: the status of its answer, or ``replica``, which makes the replica fail now.
HEADER = "X-Kvsim-Fail"
#: Parameters of ``failures`` that the gateway under test decides.
OF_GATEWAY = ("detection", "policy", "limit", "lease", "max_seq_len")


class Failing:
    """A replica that may fail: it loses its requests and its KV, and starts again.

    Parameters
    ----------
    live : the replica
    cold_start : simulated seconds until it answers again
    failures : draws the times of failures; None for no failures
    num_gpus : GPUs of the replica, each of which may fail
    planned : simulated seconds until a planned failure
    """

    def __init__(
        self,
        live: Live,
        cold_start: float = Config.model_fields["cold_start"].default,
        failures: Failures | None = None,
        num_gpus: int = 1,
        planned: float = math.inf,
    ) -> None:
        self._live, self._cold_start = live, cold_start
        self._failures, self._num_gpus, self._planned = failures, num_gpus, planned
        self._answers: set[asyncio.Task[Any]] = set()
        self._next: asyncio.TimerHandle | None = None  # timer of the next drawn failure
        self.is_down = False

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Cancel the current task if the replica fails during it."""
        task: Any = asyncio.current_task()
        self._answers.add(task)
        try:
            yield
        finally:
            self._answers.discard(task)

    def obey(self, asked: str | None) -> None:
        """Fail as the header of a request orders; None orders nothing. Mutates.

        Raises
        ------
        Refused
            With the status that the header names; with status 400 for an invalid header.
        """
        if asked is None:
            return
        if asked == "replica":
            try:
                self.check()
            except ValueError as error:
                raise Refused(f"{HEADER}: {asked}: {error}") from None
            self.fail()
            hang_up()
        if asked.isdecimal() and 400 <= int(asked) <= 599:
            raise Refused(f"the request fails, as {HEADER} says", int(asked))
        raise Refused(f"{HEADER}: {asked}: must be a status from 400 to 599, or replica")

    def check(self) -> None:
        """Refuse a replica that cannot lose its KV.

        Raises
        ------
        ValueError
            For KV memory that is not a pool of blocks.
        """
        self._live.engine.free_queue()  # raises without a pool of blocks, which a failure needs

    def fail(self) -> None:
        """Lose the requests and the KV, and close the requests' connections. Mutates."""
        if self.is_down:
            return
        self.is_down = True
        if self._next is not None:
            self._next.cancel()
        self._live.lose_all()
        for task in self._answers:
            task.cancel()
        self._call_in(self._cold_start, self._start)

    def _start(self) -> None:
        self.is_down = False
        if self._failures is not None:
            self._next = self._call_in(self._failures.draw(self._num_gpus), self.fail)

    def begin(self) -> None:
        """Start the timers of the first drawn and of the planned failure. Mutates."""
        self._start()
        self._call_in(self._planned, self.fail)

    def _call_in(self, seconds: float, action: Any) -> asyncio.TimerHandle | None:
        if seconds == math.inf:
            return None
        delay = self._live.clock.delay(self._live.clock.now + seconds)
        return asyncio.get_running_loop().call_later(delay or 0.0, action)


def hang_up() -> NoReturn:
    """Close the connection of the request in progress without an answer."""
    raise asyncio.CancelledError  # to aiohttp, the client has gone


def failures_of(deployment: Mapping[str, Any], pools: Sequence[PoolConfig]) -> Failures | None:
    """Return the failures of a fleet, None for none; the first pool answers requests.

    Raises
    ------
    ValueError
        For wrong options, and for parameters that a gateway decides.
    """
    text = deployment.get("failures")
    if text is None:
        return None
    failures = FAILURES.make(text)
    for name in parse_spec(text)[1].keys() & OF_GATEWAY:
        raise ValueError(f"failures: {text}: {name}: is up to the gateway before kvsim serve")
    failures.seed(deployment.get("seed", 0))
    if failures.planned is not None:
        role = failures.planned.role or pools[0].role
        sizes = [one.replicas for one in pools if one.role == role]
        if not sizes:
            raise ValueError(f"failures: {text}: pool: there is no pool of that role")
        if failures.planned.place >= sizes[0]:
            raise ValueError(f"failures: {text}: replica must be below {sizes[0]}")
    return failures


def failing_replicas(
    lives: Sequence[Live],
    failures: Failures | None,
    deployment: Mapping[str, Any],
    options: dict[str, Any],
) -> list[Failing]:
    """Return for each replica of a pool the object that makes it fail.

    Parameters
    ----------
    failures : the failures of the fleet
    deployment : options of the fleet
    options : options of the pool's replicas

    Raises
    ------
    ValueError
        For wrong options, and for replicas that cannot fail.
    """
    if failures is None and "cold_start" not in deployment:
        return [Failing(one) for one in lives]
    setup = resolve_fleet(of_engine(Config.build(**options)))
    config = setup.config
    num_gpus = config.tensor_parallel_size * config.pipeline_parallel_size
    given = deployment.get("cold_start", Config.model_fields["cold_start"].default)
    cold_start = make_cold_start(given)(setup.memory.budget.weights * num_gpus)
    planned = None if failures is None else failures.planned
    found = []
    for place, live in enumerate(lives):
        roles = (live.role,) if live.role == "prefill" else (live.role, None)
        is_meant = planned is not None and planned.place == place and planned.role in roles
        time = planned.time if is_meant and planned is not None else math.inf
        found.append(Failing(live, cold_start, failures, num_gpus, time))
    if failures is not None:
        found[0].check()
    return found
