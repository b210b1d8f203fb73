"""Notes on the options of a fleet that had no effect on its run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from kvsim.engines.registry import engine_for

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsim.fleet.plan import Plan


def fleet_notes(
    plan: Plan, summary: Mapping[str, Any], *, num_readers: int, has_turns: bool, has_waits: bool
) -> list[str]:
    """Return notes on the options of a fleet that were given but not read.

    Parameters
    ----------
    plan : the plan of the run
    summary : summary of its results
    num_readers : number of replicas that could read a KV store
    has_turns : some session of the trace has a second turn
    has_waits : some request of the trace waits for others
    """
    config = plan.config
    reasons = [
        *_unread(plan, summary),
        *_unread_by_sessions(plan, has_turns=has_turns, has_waits=has_waits),
        *_unread_values(plan, num_readers),
    ]
    said = [
        f"{field} = {getattr(config, field)} has no effect: {reason}"
        for field, reason in reasons
        if field in config.model_fields_set and getattr(config, field) is not None
    ]
    said += _unmet(plan, summary["scaling"]) + _taken_back(summary["kv_transfers"])
    return said + _ran_dry(plan, summary)


def _ran_dry(plan: Plan, summary: Mapping[str, Any]) -> list[str]:
    """Return a note if lanes may have been empty before the horizon."""
    config = plan.config
    if config.lanes is None or math.isinf(config.horizon) or summary["num_unsent"]:
        return []
    return ["lanes: all sessions had begun before the horizon, so a lane may have been empty"]


def _taken_back(transfers: Mapping[str, Any] | None) -> list[str]:
    """Return a note if requests were restarted because they waited for each other's blocks."""
    number = transfers["num_taken_back"] if transfers else 0
    if not number:
        return []
    return [
        f"{number:,} times a request was restarted: requests held blocks and waited for "
        "the blocks of each other; a real server would abort them after minutes"
    ]


def _unread(plan: Plan, summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the options that the run does not read, each with the reason."""
    config, apart = plan.config, plan.prefill is not None
    by_itself, moves = engine_for(config).reads_store_itself, config.migration is not None
    stores = config.kv_store is not None and not by_itself
    found = []
    if not apart:
        names = ("prefill_router", "disaggregation", "kv_transfer_protocol", "proxy_latency")
        found += [(name, "prefill is not disaggregated") for name in names]
    if not (apart or stores):
        found.append(("kv_recompute_threshold", "no KV is transferred between replicas"))
    if not (apart or config.kv_store or moves):
        found.append(("kv_transfer_fabric", "no KV is transferred between replicas"))
    if not plan.changes:
        found.append(("cold_start", "no replica starts during the run"))
    if not (by_itself and config.kv_store):
        reason = "no host tier reads from a store"
        found.append(("hicache_storage_prefetch_policy", reason))
    if len(summary["replicas"]) == 1:
        found.append(("migration", "there is one replica"))
    return found


def _unread_by_sessions(plan: Plan, *, has_turns: bool, has_waits: bool) -> list[tuple[str, str]]:
    found, config = [], plan.config
    if has_waits:
        reason = "the trace names the requests that each request waits for (after)"
        found.append(("session_think_time", reason))
    elif not has_turns:
        found.append(("session_think_time", "no session of the trace has a second turn"))
    if not has_waits:
        found.append(("max_think_time", "no request of the trace waits for another"))
    if not (has_waits or has_turns):
        found.append(("start_gap_cap", "no session of the trace has a second request"))
    if not has_waits and config.session_think_time is None:
        reason = "no request waits for another"
        found += [(name, reason) for name in ("tree_idle_cap", "idle_cap")]
    if config.lanes is None:
        found.append(("shuffle_sessions", "lanes is not given"))
    if config.lanes is None or math.isinf(config.horizon):
        reason = "sessions are played again only with lanes and a horizon"
        found.append(("shared_prefix_tokens", reason))
    return found


def _unread_values(plan: Plan, num_readers: int) -> list[tuple[str, str]]:
    """Return options that are unread because of other options' values."""
    found, config = [], plan.config
    policies: set[Any] = {config.scheduling_policy}
    policies |= {dict(one.options).get("scheduling_policy") for one in config.pool or ()}
    if "dlpm" not in policies:
        found.append(("dlpm_quantum", f"scheduling_policy is {config.scheduling_policy}"))
    if plan.store is not None and plan.store.reads_replicas and num_readers == 1:
        found.append(("kv_store", "there is one replica that reads it"))
    return found


def _unmet(plan: Plan, scaling: Mapping[str, Any] | None) -> list[str]:
    """Return a note if a planned failure has not happened."""
    planned = None if plan.failures is None else plan.failures.planned
    if planned is None or scaling is None or scaling["num_failures"]:
        return []
    return [
        f"failures = {plan.config.failures} has no effect: the run had ended {planned.time:g} s "
        f"after its start, or no replica {planned.place} was there to fail"
    ]
