"""Reports of GuideLLM, ``benchmarks.json``: one run per strategy and rate."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from kvsim.calibration.bench import Measured, Requests, measured, number

if TYPE_CHECKING:
    from collections.abc import Mapping


def runs(name: str, content: Any, range_ratio: float = 0.0) -> list[Measured] | None:
    """Read the runs of a report, which lists individual requests; None for another format."""
    if not isinstance(content, dict) or not isinstance(content.get("benchmarks"), list):
        return None
    found = []
    for place, benchmark in enumerate(content["benchmarks"]):
        rows = benchmark["requests"]
        rows = rows.get("successful", []) if isinstance(rows, dict) else rows
        strategy = _strategy(benchmark)
        streams = number(strategy, "streams", "max_concurrency")
        title = f"{name}#{place + 1}" if len(content["benchmarks"]) > 1 else name
        limit = 1 if strategy.get("type_") == "synchronous" else None
        if strategy.get("type_") == "concurrent" and streams is not None:
            limit = int(streams)
        found.append(measured(title, _requests(rows), max_concurrency=limit))
    return found


def _strategy(benchmark: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the strategy of sending, which GuideLLM's versions store in different places."""
    for place in ("config", "scheduler", "args"):
        strategy = (benchmark.get(place) or {}).get("strategy")
        if isinstance(strategy, dict):
            return strategy
    return {}


def _requests(rows: list[Mapping[str, Any]]) -> Requests:
    """Return the requests; TPOT excludes the first token, which GuideLLM's own figure includes."""
    kept = [
        row
        for row in rows
        if number(row, "prompt_tokens") and number(row, "output_tokens")
        and number(row, "time_to_first_token_ms") is not None
    ]  # fmt: skip
    starts = [number(row, "request_start_time", "start_time") for row in kept]
    sent = [start for start in starts if start is not None]
    gaps = [number(row, "inter_token_latency_ms") for row in kept]
    return Requests(
        [int(row["prompt_tokens"]) for row in kept],
        [int(row["output_tokens"]) for row in kept],
        sent if len(sent) == len(kept) else None,
        [float(row["time_to_first_token_ms"]) / 1e3 for row in kept],
        [math.nan if gap is None else gap / 1e3 for gap in gaps],
    )
