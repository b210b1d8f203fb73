"""Prefixes that replicas read from a store, or from each other, instead of computing them.

The fetch is decided when a request arrives at its replica. The entries are looked up again when
blocks have been allocated; if any has been evicted by then, the replica computes the prefix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.fleet.disaggregation.transfer_size import num_descriptors, transfer_bytes
from kvsim.fleet.disaggregation.transfers import Transfers
from kvsim.fleet.fabric import fabric_of
from kvsim.fleet.facts import prefill_timer
from kvsim.fleet.feature import Feature
from kvsim.fleet.member import Life

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.fleet.clock import FleetClock
    from kvsim.fleet.fabric import Fabric
    from kvsim.fleet.kv_store.store import Portion, Store
    from kvsim.fleet.member import Member
    from kvsim.fleet.pool import Pool
    from kvsim.fleet.world import World
    from kvsim.results.totals import Totals


@dataclass(slots=True, eq=False)
class Fetch:
    """One request's prefix, in transfer to its replica.

    Parameters
    ----------
    row : row of the trace
    target : the replica
    keys : keys of the prompt's entries
    num_offered : number of leading prompt tokens in the store when the request arrived
    start_time : earliest start of its transfers, seconds; infinite until it has its blocks
    num_open : transfers that have not ended
    sources : replicas from which the prefix is read
    ways : network and number of each of its transfers
    """

    row: int
    target: Member
    keys: Sequence[int]
    num_offered: int
    start_time: float = math.inf
    num_open: int = 0
    sources: list[Member] = field(default_factory=list)
    ways: list[tuple[Transfers, int]] = field(default_factory=list)

    @property
    def has_sources(self) -> bool:
        """Return True if all its source replicas are alive."""
        return all(is_there(one) for one in self.sources)


def is_there(member: Member | None) -> bool:
    """Return True if a replica's memory can be read and written."""
    return member is not None and member.life in (Life.READY, Life.DRAINING)


class Fetches(Feature):
    """Offers requests the prefixes that a store holds, and fetches them.

    Parameters
    ----------
    world : the SimPy environment
    drive : the replicas' clock
    pool : the pool of the replicas that read
    store : the store they read
    fabric : default fabric of the fleet
    """

    def __init__(
        self, world: World, drive: FleetClock, pool: Pool, store: Store, fabric: Fabric
    ) -> None:
        self._world, self._drive, self._store = world, drive, store
        self.pool = pool
        self._gateways = pool.gateways
        self._reader = pool.gateways.reader(store.event_delay, pool.setup)
        self._tokens = self._reader.entry_tokens
        self._fabric, self._transfer_time = fabric, np.zeros(len(pool.trace))
        self._transfers: dict[str, Transfers] = {}
        self._prefill_time = prefill_timer(pool.setup)
        self._open: dict[int, Fetch] = {}
        self._counts = dict.fromkeys(("num_found", "num_declined", "num_gone", "num_fetches"), 0)
        self._num_tokens = 0
        store.start(self._reader, transfer_bytes(pool.setup, self._tokens))
        self._reader.leavers.append(store.forget)
        pool.gateways.own_tiers = self._own_tiers

    @property
    def awaits_something(self) -> bool:  # type: ignore[override]
        """Return True if a fetch is in progress."""
        return any(one.start_time < math.inf for one in self._open.values())

    # -- a request arrives -------------------------------------------------------------------------

    def on_submit(self, member: Member, row: int, now: float) -> None:
        if member.role == self.pool.role and member.life is not Life.FAILED:
            self._offer(row, member, now)

    def _offer(self, row: int, target: Member, now: float) -> None:
        """Offer a replica the prefix it may fetch for an arriving request. Mutates."""
        self._open.pop(row, None)  # a request of a lost replica is placed again
        request = self._gateways.request(row, now)
        keys: list[int] = self._reader.entry_path(request).tolist()
        portions = self._look_up(keys, target, now)
        num_tokens = self._tokens * sum(portion.num_entries for portion in portions)
        cached = target.replica.num_cached_tokens(request)
        if num_tokens <= cached:
            return
        self._counts["num_found"] += 1
        prompt = request.num_prompt_tokens
        if self._store.pull == "cheaper":
            saved = self._prefill_time(prompt, cached)
            saved -= self._prefill_time(prompt, min(num_tokens, prompt - 1))
            if self._time(portions, cached, target) >= saved:
                self._counts["num_declined"] += 1
                return
        self._open[row] = Fetch(row, target, keys, num_tokens)
        target.replica.offer(row, num_tokens)

    def _own_tiers(self, request: IncomingRequest) -> list[list[Portion]]:
        """Return a request's portions in each replica's own tiers, as the store reports them."""
        keys, now = self._reader.entry_path(request).tolist(), self._world.now
        self._reader.update(now)
        return [self._store.own_tiers(keys, place, now) for place in range(len(self.pool.places))]

    def _look_up(self, keys: Sequence[int], target: Member, now: float) -> list[Portion]:
        self._reader.update(now)
        return self._store.look_up(keys, target.place, now)

    def _time(self, portions: Sequence[Portion], cached: int, target: Member) -> float:
        """Return the seconds of a fetch that shares the replica's link with open fetches."""
        sharers = 1 + sum(one.num_open > 0 for one in self._open.values() if one.target is target)
        times = [0.0]
        for portion, begin, end in self._beyond(portions, cached):
            fabric, tokens = self._over(portion.tier).fabric, end - begin
            wire = transfer_bytes(self.pool.setup, tokens) / fabric.bandwidth
            posts = num_descriptors(self.pool.setup, tokens) * fabric.per_descriptor
            times.append(fabric.base + posts + sharers * wire)
        return max(times)

    def _beyond(self, portions: Sequence[Portion], cached: int) -> list[tuple[Portion, int, int]]:
        """Return the portions beyond a replica's cached tokens, each with its token range."""
        found, end = [], 0
        for portion in portions:
            begin, end = end, end + self._tokens * portion.num_entries
            if end > cached:
                found.append((portion, max(begin, cached), end))
        return found

    def _over(self, tier: str) -> Transfers:
        if tier not in self._transfers:
            own = self._store.fabrics.get(tier)
            fabric = self._fabric if own is None else fabric_of(own)
            self._transfers[tier] = Transfers(self._world, fabric)
        return self._transfers[tier]

    # -- blocks are allocated ----------------------------------------------------------------------

    def on_started(self, member: Member, row: int, num_tokens: int, time: float) -> None:
        """Handle a request with blocks for ``num_tokens`` tokens to fetch, possibly 0. Mutates."""
        fetch = self._open.get(row)
        if fetch is None or member.role != self.pool.role:
            return
        if num_tokens == 0:
            del self._open[row]
            return
        fetch.start_time = time
        self._world.call_at(time, lambda: self._begin(fetch, num_tokens))

    def _begin(self, fetch: Fetch, num_tokens: int) -> None:
        now = self._world.now
        if self._open.get(fetch.row) is not fetch or not is_there(fetch.target):
            return
        portions = self._look_up(fetch.keys, fetch.target, now)
        total = self._tokens * sum(portion.num_entries for portion in portions)
        ways = self._beyond(portions, fetch.num_offered - num_tokens)
        places = [one.source for one, _, _ in ways if isinstance(one.source, int)]
        sources = [self.pool.places[place] for place in places]
        if total < fetch.num_offered or not all(is_there(one) for one in sources):
            self._close(fetch, failed=True)
            return
        fetch.sources = [one for one in sources if one is not None]
        for portion, begin, end in ways:
            tokens = min(end, fetch.num_offered) - begin
            if tokens > 0:
                fetch.num_open += 1
                way = self._over(portion.tier)
                number = way.begin(
                    ("read", fetch.row) if portion.source is None else portion.source,
                    fetch.target.place,
                    transfer_bytes(self.pool.setup, tokens),
                    num_descriptors(self.pool.setup, tokens),
                    now,
                    lambda: self._end(fetch, num_tokens),
                )
                fetch.ways.append((way, number))

    def _end(self, fetch: Fetch, num_tokens: int) -> None:
        fetch.num_open -= 1
        if fetch.num_open or self._open.get(fetch.row) is not fetch or not is_there(fetch.target):
            return
        if fetch.has_sources:
            self._transfer_time[fetch.row] = self._world.now - fetch.start_time
            self._num_tokens += num_tokens
            keys = fetch.keys[: fetch.num_offered // self._tokens]
            self._store.read(keys, fetch.target.place, self._world.now)
        self._close(fetch, failed=not fetch.has_sources)

    def _close(self, fetch: Fetch, *, failed: bool) -> None:
        """Close a fetch: the replica continues with the KV read, or computes it."""
        self._counts["num_gone"] += failed
        self._counts["num_fetches"] += not failed
        del self._open[fetch.row]
        fetch.target.replica.report(self._world.now, received=fetch.row, failed=failed)
        self._drive.touch(fetch.target)

    def on_lost(self, member: Member) -> None:
        """Cancel the fetches of a replica that has failed. Mutates."""
        for fetch in [one for one in self._open.values() if one.target is member]:
            for way, number in fetch.ways:
                way.cancel(number)
            del self._open[fetch.row]

    # -- the end -----------------------------------------------------------------------------------

    def settle(self, totals: Mapping[int, Totals]) -> None:
        """Record durations of fetches, unless a transfer to a decode replica follows. Mutates."""
        del totals
        if self.pool.role == "mixed" and self._transfer_time.any():
            self.pool.table["transfer_time"] = self._transfer_time

    def describe(self) -> dict[str, Any]:
        times = self._transfer_time[self._transfer_time > 0]
        described = {
            **self._counts,
            "num_tokens": self._num_tokens,
            "bytes": {tier: way.num_bytes for tier, way in sorted(self._transfers.items())},
            "num_evicted": self._store.num_evicted,
            "mean_ms": 1e3 * float(times.mean()) if len(times) else None,
            "p99_ms": 1e3 * float(np.percentile(times, 99)) if len(times) else None,
        }
        return {"kv_store": described}
