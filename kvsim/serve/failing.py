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
    from collections.abc import Iterator, Sequence

    from kvsim.fleet.scaling.failures import Failures
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
    failures : draws or plans the times of failures; None for no failures
    num_gpus : GPUs of the replica, each of which may fail
    place : number of the replica in its pool
    """

    def __init__(
        self,
        live: Live,
        cold_start: float = Config.model_fields["cold_start"].default,
        failures: Failures | None = None,
        num_gpus: int = 1,
        place: int = 0,
    ) -> None:
        self._live, self._cold_start = live, cold_start
        self._failures, self._num_gpus, self._place = failures, num_gpus, place
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
            For a prefill or decode replica, and for KV memory that is not a pool of blocks.
        """
        if self._live.handover is not None:
            raise ValueError("cannot fail a prefill or decode replica")
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
        planned = None if self._failures is None else self._failures.planned
        if planned is not None and planned.place == self._place:
            self._call_in(planned.time, self.fail)

    def _call_in(self, seconds: float, action: Any) -> asyncio.TimerHandle | None:
        if seconds == math.inf:
            return None
        delay = self._live.clock.delay(self._live.clock.now + seconds)
        return asyncio.get_running_loop().call_later(delay or 0.0, action)


def hang_up() -> NoReturn:
    """Close the connection of the request in progress without an answer."""
    raise asyncio.CancelledError  # to aiohttp, the client has gone


def failing_replicas(
    lives: Sequence[Live], deployment: dict[str, Any], options: dict[str, Any]
) -> list[Failing]:
    """Return for each replica of a pool the object that makes it fail.

    Parameters
    ----------
    deployment : options of the fleet
    options : options of the pool's replicas

    Raises
    ------
    ValueError
        For wrong options, and for parameters that a gateway decides.
    """
    text, failures = deployment.get("failures"), None
    if text is None and "cold_start" not in deployment:
        return [Failing(one) for one in lives]
    if text is not None:
        failures = FAILURES.make(text)
        for name in parse_spec(text)[1].keys() & OF_GATEWAY:
            raise ValueError(f"failures: {text}: {name}: is up to the gateway before kvsim serve")
        failures.seed(deployment.get("seed", 0))
        if failures.planned is not None and failures.planned.place >= len(lives):
            raise ValueError(f"failures: {text}: replica must be below {len(lives)}")
        if failures.planned is not None and failures.planned.role not in (None, "mixed"):
            raise ValueError(f"failures: {text}: pool: there is no pool of that role")
    setup = resolve_fleet(of_engine(Config.build(**options)))
    config = setup.config
    num_gpus = config.tensor_parallel_size * config.pipeline_parallel_size
    given = deployment.get("cold_start", Config.model_fields["cold_start"].default)
    cold_start = make_cold_start(given)(setup.memory.budget.weights * num_gpus)
    found = [Failing(one, cold_start, failures, num_gpus, k) for k, one in enumerate(lives)]
    if failures is not None:
        found[0].check()
    return found
