"""aiperf's ``profile_export.jsonl``: one record per request with the latencies at the client.

The fields are those of docs/tutorials/working-with-profile-exports.md, github.com/ai-dynamo/aiperf.
"""

from __future__ import annotations

from operator import sub
from typing import TYPE_CHECKING, Any

from kvsim.calibration.bench import Measured, Requests, measured, number, per_token

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Seconds per unit.
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}


def runs(name: str, content: Any, range_ratio: float = 0.0) -> list[Measured] | None:
    """Read a profile's successful requests, without warm-up; None for another format."""
    rows = content if isinstance(content, list) else [content]
    if not rows or not all(_is_record(row) for row in rows):
        return None
    told = [row for row in rows if _is_usable(row)]
    if told and not any("time_to_first_token" in row["metrics"] for row in told):
        raise ValueError(f"{name}: has no time_to_first_token: profile with --streaming")
    told = [row for row in told if "time_to_first_token" in row["metrics"]]
    prompts, outputs = (_tokens(told, kind) for kind in ("input", "output"))
    ttfts, wholes = (_seconds(told, m) for m in ("time_to_first_token", "request_latency"))
    starts = [int(row["metadata"]["request_start_ns"]) for row in told]
    first = min(starts, default=0)
    sent = [(start - first) / 1e9 for start in starts]
    tpots = per_token(map(sub, wholes, ttfts), outputs)
    return [measured(name, Requests(prompts, outputs, sent, ttfts, tpots))]


def _is_record(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and isinstance(row.get("metadata"), dict)
        and "request_start_ns" in row["metadata"]
        and "metrics" in row
    )


def _is_usable(row: Mapping[str, Any]) -> bool:
    """Return True if a request was profiled, succeeded, and has recorded token counts."""
    if row.get("error") or row["metadata"].get("benchmark_phase") == "warmup":
        return False
    return bool(_value(row, "output_sequence_length") and _value(row, "input_sequence_length"))


def _value(row: Mapping[str, Any], metric: str) -> float | None:
    return number((row["metrics"] or {}).get(metric) or {}, "value")


def _tokens(rows: Iterable[Mapping[str, Any]], kind: str) -> list[int]:
    return [int(_value(row, f"{kind}_sequence_length") or 0) for row in rows]


def _seconds(rows: Iterable[Mapping[str, Any]], metric: str) -> list[float]:
    told = [row["metrics"][metric] for row in rows]
    return [float(one["value"]) * _SECONDS[one["unit"]] for one in told]
