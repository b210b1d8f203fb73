"""What a router came to, in lines for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.report.text import number

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Keys of ``summary["routing"]`` by how a line calls them.
HELD = {
    "predicted": "predicted_hit_rate",
    "found": "actual_hit_rate",
    "best replica": "best_hit_rate",
}


def routing_lines(routing: Mapping[str, Any] | None) -> list[str]:
    """Say which rules decided, what was cached, and how even the work was."""
    if routing is None:
        return []
    lines = []
    if routing["branches"]:
        shares = (f"{name} {100 * share:.1f}" for name, share in routing["branches"].items())
        lines.append(f"decisions, %: {', '.join(shares)}")
    known = {label: routing[key] for label, key in HELD.items() if routing[key] is not None}
    if known:
        shares = (f"{label} {100 * share:.1f}" for label, share in known.items())
        line = f"prompt tokens cached, %: {', '.join(shares)}"
        compared = routing.get("compared_hit_rate")  # the best is looked up for some requests
        if compared is not None and compared != routing["actual_hit_rate"]:
            line += f" (where {100 * compared:.1f} were found)"
        lines.append(line)
    if routing["imbalance"] is not None:
        busiest, most = number(routing["imbalance"], 2), number(routing["request_imbalance"], 2)
        lines.append(f"busiest replica {busiest} times the mean, most requests {most} times")
    return lines
