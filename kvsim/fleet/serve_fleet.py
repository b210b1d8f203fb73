"""Serve a trace on replicas: make the pools, let clients and replicas run, sum up."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.config import Config
from kvsim.engine.contents import Contents
from kvsim.engine.event_names import RunNames
from kvsim.engine.given import given
from kvsim.engine.replica import Replica
from kvsim.engine.setup import resolve
from kvsim.errors import unknown_name
from kvsim.fleet.admission import Admission
from kvsim.fleet.clients import Clients
from kvsim.fleet.cold_start import cold_start_seconds
from kvsim.fleet.disaggregation import DISAGGREGATIONS
from kvsim.fleet.fabric import fabric_of
from kvsim.fleet.fleet import Fleet
from kvsim.fleet.flow_control import FLOW_CONTROLS
from kvsim.fleet.gateways import Gateways, telling_routers
from kvsim.fleet.intake import admissible_requests, new_requests, whole_requests
from kvsim.fleet.lock_step import shares_experts, why_independent
from kvsim.fleet.member import Member
from kvsim.fleet.motion import (
    autoscaler_of,
    check_changes,
    check_failures,
    check_migration,
    describe_scaling,
    let_move,
    migrates,
    recomputes,
    set_in_motion,
)
from kvsim.fleet.outcome import Part, close, collect
from kvsim.fleet.parents import Parents
from kvsim.fleet.pool import Pool, connected
from kvsim.fleet.reading import fetches_of, with_store
from kvsim.fleet.router import make_routers
from kvsim.fleet.store import make_store
from kvsim.fleet.vacancy import Vacancy
from kvsim.fleet.world import World
from kvsim.pool_config import PoolConfig
from kvsim.results.kv_events import batches, write_events
from kvsim.results.tables import FinishReason
from kvsim.sched.fairness import tenant_prices, tenants_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from kvsim.engine.observers import Observer
    from kvsim.engine.setup import Setup
    from kvsim.fleet.flow_control import FlowControl
    from kvsim.results.result import Result
    from kvsim.trace import Trace
    from kvsim.trace.family import Family

#: Options that say what the fleet is like, not what one of its pools is.
OF_THE_FLEET = frozenset(
    (
        *("pool", "num_prefill_workers", "num_decode_workers", "prefill_router", "router"),
        *("disaggregation", "kv_transfer_protocol", "kv_transfer_fabric", "proxy_latency"),
        "first_token_from",
        *("autoscaler", "cold_start", "failures", "flow_control", "migration"),
        *("kv_store", "kv_recompute_threshold", "session_think_time", "data_parallel_size", "seed"),
        *("max_concurrency", "horizon", "goodput", "front_end_latency", "backend"),
        *("kv_events_config", "record_steps", "record_memory_map", "record_block_events"),
        *("check_invariants", "tenant_weights"),
    )
)


def pools_of(config: Config) -> tuple[PoolConfig, PoolConfig | None]:
    """Return who answers requests, and who computes prompts for them, if that is apart.

    Raises
    ------
    ValueError
        If the pools cannot serve together.
    """
    prefill, decode = config.num_prefill_workers, config.num_decode_workers
    if config.pool is None:
        if not (prefill or decode):
            return PoolConfig("mixed", config.data_parallel_size, "mixed"), None
        if not (prefill and decode):
            raise ValueError(
                "num_prefill_workers and num_decode_workers: give both, or none of them"
            )
        if config.data_parallel_size > 1:
            raise ValueError("data_parallel_size: not beside num_prefill_workers; they count")
        return (
            PoolConfig("decode", decode, "decode"),
            PoolConfig("prefill", prefill, "prefill", config.prefill_router),
        )
    if prefill or decode or config.data_parallel_size > 1:
        raise ValueError("pool: its replicas say how many there are; give no other number of them")
    if config.prefill_router is not None:
        raise ValueError("prefill_router: not beside pool; each pool's router is one of its keys")
    names = [pool.name for pool in config.pool]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"pool: two have the name {twice!r}: must be different ones")
    roles = [pool.role for pool in config.pool]
    if roles == ["mixed"]:
        return config.pool[0], None
    if sorted(roles) != ["decode", "prefill"]:
        raise ValueError(
            f"pool: roles are {', '.join(roles)}: must be one mixed, or one prefill and one decode"
        )
    first, second = config.pool
    return (second, first) if first.role == "prefill" else (first, second)


def resolve_fleet(config: Config) -> Setup:
    """Return what the replicas that answer requests are made of.

    Raises
    ------
    ValueError
        As :func:`kvsim.engine.setup.resolve`, and for pools that cannot serve together.
    """
    if config.prefill_router is not None:  # a wrong one is refused, used or not
        make_routers(config.prefill_router)
    return pool_setup(config, pools_of(config)[0])


def pool_setup(config: Config, pool: PoolConfig) -> Setup:
    """Return what the replicas of a pool are made of.

    Raises
    ------
    ValueError
        For options that a pool does not have, or that cannot run.
    """
    if not pool.options:
        return resolve(config)
    own = [name for name in Config.model_fields if name not in OF_THE_FLEET]
    for name, _ in pool.options:
        if name not in own:
            raise unknown_name(f"option of pool {pool.name!r}", name, own)
    try:
        return resolve(type(config).build(**{**given(config), **dict(pool.options)}))
    except ValueError as error:
        raise ValueError(f"pool {pool.name!r}: {error}") from None


class Assembly:
    """Makes the pools of one run.

    Parameters
    ----------
    config : of the run
    trace : the requests
    on_end : called after each answered request
    observer : called after every step
    on_start : called with every replica before its first step
    choose_backend : says why plain Python runs a pool's replicas, if so
    """

    def __init__(
        self,
        config: Config,
        trace: Trace,
        on_end: Callable[[], object] | None,
        observer: Observer | None,
        on_start: Callable[[Replica], object] | None,
        choose_backend: Callable[[Setup], str],
    ) -> None:
        self._config = config
        self._on_end = on_end
        self._observer = observer
        self._on_start = on_start
        self._choose_backend = choose_backend
        self._trace = trace
        self._prices: list[int] = []
        if config.tenant_weights is not None:
            if not trace.has("tenant"):
                raise ValueError("tenant_weights: the trace names no tenants")
            self._prices = tenant_prices(config.tenant_weights, tenants_of(trace))
        self._number = 0
        self.reason = ""

    def pool(
        self,
        asked: PoolConfig,
        setup: Setup,
        trace: Trace,
        *,
        counts_sent: bool = False,
        num_places: int = 0,
        gate: FlowControl | None = None,
    ) -> Pool:
        """Make a pool and its first replicas, with room for more. Mutates."""
        config, start = self._config, float(trace.arrival_time[0])
        routers = make_routers(asked.router or config.router)
        watches = gate is not None and gate.watches_prefills and asked.role != "decode"
        if max(asked.replicas, num_places) > 1 or watches:
            setup = telling_routers(setup, routers)
        reason = self._choose_backend(setup)
        self.reason = self.reason or reason
        contents = Contents.of(trace)
        if migrates(config) or DISAGGREGATIONS.make(config.disaggregation).stays:
            contents = contents.with_own_lengths()
        pool = Pool(asked.name, asked.role, setup, trace, contents, new_requests(trace))
        pool.places = [None] * max(num_places, asked.replicas)
        for place in range(asked.replicas):
            pool.places[place] = member = self.member(pool, place, start)
            member.is_first = True
        replicas = [Vacancy() if m is None else m.replica for m in pool.places]
        pool.gateways = Gateways(
            routers,
            setup,
            trace,
            pool.table,
            replicas,
            start,
            counts_sent=counts_sent,
            role=asked.role,
            watches_prefills=watches,
            name=(asked.router or config.router).partition("+")[0],
        )
        return pool

    def member(self, pool: Pool, place: int, time: float) -> Member:
        """Make a replica on which nothing has happened until a time. Mutates."""
        replica = Replica(
            self._number,
            pool.setup,
            pool.contents,
            pool.table,
            start_time=time,
            end_time=float(pool.trace.arrival_time[0]) + self._config.horizon,
            on_end=None if pool.role == "prefill" else self._on_end,
            observer=self._observer,
            compiled=not self._choose_backend(pool.setup),
        )
        for tenant, price in zip(replica.state.shares.tenants, self._prices, strict=False):
            tenant.price = price
        if self._on_start is not None:
            self._on_start(replica)
        member = Member(self._number, place, pool, replica, time, time)
        pool.members.append(member)
        self._number += 1
        return member


def serve_fleet(
    config: Config,
    setup: Setup,
    trace: Trace,
    *,
    on_end: Callable[[], object] | None,
    observer: Observer | None,
    on_start: Callable[[Replica], object] | None,
    choose_backend: Callable[[Setup], str],
    make_clients: Callable[..., Clients] = Clients,
    family: Family | None = None,
) -> Result:
    """Serve a trace; ``setup`` is that of the replicas that answer requests.

    With a ``family`` the trace is that of its children.
    """
    asked, asked_prefill = pools_of(config)
    main_setup, prefill = setup, None
    apart = asked_prefill is not None
    writes_events = config.kv_events_config is not None and config.kv_events_config.writes
    if apart and writes_events:
        raise ValueError("kv_events_config: not written where prompts are computed apart")
    if config.first_token_from == "prefill" and not apart:
        raise ValueError(
            "first_token_from: no prompts are computed apart; give num_prefill_workers and "
            "num_decode_workers"
        )
    cold_start_seconds(config.cold_start, 0)  # a wrong one is refused, used or not
    check_failures(config, apart=apart)
    make = Assembly(config, trace, on_end, observer, on_start, choose_backend)
    policies = [setup.config.scheduling_policy]
    if asked_prefill is not None:
        policies.append(pool_setup(config, asked_prefill).config.scheduling_policy)
    if config.tenant_weights is not None and "vtc" not in policies:
        raise ValueError("tenant_weights: scheduling_policy vtc has them; give it")
    admissible = admissible_requests(main_setup, trace)
    store = None if config.kv_store is None else make_store(config.kv_store)
    if config.migration is not None:
        check_migration(config, apart=apart)
    if apart:
        threshold = config.kv_recompute_threshold
        main_setup = connected(main_setup, "decode", threshold, recomputes=recomputes(config))
    elif store is not None:
        main_setup = with_store(main_setup, "mixed", config)
    elif config.migration is not None:
        main_setup = connected(main_setup, "mixed", option="migration")
    wanted = [asked] if asked_prefill is None else [asked, asked_prefill]
    autoscalers = {one.role: autoscaler_of(config, one) for one in wanted}
    places = {role: 0 if one is None else one.most for role, one in autoscalers.items()}
    changes = any(places.values()) or config.failures is not None
    if changes:
        for one in wanted:
            check_changes(config, one, main_setup)
    # A replica has other requests than it was sent, if they begin or go on elsewhere.
    differs = apart or config.migration is not None
    gate = None if config.flow_control is None else FLOW_CONTROLS.make(config.flow_control)
    main = make.pool(
        *(asked, main_setup, trace),
        counts_sent=differs,
        num_places=places[asked.role],
        gate=gate,
    )
    if asked_prefill is not None:
        prefill_setup = pool_setup(config, asked_prefill)
        check_alike(main_setup, prefill_setup)
        prompts = trace.with_single_outputs()
        # Who migrates comes with its outputs.
        admissible &= admissible_requests(prefill_setup, trace if migrates(config) else prompts)
        if store is None:
            prefill_setup = connected(prefill_setup, "prefill")
        else:
            prefill_setup = with_store(prefill_setup, "prefill", config)
        prefill = make.pool(
            *(asked_prefill, prefill_setup, prompts),
            num_places=places[asked_prefill.role],
            gate=gate,
        )
    world = World(initial_time=float(trace.arrival_time[0]))
    fleet = Fleet(
        world,
        trace,
        admissible,
        main,
        prefill,
        disaggregation=DISAGGREGATIONS.make(config.disaggregation),
        fabric=fabric_of(config.kv_transfer_fabric),
        protocol=config.kv_transfer_protocol,
        proxy_latency=config.proxy_latency,
        first_token_from=config.first_token_from,
        coupled=config.max_concurrency is not None
        or config.session_think_time is not None
        or store is not None
        or config.migration is not None
        or gate is not None,
        in_step=shares_experts(setup) and why_independent(setup, changes=changes) is None,
    )
    if prefill is not None and DISAGGREGATIONS.make(config.disaggregation).stays:
        fleet.may_stay = whole_requests(main.setup, prefill.setup, trace)
    if gate is not None:
        fleet.admission = Admission(
            world,
            prefill if prefill is not None and gate.watches_prefills else main,
            trace,
            gate,
            place=fleet.place,
            turn_away=fleet.turn_away,
            seed=config.seed,
            end_time=world.now + config.horizon,
        )
    if store is not None:
        reader, times = main, fleet.transfer_time
        if prefill is not None:  # the table has the transfers between the pools
            reader, times = prefill, np.zeros(len(trace))
        fleet.fetches = fetches_of(world, fleet.drive, reader, store, config, times)
    make_for = partial(
        make_clients,
        world,
        trace if family is None else family.parents,
        max_concurrency=config.max_concurrency,
        think_time=config.session_think_time,
    )
    clients = make_for(fleet.send) if family is None else Parents(family, fleet.send, make_for)
    if changes:
        set_in_motion(world, fleet, config, make.member, autoscalers)
    if config.migration is not None:
        let_move(world, fleet, config)
    fleet.run(clients)
    hits = None if fleet.handoffs is None else fleet.handoffs.own_hits()
    parts = [_part(main, hits)] + ([] if prefill is None else [_part(prefill)])
    lives = [pool.lifecycle for pool in fleet.pools if pool.lifecycle is not None]
    end_time, totals = close(parts, max((one.waited_until for one in lives), default=-math.inf))
    _settle_table(fleet, clients, main, admissible, config)
    if fleet.migrations is not None:
        fleet.migrations.settle(totals)
    if writes_events:
        _write_events(main)
    return collect(
        config,
        main.setup,
        trace,
        parts,
        end_time,
        totals,
        make.reason,
        fleet.turned_away,
        None if fleet.handoffs is None else _transfers(fleet),
        describe_scaling(fleet),
        None if fleet.fetches is None else fleet.fetches.describe(),
        None
        if fleet.admission is None
        else fleet.admission.describe(main.table["finish_reason"] != FinishReason.UNSENT),
        None if fleet.moves is None else fleet.moves.describe(),
        fleet.describe_ranks(),
        family=family,
    )


def check_alike(decode: Setup, prefill: Setup) -> None:
    """Refuse pools that cannot read each other's KV.

    Raises
    ------
    ValueError
        With what differs.
    """
    for what, one, other in (
        ("model", decode.memory.model.name, prefill.memory.model.name),
        ("block_size", decode.kv.block_size, prefill.kv.block_size),
        ("kv_cache_dtype", decode.kv_config.layout.dtype.name, prefill.kv_config.layout.dtype.name),
    ):
        if one != other:
            raise ValueError(
                f"pool: {what} is {other} where prompts are computed and {one} where they are "
                "read: must be the same"
            )


def _write_events(pool: Pool) -> None:
    """Write the KV cache events of all replicas into one file."""
    config = pool.setup.config.kv_events_config
    assert config is not None
    assert pool.gateways is not None
    names = RunNames(pool.setup, pool.trace, pool.contents, token_ids=config.token_ids)
    streams = [
        # What was read for a router comes before what nobody has read.
        batches([*pool.gateways.events_read(rank), *one.replica.take_events()], names, rank)
        for rank, one in enumerate(pool.members)
    ]
    write_events(str(config.path), streams)


def _part(pool: Pool, hits: NDArray[np.int64] | None = None) -> Part:
    assert pool.gateways is not None
    cached = pool.table["num_cached_tokens"] if hits is None else hits
    seen = pool.members, pool.table, pool.gateways, cached
    return Part(pool.role, pool.name, pool.setup, *seen)


def _settle_table(
    fleet: Fleet,
    clients: Clients,
    main: Pool,
    admissible: NDArray[np.bool_],
    config: Config,
) -> None:
    """Make one row of what the pools wrote of a request. Mutates the main pool's table."""
    table, sent = main.table, clients.sent_time
    planned = main.trace.arrival_time
    table["arrival_time"] = np.where(np.isnan(sent), planned, sent)
    if fleet.transfer_time.any():
        table["transfer_time"] = fleet.transfer_time
    if fleet.handoffs is not None:
        table["prefill_replica"] = fleet.handoffs.prefill_place
        fleet.handoffs.settle(range(len(table)))
    rejected = ~admissible | fleet.turned_away
    table["finish_reason"][rejected] = FinishReason.REJECTED
    unsent = np.isnan(sent) | (table["arrival_time"] >= planned[0] + config.horizon)
    table["finish_reason"][unsent] = FinishReason.UNSENT


def _transfers(fleet: Fleet) -> dict[str, Any]:
    """Sum up what KV went from one replica to another."""
    handoffs = fleet.handoffs
    assert handoffs is not None
    times = handoffs.seconds
    known: Sequence[float] = times.tolist()
    return {
        "num_transfers": len(known),
        "bytes": handoffs.transfer_bytes,
        "num_taken_back": fleet.standstill.num_taken_back,
        "mean_ms": 1000.0 * float(times.mean()) if known else None,
        "p99_ms": 1000.0 * float(np.percentile(times, 99)) if known else None,
    }
