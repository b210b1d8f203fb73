"""The plan of a fleet: its configuration, with the policies that its options name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvsim.engines.policies import VLLM
from kvsim.fleet.admission.flow_control import FLOW_CONTROLS
from kvsim.fleet.disaggregation.connectors import connected
from kvsim.fleet.disaggregation.policy import DISAGGREGATIONS
from kvsim.fleet.fabric import fabric_of
from kvsim.fleet.kv_store.reading import with_store
from kvsim.fleet.kv_store.store import make_store
from kvsim.fleet.lock_step import shares_experts, why_independent
from kvsim.fleet.migration.policy import MIGRATIONS
from kvsim.fleet.pool_setups import check_alike, pool_setup, pools_of
from kvsim.fleet.routing.router import make_routers
from kvsim.fleet.scaling.autoscaler import make_autoscaler
from kvsim.fleet.scaling.cold_start import make_cold_start
from kvsim.fleet.scaling.failures import FAILURES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvsim.config import Config
    from kvsim.engine.setup import Setup
    from kvsim.fleet.admission.flow_control import FlowControl
    from kvsim.fleet.disaggregation.policy import Disaggregation
    from kvsim.fleet.fabric import Fabric
    from kvsim.fleet.kv_store.store import Store
    from kvsim.fleet.migration.policy import Migration
    from kvsim.fleet.routing.router import Router
    from kvsim.fleet.scaling.autoscaler import Autoscaler
    from kvsim.fleet.scaling.failures import Failures
    from kvsim.pool_config import PoolConfig


@dataclass(frozen=True)
class PoolPlan:
    """A pool at the start of a run.

    Parameters
    ----------
    asked : its configured name, role and number of replicas
    setup : setup of its replicas
    routers : one per gateway
    router_name : name of the routers, without parameters
    autoscaler : resizes the pool, None for a pool of constant size
    """

    asked: PoolConfig
    setup: Setup
    routers: Sequence[Router]
    router_name: str
    autoscaler: Autoscaler | None

    @property
    def most(self) -> int:
        """The largest number of replicas at one time."""
        return max(self.asked.replicas, self.autoscaler.most if self.autoscaler else 0)


@dataclass(frozen=True)
class Plan:
    """A fleet as configured; a policy that is None is off.

    Parameters
    ----------
    config : the configuration of the run
    main : the pool that answers requests
    prefill : the pool that computes prompts for it, if prefill is disaggregated
    disaggregation : decides which prompts that pool computes
    fabric : link that carries KV between replicas
    cold_start : function of the bytes of weights; it returns the seconds until a new replica
        accepts requests
    in_step : the replicas are data-parallel ranks with passes that begin and end together
    waits : requests may wait for others to end before they are sent
    """

    config: Config
    main: PoolPlan
    prefill: PoolPlan | None
    disaggregation: Disaggregation
    failures: Failures | None
    store: Store | None
    flow_control: FlowControl | None
    migration: Migration | None
    fabric: Fabric
    cold_start: Callable[[int], float]
    in_step: bool
    waits: bool

    @property
    def pools(self) -> list[PoolPlan]:
        return [self.main] if self.prefill is None else [self.prefill, self.main]

    @property
    def changes(self) -> bool:
        """Return True if replicas start, drain or fail during the run."""
        return self.failures is not None or any(one.autoscaler for one in self.pools)

    @property
    def couples(self) -> bool:
        """Return True if the end of a request on one replica may affect another replica."""
        return self.waits or self.meets

    @property
    def meets(self) -> bool:
        """Return True if replicas affect each other in another way than through waiting clients."""
        moves = self.store is not None or self.migration is not None or self.prefill is not None
        return moves or self.flow_control is not None or self.in_step

    @property
    def resumes(self) -> bool:
        """Return True if requests may continue on another replica with their output so far."""
        fails_over = self.failures is not None and self.failures.migrates
        return fails_over or self.migration is not None


def make_plan(config: Config, setup: Setup, *, has_waits: bool = False) -> Plan:
    """Return the plan of a run; ``setup`` is that of the replicas that answer requests.

    ``has_waits`` says whether requests of the trace wait for others.

    Raises
    ------
    ValueError
        For invalid options, or options that exclude each other.
    """
    asked, asked_prefill = pools_of(config)
    apart = asked_prefill is not None
    _check_disaggregated_options(config, apart=apart)
    cold_start = make_cold_start(config.cold_start)
    failures = _failures_of(config, apart=apart)
    prefill_setup = None if asked_prefill is None else pool_setup(config, asked_prefill)
    _check_tenant_weights(config, [setup, prefill_setup])
    store = None if config.kv_store is None else make_store(config.kv_store)
    migration = _migration_of(config, apart=apart)
    main_setup = _connected_main(config, setup, store, failures, apart=apart)
    main, prefill = _pool_plan(config, asked, main_setup), None
    if asked_prefill is not None and prefill_setup is not None:
        check_alike(main_setup, prefill_setup)
        if store is None:
            prefill_setup = connected(prefill_setup, "prefill")
        else:
            prefill_setup = with_store(prefill_setup, "prefill", config, store)
        prefill = _pool_plan(config, asked_prefill, prefill_setup)
    plan = Plan(
        config,
        main,
        prefill,
        DISAGGREGATIONS.make(config.disaggregation),
        failures,
        store,
        None if config.flow_control is None else FLOW_CONTROLS.make(config.flow_control),
        migration,
        fabric_of(config.kv_transfer_fabric),
        cold_start,
        in_step=False,
        waits=has_waits
        or config.max_concurrency is not None
        or config.session_think_time is not None
        or config.lanes is not None,
    )
    for one in plan.pools if plan.changes else ():
        _check_changes(config, one, main_setup)
    in_step = shares_experts(setup) and why_independent(setup, changes=plan.changes) is None
    return replace(plan, in_step=in_step)


def _pool_plan(config: Config, asked: PoolConfig, setup: Setup) -> PoolPlan:
    text = asked.router or config.router
    name = text.partition("+")[0]
    return PoolPlan(asked, setup, make_routers(text), name, _autoscaler_of(config, asked))


def _connected_main(
    config: Config, setup: Setup, store: Store | None, failures: Failures | None, *, apart: bool
) -> Setup:
    """Return the setup of the main pool, with the connector that the run needs."""
    if apart:
        recomputes = failures is not None and failures.recomputes
        return connected(setup, "decode", config.kv_recompute_threshold, recomputes=recomputes)
    if store is not None:
        return with_store(setup, "mixed", config, store)
    if config.migration is not None:
        return connected(setup, "mixed", option="migration")
    return setup


def _check_tenant_weights(config: Config, setups: Sequence[Setup | None]) -> None:
    """Refuse weights of tenants that no scheduling policy reads."""
    policies = [one.config.scheduling_policy for one in setups if one is not None]
    if config.tenant_weights is not None and "vtc" not in policies:
        raise ValueError("tenant_weights: needs scheduling_policy vtc")


def _check_disaggregated_options(config: Config, *, apart: bool) -> None:
    """Refuse options that exclude disaggregated prefill, or that need it."""
    if apart and config.kv_events_config is not None and config.kv_events_config.writes:
        raise ValueError("kv_events_config: is not supported with disaggregated prefill")
    if config.first_token_from == "prefill" and not apart:
        raise ValueError(
            "first_token_from: needs disaggregated prefill; set num_prefill_workers and "
            "num_decode_workers"
        )


def _autoscaler_of(config: Config, asked: PoolConfig) -> Autoscaler | None:
    """Return the autoscaler of a pool, None for a pool of constant size."""
    text = asked.autoscaler or config.autoscaler
    if text is None:
        return None
    made = make_autoscaler(text)
    if not made.least <= asked.replicas <= made.most:
        raise ValueError(
            f"autoscaler: starts with {asked.replicas} replicas: must be {made.least} to "
            f"{made.most}, its min and max"
        )
    return made


def _check_changes(config: Config, pool: PoolPlan, setup: Setup) -> None:
    """Refuse a scheduler or router that does not support a changing number of replicas."""
    flag = "failures" if config.failures is not None else "autoscaler"
    if setup.scheduler_type.rules_of != VLLM:
        raise ValueError(f"{flag}: scheduler {setup.scheduler!r} cannot end requests; vllm can")
    if not all(router.takes_changes for router in pool.routers):
        raise ValueError(
            f"{flag}: router {pool.router_name!r} needs a constant number of replicas; "
            "round-robin, random, least-outstanding, power-of-two, least-kv, vllm-dp, "
            "aibrix-throughput, llm-d and dynamo do not"
        )


def _failures_of(config: Config, *, apart: bool) -> Failures | None:
    if config.failures is None:
        return None
    made = FAILURES.make(config.failures)
    made.seed(config.seed)
    if made.needs_pools and not apart:
        raise ValueError(
            f"failures: {config.failures}: policy=recompute and lease need disaggregated "
            "prefill; set num_prefill_workers and num_decode_workers"
        )
    return made


def _migration_of(config: Config, *, apart: bool) -> Migration | None:
    if config.migration is None:
        return None
    beside = {
        "num_prefill_workers": apart,
        "kv_store": config.kv_store is not None,
        "failures": config.failures is not None,
    }
    for name, is_given in beside.items():
        if is_given:
            raise ValueError(f"migration: not modelled with {name}")
    return MIGRATIONS.make(config.migration)
