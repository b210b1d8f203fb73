"""What somebody who reads a fleet's numbers should know: which of its options had no effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.fleet.failures import make_failures
from kvsim.fleet.store import make_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsim.config import Config


def fleet_notes(
    config: Config,
    summary: Mapping[str, Any],
    *,
    num_readers: int,
    apart: bool,
    has_turns: bool,
) -> list[str]:
    """Say which options of a fleet that were given nothing has read.

    Parameters
    ----------
    config : of the run
    summary : what the run came to
    num_readers : replicas that have asked a KV store, or could have
    apart : prompts are computed apart
    has_turns : some session of the trace has a second turn
    """
    reasons = [
        *_unread(config, summary, apart=apart, has_turns=has_turns),
        *_unread_values(config, num_readers),
    ]
    said = [
        f"{field} = {getattr(config, field)} has no effect: {reason}"
        for field, reason in reasons
        if field in config.model_fields_set and getattr(config, field) is not None
    ]
    return said + _unmet(config, summary["scaling"]) + _taken_back(summary["kv_transfers"])


def _taken_back(transfers: Mapping[str, Any] | None) -> list[str]:
    """Say that requests began anew, since replicas waited for each other."""
    number = transfers["num_taken_back"] if transfers else 0
    if not number:
        return []
    return [
        f"{number:,} times a request began anew: requests held blocks, and each waited for those "
        "of another one; a real server would abort them after minutes"
    ]


def _unread(
    config: Config, summary: Mapping[str, Any], *, apart: bool, has_turns: bool
) -> list[tuple[str, str]]:
    """Return options, and why nothing reads them."""
    sglang = "sglang" in (config.engine, config.scheduler)
    stores, moves = config.kv_store is not None and not sglang, config.migration is not None
    scales = config.autoscaler is not None or any(one.autoscaler for one in config.pool or ())
    found = []
    if not apart:
        names = ("prefill_router", "disaggregation", "kv_transfer_protocol", "proxy_latency")
        found += [(name, "no prompts are computed apart") for name in names]
    if not (apart or stores):
        found.append(("kv_recompute_threshold", "no KV goes from one replica to another"))
    if not (apart or config.kv_store or moves):
        found.append(("kv_transfer_fabric", "no KV goes from one replica to another"))
    if not scales and config.failures is None:
        found.append(("cold_start", "no replica starts later"))
    if not has_turns:
        found.append(("session_think_time", "no session of the trace has a second turn"))
    if not (sglang and config.kv_store):
        reason = "nothing is read from behind a host tier"
        found.append(("hicache_storage_prefetch_policy", reason))
    if len(summary["replicas"]) == 1:
        found.append(("migration", "there is one replica"))
    return found


def _unread_values(config: Config, num_readers: int) -> list[tuple[str, str]]:
    """Return options that other options' values leave unread."""
    found = []
    policies: set[Any] = {config.scheduling_policy}
    policies |= {dict(one.options).get("scheduling_policy") for one in config.pool or ()}
    if "dlpm" not in policies:
        found.append(("dlpm_quantum", f"scheduling_policy is {config.scheduling_policy}"))
    alone = config.kv_store is not None and num_readers == 1
    if alone and make_store(str(config.kv_store)).reads_replicas:
        found.append(("kv_store", "there is one replica that reads it"))
    return found


def _unmet(config: Config, scaling: Mapping[str, Any] | None) -> list[str]:
    """Say that a failure was planned of which nothing has come."""
    if config.failures is None or scaling is None or scaling["num_failures"]:
        return []
    planned = make_failures(config.failures, config.seed).planned
    if planned is None:
        return []
    return [
        f"failures = {config.failures} has no effect: the run had ended {planned.time:g} s after "
        f"its start, or no replica {planned.place} was there to fail"
    ]
