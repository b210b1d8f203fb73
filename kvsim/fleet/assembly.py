"""The parts of a run: its pools with their replicas, and its features."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engine.contents import Contents
from kvsim.engine.replica import Replica
from kvsim.fleet.admission.admissibility import admissible_requests, new_requests
from kvsim.fleet.admission.queues import Admission
from kvsim.fleet.disaggregation.handoffs import Handoffs
from kvsim.fleet.disaggregation.transfer_size import num_descriptors, transfer_bytes
from kvsim.fleet.gateways import Gateways, routers_with_events
from kvsim.fleet.kv_store.fetches import Fetches
from kvsim.fleet.kv_store.reading import fetches_of
from kvsim.fleet.member import Member
from kvsim.fleet.migration.live_migration import LiveMigrations
from kvsim.fleet.migration.resumption import ResumedRequests
from kvsim.fleet.no_progress import Standstill
from kvsim.fleet.pool import Pool
from kvsim.fleet.scaling.empty_slot import EmptySlot
from kvsim.fleet.scaling.replica_changes import ReplicaChanges
from kvsim.sched.fairness import tenant_prices, tenants_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from kvsim.engine.observers import Observer
    from kvsim.engine.setup import Setup
    from kvsim.fleet.feature import Feature, Host
    from kvsim.fleet.plan import Plan, PoolPlan
    from kvsim.fleet.world import World
    from kvsim.pool_config import Role
    from kvsim.trace import Trace


class Assembly:
    """Makes the pools of one run.

    Parameters
    ----------
    plan : the plan of the run
    trace : the requests
    on_end : called after each answered request
    observer : called after every step
    on_start : called with every replica before its first step
    choose_backend : returns why plain Python runs a pool's replicas, "" if compiled rules do

    Attributes
    ----------
    reason : why plain Python runs some pool's replicas, "" if compiled rules run all
    """

    def __init__(
        self,
        plan: Plan,
        trace: Trace,
        on_end: Callable[[], object] | None,
        observer: Observer | None,
        on_start: Callable[[Replica], object] | None,
        choose_backend: Callable[[Setup], str],
    ) -> None:
        self._plan = plan
        self._on_end = on_end
        self._observer = observer
        self._on_start = on_start
        self._choose_backend = choose_backend
        self._trace = trace
        self._prices: list[int] = []
        weights = plan.config.tenant_weights
        if weights is not None:
            if not trace.has("tenant"):
                raise ValueError("tenant_weights: the trace names no tenants")
            self._prices = tenant_prices(weights, tenants_of(trace))
        self._number = 0
        self.reason = ""

    def pools(self) -> list[Pool]:
        """Make the pools, prefill first; the main pool's replicas are numbered first. Mutates."""
        main = self._pool(self._plan.main, self._trace)
        if self._plan.prefill is None:
            return [main]
        return [self._pool(self._plan.prefill, self._trace.with_single_outputs()), main]

    def _pool(self, planned: PoolPlan, trace: Trace) -> Pool:
        """Make a pool with its first replicas, and empty slots up to its largest size. Mutates."""
        plan, asked, setup = self._plan, planned.asked, planned.setup
        start = float(trace.arrival_time[0])
        gate = plan.flow_control
        watches = gate is not None and gate.watches_prefills and asked.role != "decode"
        if planned.most > 1 or watches:
            setup = routers_with_events(setup, planned.routers)
        self.reason = self.reason or self._choose_backend(setup)
        contents = Contents.of(trace)
        if plan.resumes or plan.disaggregation.stays:
            contents = contents.with_own_lengths()
        pool = Pool(asked.name, asked.role, setup, trace, contents, new_requests(trace))
        pool.places = [None] * planned.most
        for place in range(asked.replicas):
            pool.places[place] = member = self.member(pool, place, start)
            member.is_first = True
        # With handoffs or live migration, a replica also serves requests that were sent elsewhere.
        differs = plan.prefill is not None or plan.migration is not None
        pool.gateways = Gateways(
            planned.routers,
            setup,
            trace,
            pool.table,
            [EmptySlot() if m is None else m.replica for m in pool.places],
            start,
            counts_sent=differs and asked.role != "prefill",
            role=asked.role,
            fetch_time=self._fetch_time(asked.role, setup),
            watches_prefills=watches,
            name=planned.router_name,
        )
        return pool

    def _fetch_time(self, role: Role, setup: Setup) -> Callable[[int], float] | None:
        """Return a function from tokens to the seconds to read their KV; None if none is read."""
        store, fabric = self._plan.store, self._plan.fabric
        if role == "decode" or store is None or not store.reads_replicas:
            return None
        return lambda num_tokens: fabric.time(
            transfer_bytes(setup, num_tokens), num_descriptors(setup, num_tokens)
        )

    def member(self, pool: Pool, place: int, time: float) -> Member:
        """Make a replica that is idle until a time. Mutates."""
        replica = Replica(
            self._number,
            pool.setup,
            pool.contents,
            pool.table,
            start_time=time,
            end_time=float(pool.trace.arrival_time[0]) + self._plan.config.horizon,
            on_end=None if pool.role == "prefill" else self._on_end,
            observer=self._observer,
            compiled=not self._choose_backend(pool.setup),
        )
        for tenant, price in zip(replica.state.shares.tenants, self._prices, strict=False):
            tenant.price = price
        if self._on_start is not None:
            self._on_start(replica)

        def on_withdraw(row: int, now: float) -> None:
            pool.gateways.withdraw(row, now)

        member = Member(
            self._number, place, pool.role, replica, pool.table, on_withdraw, time, time
        )
        pool.members.append(member)
        self._number += 1
        return member


def admissible_to(plan: Plan, trace: Trace) -> NDArray[np.bool_]:
    """Mark the requests that idle replicas could serve, bool, shape (requests,)."""
    admissible = admissible_requests(plan.main.setup, trace)
    if plan.prefill is not None:
        # A resumed request carries its outputs.
        prompts = trace if plan.resumes else trace.with_single_outputs()
        admissible &= admissible_requests(plan.prefill.setup, prompts)
    return admissible


def features_of(
    plan: Plan, world: World, host: Host, make: Callable[[Pool, int, float], Member]
) -> list[Feature]:
    """Return the features of a run in the order of their hooks.

    Parameters
    ----------
    plan : the plan of the run
    world : the SimPy environment
    host : the fleet
    make : function of pool, slot and time (seconds) that makes a replica
    """
    config, main, first = plan.config, host.pools[-1], host.pools[0]
    end_time = world.now + config.horizon
    features: list[Feature] = []
    migrations = ResumedRequests(main.table)
    handoffs = None
    if plan.flow_control is not None:
        gated = first if plan.flow_control.watches_prefills else main
        features.append(
            Admission(
                *(world, gated, main.trace, plan.flow_control, host, main.table),
                seed=config.seed,
                end_time=end_time,
            )
        )
    if plan.prefill is not None:
        handoffs = Handoffs(world, host, first, main, plan, migrations.carried)
        features.append(handoffs)
    if plan.store is not None:
        features.append(fetches_of(world, host.drive, first, plan.store, plan.fabric))
    features.append(migrations)
    if plan.changes:
        features.append(ReplicaChanges(world, host, plan, make, migrations))
    if plan.migration is not None:
        features.append(
            LiveMigrations(world, host, main, plan.migration, plan.fabric, migrations, end_time)
        )
    if any(isinstance(one, Handoffs | Fetches) for one in features):
        features.append(Standstill(world, host, main.table, handoffs))
    return features
