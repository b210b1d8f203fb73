"""The dollars of a run as a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

#: What the line shows, by key; figures that are undefined are left out.
SHOWN = {
    "dollars_per_million_input_tokens": "per million input tokens",
    "dollars_per_million_cached_tokens": "per million cached input tokens",
    "dollars_per_million_output_tokens": "per million output tokens",
    "dollars_per_session": "per session",
}


def costs(summary: Mapping[str, Any]) -> str | None:
    """Describe the cost of a run; None if prices were not given."""
    cost = summary.get("cost")
    if cost is None:
        return None
    parts = [f"{cost[key]:.4g} {words}" for key, words in SHOWN.items() if cost[key] is not None]
    each = f": {', '.join(parts)}" if parts else ""
    return f"{cost['dollars']:.4g} dollars in all{each}"
