"""The gateways of a run: routers, their views of the replicas, and records of their choices."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.engine.checks import called
from kvsim.engine.setup import with_events
from kvsim.fleet.facts import Facts, decode_timer, prefill_pricer, prefill_timer
from kvsim.fleet.prefix_index.event_reader import EventReader
from kvsim.fleet.prefix_index.index import PrefixIndex
from kvsim.fleet.prefix_index.prefix_holders import PrefixHolders
from kvsim.fleet.prefix_index.prompt_keys import PromptKeys, RoutedRequest
from kvsim.fleet.routing.router import REJECT
from kvsim.fleet.routing.scraper import Scraper
from kvsim.fleet.routing.view import ReplicaView
from kvsim.fleet.scaling.empty_slot import EmptySlot
from kvsim.fleet.tracking.bookkeeping import Decisions
from kvsim.fleet.tracking.in_flight_tracker import InFlightTracker
from kvsim.fleet.tracking.lifecycle_events import PythonLifecycleEvents
from kvsim.records.paged import FULL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.engine.replica import Replica
    from kvsim.engine.setup import Setup
    from kvsim.fleet.kv_store.store import Portion
    from kvsim.fleet.routing.router import Router
    from kvsim.fleet.tracking.lifecycle_events import LifecycleEvents
    from kvsim.kv.events import EventRows
    from kvsim.pool_config import Role
    from kvsim.trace import Trace

#: Seed word that separates the random numbers of routers from those of workloads.
ROUTING = 0x726F757465

#: Types that a router's choice may have.
WHOLE = (int, np.integer)


class Gateways:
    """The gateways of a pool, which route its requests in turn.

    Parameters
    ----------
    routers : one per gateway; unused with a single replica
    setup : setup of the replicas, with events if any router reads them
    trace : the requests
    table : the run's requests table
    start_time : start of the run, seconds
    counts_sent : count a request from the time it is sent, not from its arrival at the replica
    role : role of the replicas
    fetch_time : function of a number of tokens; it returns the seconds to read their KV from
        another replica; None if unused
    watches_prefills : a flow control reads ``num_prefill_tokens``
    name : name of the router, as shown to the user

    Attributes
    ----------
    rejected : rows of requests that the routers rejected
    """

    def __init__(
        self,
        routers: Sequence[Router],
        setup: Setup,
        trace: Trace,
        table: NDArray[Any],
        replicas: Sequence[Replica | EmptySlot],
        start_time: float,
        *,
        counts_sent: bool = False,
        role: Role = "mixed",
        fetch_time: Callable[[int], float] | None = None,
        watches_prefills: bool = False,
        name: str = "",
    ) -> None:
        self.name = name
        self.rejected: list[int] = []
        self._routers = routers
        self._trace = trace
        everyone: list[Any] = list(replicas)  # an empty slot has a replica's interface
        self.prompt_keys = PromptKeys(trace, compiled=everyone[0].compiled)
        self._replicas = everyone
        self._request_blocks = PrefixHolders(everyone)
        self._choosing = len(replicas) > 1 or watches_prefills
        self._shown = list(range(len(replicas)))
        self.looks = self._choosing and any(router.looks for router in routers)
        caches = setup.kv_config.enable_prefix_caching
        num_choices = len(trace) if self._choosing else 0
        self.decisions = Decisions(num_choices, len(replicas), compares=self.looks and caches)
        shares = len(routers) > 1 or counts_sent
        self._views = [
            [ReplicaView(i, one, shares=shares) for i, one in enumerate(everyone)] for _ in routers
        ]
        self._ledger: InFlightTracker | None = None
        if watches_prefills or (self._choosing and self._watches_requests(shares=shares)):
            self._ledger = InFlightTracker(
                make_lifecycle_events(everyone, table), table, routers, self._views
            )
        self._scrapers: dict[float, Scraper] = {}
        self._readers: dict[float, EventReader] = {}
        self._scraped = -math.inf
        #: See :class:`kvsim.fleet.facts.Facts`; None if no store reports its tiers.
        self.own_tiers: Callable[[IncomingRequest], Sequence[Sequence[Portion]]] | None = None
        if self._choosing:
            self._start(setup, start_time, role, fetch_time)

    def _watches_requests(self, *, shares: bool) -> bool:
        """Return True if a router reads the lifecycle events of its own requests."""
        return (self.looks and shares) or any(one.watches_requests for one in self._routers)

    def _start(
        self, setup: Setup, start_time: float, role: Role, fetch_time: Callable[[int], float] | None
    ) -> None:
        prefill_time, step_time = prefill_timer(setup), decode_timer(setup)
        price_prefills = prefill_pricer(setup)
        for number, router in enumerate(self._routers):
            interval, delay = router.scrape_interval, router.event_delay
            if interval is not None:
                self.scraper(interval, start_time)
            reader = None
            if delay is not None and setup.kv_config.events:
                reader = self._reader_of(delay, setup)
            router.start(
                Facts(
                    num_replicas=len(self._replicas),
                    block_size=setup.kv.block_size,
                    num_kv_tokens=setup.kv.num_gpu_blocks * setup.kv.block_size,
                    max_num_batched_tokens=setup.scheduler_config.max_num_batched_tokens,
                    start_time=start_time,
                    rng=np.random.default_rng([setup.config.seed, ROUTING, number]),
                    index=reader.index if reader else PrefixIndex(len(self._replicas)),
                    entry_tokens=reader.entry_tokens if reader else setup.kv.block_size,
                    entry_path=reader.entry_path if reader else no_path,
                    prefill_time=prefill_time,
                    step_time=step_time,
                    fetch_time=fetch_time,
                    price_prefills=price_prefills,
                    own_tiers=self._own_tiers,
                    compiled=self._replicas[0].compiled,
                    decodes_only=role == "decode",
                    prefills_only=role == "prefill",
                )
            )

    def _own_tiers(self, request: IncomingRequest) -> Sequence[Sequence[Portion]]:
        return [] if self.own_tiers is None else self.own_tiers(request)

    def _reader_of(self, delay: float, setup: Setup) -> EventReader:
        """Return the event reader for a delay; all gateways with this delay share it."""
        if delay not in self._readers:
            self._readers[delay] = make_reader(self._replicas, delay, setup)
        return self._readers[delay]

    def reader(self, delay: float, setup: Setup) -> EventReader:
        """Return a reader of the replicas' events: that of a router, or else a new one."""
        return next(iter(self._readers.values()), None) or self._reader_of(delay, setup)

    def scraper(self, interval: float, start_time: float) -> Scraper:
        """Return the scraper that reads the replicas' metrics at an interval."""
        if interval not in self._scrapers:
            self._scrapers[interval] = Scraper(self._replicas, interval, start_time)
        return self._scrapers[interval]

    def request(self, request_id: int, now: float) -> RoutedRequest:
        """Return a request of the trace that arrives at ``now``, as routers read it."""
        return RoutedRequest(self._trace, request_id, now, self.prompt_keys)

    def num_prefill_tokens(self, places: Sequence[int]) -> list[int]:
        """Return the prompt tokens in flight at each given slot, from all gateways together.

        The prompts of requests without a first token count, less the tokens predicted as cached.
        """
        self.catch_up()
        return [
            sum(views[place].local.num_uncached_tokens for views in self._views) for place in places
        ]

    def num_known_tokens(self, request_id: int, now: float) -> int:
        """Return the longest prefix of a prompt that any replica's events report, in tokens."""
        most, request = 0, self.request(request_id, now)
        for reader in self._readers.values():
            reader.update(now)
            held = reader.index.match(reader.entry_path(request), now)
            most = max(most, reader.entry_tokens * int(max(held)))
        return most

    def __len__(self) -> int:
        """Number of slots for replicas."""
        return len(self._replicas)

    @property
    def num_requests(self) -> int:
        return len(self._trace)

    def alone(self) -> tuple[Any, Any]:
        """Return the router if it is the only one, else None, and an event reader or None."""
        router = self._routers[0] if self._choosing and len(self._routers) == 1 else None
        return router, next(iter(self._readers.values()), None)

    @property
    def num_prompt_tokens(self) -> NDArray[Any]:
        return self._trace.num_prompt_tokens

    @property
    def session_ids(self) -> NDArray[Any]:
        return self._trace.session_id

    def scrape_times(self) -> tuple[float, float]:
        """Return the time of the first scrape and the seconds between two; zeros for no scrapes."""
        for interval, scraper in self._scrapers.items():
            return scraper.start_time, interval
        return 0.0, 0.0

    def prompts(self) -> tuple[NDArray[Any], ...]:
        """Return the contents of prompts as columns; see :class:`PromptKeys`."""
        return self.prompt_keys.columns()

    # -- choices -----------------------------------------------------------------------------------

    def choose(self, request_id: int, now: float) -> int:
        """Return the replica that the next gateway chooses, or REJECT. Mutates."""
        if not self._choosing:
            return 0
        number = self.decisions.num_noted % len(self._routers)
        router, views = self._routers[number], self._views[number]
        if len(self._shown) < len(views):
            views = [views[place] for place in self._shown]
        if self.looks:
            self._refresh(number, now)
        request = self.request(request_id, now)
        if self.decisions.is_compared:
            self.decisions.best[request_id] = self._request_blocks.most(
                request, self._deepest(request)
            )
        choice = router.choose(request, views)
        if not isinstance(choice, WHOLE) or not REJECT <= choice < len(views):
            raise ValueError(
                f"router {type(router).__name__} chose {choice!r}: must be a whole "
                f"number below {len(views)}, the index of the replica, or {REJECT} to "
                "reject"
            )
        self.decisions.note(request_id, router)
        if choice == REJECT:
            self.rejected.append(request_id)
        choice = choice if choice == REJECT else views[choice].index
        if self._ledger is not None and choice != REJECT:
            cached = min(router.predicted_tokens or 0, request.num_prompt_tokens)
            self._ledger.send(number, choice, request, request.num_prompt_tokens - cached)
        return choice

    def predicted_tokens(self, request_id: int) -> int | None:
        """Return the prompt tokens that the router predicted to be cached; None if unknown."""
        if not self._choosing or self.decisions.predicted[request_id] < 0:
            return None
        return int(self.decisions.predicted[request_id])

    def _deepest(self, request: IncomingRequest) -> int | None:
        """Return the replica with the longest cached prefix of a prompt; None if unknown."""
        everyone = len(self._shown) == len(self._replicas)
        for reader in self._readers.values() if everyone else ():
            return reader.deepest(request)
        return None

    def _refresh(self, number: int, now: float) -> None:
        """Update a router's views by the metrics and events that have reached it."""
        router, views = self._routers[number], self._views[number]
        if self._ledger is not None:
            self._ledger.update()
        for reader in self._readers.values():
            reader.update(now)
        for scraper in self._scrapers.values():
            scraper.scrape_idle_replicas(now)
        if router.scrape_interval is not None:
            for view, value in zip(
                views, self._scrapers[router.scrape_interval].values, strict=True
            ):
                view.scraped = value

    # -- replicas start and stop -----------------------------------------------------------------

    def show(self, places: Sequence[int]) -> None:
        """Restrict the routers to the replicas in some slots. Mutates."""
        self._shown = list(places)
        self._request_blocks.show(self._shown)

    def withdraw(self, request_id: int, now: float) -> None:
        """Handle a request that is about to be withdrawn from its replica. Mutates."""
        if self._ledger is not None:
            self._ledger.withdraw(request_id, now)

    def follow(self, request_id: int, place: int) -> None:
        """Handle a request that continues on the replica in another slot. Mutates."""
        if self._ledger is not None:
            self._ledger.follow(request_id, place)

    def catch_up(self) -> None:
        """Process all pending lifecycle events. Mutates."""
        if self._ledger is not None:
            self._ledger.update()

    def lose(self, place: int) -> None:
        """Stop reading a replica that failed, before the failure is detected. Mutates."""
        if self._ledger is not None:
            self._ledger.lose(place)

    def forget(self, place: int, now: float) -> None:
        """Empty the slot of a replica that has been removed. Mutates."""
        self.replace(place, EmptySlot(), now)

    def replace(self, place: int, replica: Any, now: float) -> None:
        """Put a new replica into a slot. Mutates."""
        self._replicas[place] = replica
        self._request_blocks.show(self._shown)
        for scraper in self._scrapers.values():
            scraper.replace(place, replica, now)
        for reader in self._readers.values():
            reader.replace(place, replica)
        if self._ledger is not None:
            self._ledger.replace(place, replica)
        for views in self._views:
            views[place].replace(replica, now)
        for router in self._routers if self._choosing else ():
            router.on_leave(place)

    def events_read(self, place: int) -> list[EventRows]:
        """Return the recorded events of a replica that were read for a router."""
        return [chunk for reader in self._readers.values() for chunk in reader.read[place]]

    # -- metrics that replicas must stop for -----------------------------------------------------

    @property
    def scrape_interval(self) -> float:
        """The longest time between two scrapes, 0 without any."""
        return max(self._scrapers, default=0.0)

    def next_scrape(self, now: float, limit: float, *, every: bool) -> float:
        """Return the time of a scrape after now and up to a limit, ``inf`` for never.

        Routers read only the last scrape before their next request. Without ``every``, no request
        arrives before the limit, and the result is the last scrape up to it. With ``every``, a
        request may arrive earlier, and the result is the next scrape. All replicas are scraped at
        that time; see :meth:`scrape`.
        """
        if limit == math.inf and not every:
            return math.inf
        since = max(now, self._scraped)
        ask = [s.next_time(since) if every else s.last_time(limit) for s in self._scrapers.values()]
        return min((time for time in ask if since < time <= limit), default=math.inf)

    def scrape(self, time: float) -> None:
        """Scrape all replicas, which have advanced to ``time``, if a scrape is due. Mutates."""
        self._scraped = time
        for scraper in self._scrapers.values():
            if time < math.inf and scraper.last_time(time) == time:
                for place in range(len(self._replicas)):
                    scraper.ask(place, time)


def routers_with_events(setup: Setup, routers: Sequence[Router]) -> Setup:
    """Return the setup with events, if a router reads them and the replicas can emit them.

    Raises
    ------
    ValueError
        If the replicas cache prefixes and publish no events.
    """
    asked = any(router.event_delay is not None for router in routers)
    if asked and setup.kv_config.enable_prefix_caching and setup.kv.keeps_unpublished:
        raise ValueError(
            f"router {setup.config.router!r}: it needs KV cache events, and allocator "
            f"{called(setup.config)} emits none"
        )
    has_any = setup.kv.tells_events and setup.kv_config.enable_prefix_caching
    return with_events(setup) if asked and has_any else setup


def no_path(request: IncomingRequest) -> NDArray[np.int64]:
    """Return no keys: the replicas cache no prefixes."""
    del request
    return np.empty(0, np.int64)


def make_lifecycle_events(replicas: Sequence[Replica], table: NDArray[Any]) -> LifecycleEvents:
    """Return the lifecycle events of requests; compiled replicas are read in one call."""
    if not replicas[0].compiled:
        return PythonLifecycleEvents(replicas, table)
    from kvsim.fleet.tracking.compiled_lifecycle_events import CompiledLifecycleEvents

    return CompiledLifecycleEvents(replicas, table)


def make_reader(replicas: Sequence[Replica], delay: float, setup: Setup) -> EventReader:
    """Return a reader of full-attention blocks if there are any, else of another kind."""
    groups = getattr(setup.kv, "groups", ())
    full = [g for g, spec in enumerate(groups) if spec.kind == FULL]
    events = setup.config.kv_events_config
    keeps = events is not None and events.writes
    group = full[0] if full else 0
    if not replicas[0].compiled:
        return EventReader(replicas, delay, group=group, keeps=keeps)
    from kvsim.fleet.prefix_index.live_reader import LiveReader, is_live
    from kvsim.fleet.prefix_index.log_reader import LogReader

    if not keeps and is_live(replicas, delay):
        return LiveReader(replicas, delay, group=group)

    return LogReader(replicas, delay, group=group, keeps=keeps)
