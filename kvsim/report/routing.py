"""Routing statistics, in lines for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.report.text import number

if TYPE_CHECKING:
    from collections.abc import Mapping

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
