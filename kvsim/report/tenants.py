"""Service of each tenant, in a table for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from kvsim.report.narrow import NarrowTable
from kvsim.report.text import milliseconds, number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

HEADINGS = (
    *("requests", "completed", "rejected", "mean\nTTFT", "p99\nTTFT", "output\ntokens", "service"),
)
DROPPED = ("rejected", "p99\nTTFT", "output\ntokens", "completed")
#: Maximum number of tenants shown: those with most service.
MOST_SHOWN = 20


def tenants_table(summary: Mapping[str, Any]) -> RenderableType | None:
    """Lay out one row per tenant, most served first; None without tenants."""
    tenants = summary.get("tenants")
    if not tenants:
        return None
    order = sorted(tenants, key=lambda tenant: -tenant["service"])
    rows = [[_name(tenant), *_cells(tenant)] for tenant in order[:MOST_SHOWN]]
    said = "service: 1 per prompt token, 2 per output token."
    gap = summary["max_service_gap"]
    if gap is not None:
        said += f" While two tenants both waited, their service differed by at most {number(gap)}."
    if len(order) > MOST_SHOWN:
        said += f" {number(len(order) - MOST_SHOWN)} more tenants in --json."
    return Group(Text(), NarrowTable(("tenant", *HEADINGS), rows, DROPPED), Text(said, style="dim"))


def _name(tenant: Mapping[str, Any]) -> str:
    return "(none)" if tenant["name"] is None else str(tenant["name"])


def _cells(tenant: Mapping[str, Any]) -> list[str]:
    counts = [number(tenant[key]) for key in ("requests", "completed", "rejected")]
    waits = [milliseconds(tenant[key]) for key in ("mean_ttft_ms", "p99_ttft_ms")]
    return [*counts, *waits, number(tenant["output_tokens"]), number(tenant["service"])]
