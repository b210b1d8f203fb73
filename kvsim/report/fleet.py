"""Load of pools and transfers between them, in lines for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.report.text import gib, milliseconds, number, percent

if TYPE_CHECKING:
    from collections.abc import Mapping


def fleet_lines(summary: Mapping[str, Any]) -> list[str]:
    """Describe routing statistics, the load of each pool, and KV transfer times between pools."""
    lines = all_routing_lines(summary)
    if summary["pools"]:
        lines.append("; ".join(map(_pool, summary["pools"])))
    lines += _waits(summary)
    moved = summary["kv_transfers"]
    if moved is not None:
        lines.append(
            f"KV transfers: {number(moved['num_transfers'])}, {gib(moved['bytes'])}, "
            f"{milliseconds(moved['mean_ms'])} on average, "
            f"{milliseconds(moved['p99_ms'])} at p99"
        )
    gate = summary["flow_control"]
    if gate is not None:
        lines.append(
            f"flow control: {number(gate['num_held_back'])} requests queued, up to "
            f"{number(gate['peak_waiting'])} at once, "
            f"{milliseconds(gate['mean_wait_ms'])} of waiting on average; "
            f"{number(gate['num_shed'] + gate['num_too_many'])} rejected"
        )
    ranks = summary.get("data_parallel")  # earlier versions had none
    if ranks is not None:
        lines.append(
            f"{ranks['num_ranks']} ranks share experts and step together: "
            f"{ranks['waiting_seconds']:,.3g} s of waits for slower ranks, "
            f"{number(ranks['num_dummy_steps'])} dummy steps in addition to "
            f"{number(ranks['num_steps'])} passes"
        )
    moves = summary.get("migration")  # earlier versions had none
    if moves is not None:
        line = f"migration: {number(moves['num_moves'])} running requests moved"
        if moves["num_moves"]:
            still = milliseconds(moves["mean_downtime_ms"])
            line += f", {gib(moves['bytes'])}, stopped for {still} on average"
        lines.append(f"{line}; {number(moves['num_refused'])} did not fit")
    store = summary["kv_store"]
    if store is not None:
        lines.append(_store(store))
    scaling = summary["scaling"]
    if scaling is not None:
        moved = scaling.get("num_migrations")  # there were none in earlier versions
        on = f", {number(moved)} of them resumed on another replica" if moved else ""
        lines.append(
            f"replicas: at most {scaling['peak_replicas']} ready, "
            f"{number(scaling['num_scaling_events'])} changes; "
            f"{number(scaling['num_failures'])} failed; {number(scaling['num_lost'])} "
            f"requests lost their replica{on}; {_hours(summary['gpu_hours'])} GPU-hours, "
            f"{_hours(scaling['gpu_hours_perfect'])} with the fewest replicas at any time"
        )
    return lines


def _waits(summary: Mapping[str, Any]) -> list[str]:
    """Name the replica with the longest waits, if there are several replicas."""
    rows = summary["replicas"] or ()
    known = [row for row in rows if row.get("mean_waiting") is not None]
    if len(known) < 2:
        return []
    most = max(known, key=lambda row: row["mean_waiting"])
    least = min(row["mean_waiting"] for row in known)
    return [
        f"waiting requests per replica: {number(least, 1)} to "
        f"{number(most['mean_waiting'], 1)} on average, most at {most['replica']}"
    ]


def _hours(value: float) -> str:
    """Format hours with enough digits for a short run."""
    return number(value, 1 if value >= 10 else 3)


def _store(store: Mapping[str, Any]) -> str:
    """Return a line on the prefixes read from a KV store."""
    line = (
        "KV store: had a longer prefix than the replica for "
        f"{number(store['num_found'])} requests; {number(store['num_fetches'])} read it"
    )
    if store["num_fetches"]:
        line += (
            f", {gib(sum(store['bytes'].values()))} in {milliseconds(store['mean_ms'])} on average"
        )
    return (
        f"{line}; {number(store['num_declined'])} recomputed it, as that is faster, for "
        f"{number(store['num_gone'])} it was evicted"
    )


def _pool(pool: Mapping[str, Any]) -> str:
    replicas, gpus = pool["num_replicas"], pool["num_gpus"]
    several = "s" if replicas > 1 else ""
    name = pool["name"] if pool["name"] == pool["role"] else f"{pool['name']} ({pool['role']})"
    rate = pool.get("external_prefix_cache_hit_rate")  # earlier versions had none
    found = "" if rate is None else f", external prefix cache {percent(rate)} %"
    if "num_preemptions" in pool:  # earlier versions told none
        found += (
            f", waiting {number(pool['mean_waiting'], 1)}, "
            f"{number(pool['num_preemptions'])} preemptions"
        )
    on = f" of {gpus // replicas} GPUs" if gpus > replicas else ""
    return f"{name}: {replicas} replica{several}{on}, busy {percent(pool['mean_busy'])} %{found}"


#: Keys of ``summary["routing"]``, by their label in a line.
HELD = {
    "predicted": "predicted_hit_rate",
    "found": "actual_hit_rate",
    "best replica": "best_hit_rate",
}


def all_routing_lines(summary: Mapping[str, Any]) -> list[str]:
    """Describe the routing statistics of every pool with several replicas."""
    cache = summary["kv_cache"]
    if not summary["pools"]:
        number_of = None if summary["scaling"] else len(summary["replicas"])
        blocks = cache["num_usable_blocks"]
        return routing_lines(summary["routing"], blocks * cache["block_size"], number_of)
    lines = []
    for pool in summary["pools"]:
        number_of = None if summary["scaling"] else pool["num_replicas"]
        tokens = pool["num_usable_blocks"] * cache["block_size"]  # alike in all pools
        lines += [
            f"{pool['name']}: {line}" for line in routing_lines(pool["routing"], tokens, number_of)
        ]
    return lines


def routing_lines(
    routing: Mapping[str, Any] | None, num_tokens: int, num_replicas: int | None
) -> list[str]:
    """Describe the shares of a router's rules, the cached prompt tokens, and the load balance.

    Parameters
    ----------
    routing : statistics of a router; None if it had a single replica
    num_tokens : KV capacity of a replica, tokens
    num_replicas : number of replicas; None if it changes during the run
    """
    if routing is None:
        return []
    lines = []
    unique = routing.get("unique_prompt_tokens")  # earlier versions had none
    if unique is not None:
        line = f"unique prompts {number(unique)} tokens; a replica holds {number(num_tokens)}"
        if num_replicas is not None:
            line += f", all {num_replicas} of them {number(num_replicas * num_tokens)}"
        lines.append(line)
    if routing["branches"]:
        shares = (f"{name} {100 * share:.1f}" for name, share in routing["branches"].items())
        lines.append(f"decisions, %: {', '.join(shares)}")
    known = {label: routing[key] for label, key in HELD.items() if routing[key] is not None}
    if known:
        shares = (f"{label} {100 * share:.1f}" for label, share in known.items())
        line = f"prompt tokens cached, %: {', '.join(shares)}"
        compared = routing.get("compared_hit_rate")  # the best is looked up for a sample only
        if compared is not None and compared != routing["actual_hit_rate"]:
            line += f" (where {100 * compared:.1f} were found)"
        lines.append(line)
    if routing["imbalance"] is not None:
        busiest, most = number(routing["imbalance"], 2), number(routing["request_imbalance"], 2)
        lines.append(f"busiest replica {busiest} times the mean, most requests {most} times")
    return lines
