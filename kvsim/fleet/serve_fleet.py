"""Serve a trace on a fleet: assemble it, run clients and replicas, and summarize."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from kvsim.engine.event_names import RunNames
from kvsim.fleet.assembly import Assembly, admissible_to, features_of
from kvsim.fleet.clients import Clients
from kvsim.fleet.fleet import Fleet
from kvsim.fleet.parents import Parents
from kvsim.fleet.plan import make_plan
from kvsim.fleet.result_assembly import close, collect
from kvsim.fleet.world import World
from kvsim.results.kv_events import batches, write_events
from kvsim.results.tables import FinishReason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from kvsim.config import Config
    from kvsim.engine.observers import Observer
    from kvsim.engine.replica import Replica
    from kvsim.engine.setup import Setup
    from kvsim.fleet.pool import Pool
    from kvsim.results.result import Result
    from kvsim.results.totals import Totals
    from kvsim.trace import Trace
    from kvsim.trace.family import Family


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

    With a ``family``, each row of the trace is one sample of a request.
    """
    asked = trace if family is None else family.parents
    plan = make_plan(config, setup, has_waits=asked.has("after"))
    make = Assembly(plan, trace, on_end, observer, on_start, choose_backend)
    pools, admissible = make.pools(), admissible_to(plan, trace)
    world = World(initial_time=float(trace.arrival_time[0]))
    fleet = Fleet(world, trace, admissible, pools, plan)
    fleet.features += features_of(plan, world, fleet, make.member)
    make_for = partial(
        make_clients,
        world,
        asked,
        max_concurrency=config.max_concurrency,
        think_time=config.session_think_time,
        lanes=config.lanes,
        is_begun=config.session_start is not None,
        tree_idle_cap=config.tree_idle_cap,
        idle_cap=config.idle_cap,
    )
    clients = make_for(fleet.send) if family is None else Parents(family, fleet.send, make_for)
    fleet.run(clients)
    for feature in fleet.features:
        feature.on_run_ended()
    waited_until = max((one.waited_until for one in fleet.features), default=-math.inf)
    end_time, totals = close(pools, waited_until)
    settle_table(fleet, clients, trace, totals, ~admissible, config.horizon)
    if config.kv_events_config is not None and config.kv_events_config.writes:
        write_event_file(pools[-1])
    described = {key: one for each in fleet.features for key, one in each.describe().items()}
    ended = end_time, totals, make.reason, fleet.turned_away, described
    return collect(plan, trace, pools[::-1], *ended, family)


def write_event_file(pool: Pool) -> None:
    """Write the KV cache events of all replicas into one file."""
    config = pool.setup.config.kv_events_config
    assert config is not None
    names = RunNames(pool.setup, pool.trace, pool.contents, token_ids=config.token_ids)
    streams = [
        # Events read for a router precede those not read yet.
        batches([*pool.gateways.events_read(rank), *one.replica.take_events()], names, rank)
        for rank, one in enumerate(pool.members)
    ]
    write_events(str(config.path), streams)


def settle_table(
    fleet: Fleet,
    clients: Clients | Parents,
    trace: Trace,
    totals: Mapping[int, Totals],
    refused: NDArray[np.bool_],
    horizon: float,
) -> None:
    """Merge the pools' rows of each request into one. Mutates the main pool's table.

    ``refused`` marks the requests that no idle replica could serve.
    """
    table, sent, planned = fleet.pools[-1].table, clients.sent_time, trace.arrival_time
    table["arrival_time"] = np.where(np.isnan(sent), planned, sent)
    for feature in fleet.features:
        feature.settle(totals)
    table["finish_reason"][refused | fleet.turned_away] = FinishReason.REJECTED
    unsent = np.isnan(sent) | (table["arrival_time"] >= planned[0] + horizon)
    table["finish_reason"][unsent] = FinishReason.UNSENT
