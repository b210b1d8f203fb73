"""A log with one row per request: tokens, and times of sending, first and last token."""

from __future__ import annotations

import math
from operator import sub
from typing import TYPE_CHECKING, Any

from kvsim.calibration.bench import Measured, Requests, measured, per_token

if TYPE_CHECKING:
    from collections.abc import Sequence

    Floats = list[float]

#: Names of columns by content, best first. A name that ends in ``_us`` or ``_ms`` has this unit.
COLUMNS = {
    "prompts": (
        *("num_prompt_tokens", "server_input_tokens", "prompt_tokens", "input_tokens"),
        *("input_toks", "prompt_len", "input_len"),
    ),
    "outputs": (
        *("num_output_tokens", "output_tokens", "completion_tokens", "output_toks"),
        *("output_len", "generated_tokens"),
    ),
    "sent": (
        *("send_time_us", "send_time", "queued_ts", "arrival_time", "start_time", "timestamp"),
        *("arrival_time_us", "arrived_at"),
    ),
    "first": (
        *("first_token_time", "first_chunk_time_us", "first_token_ts", "first_token_time_us"),
    ),
    "last": (
        *("finish_time", "last_chunk_time_us", "last_token_ts", "last_token_time", "end_time"),
        *("finish_time_us", "end_time_us"),
    ),
    "ttft": ("ttft", "ttft_ms", "ttft_s", "time_to_first_token"),
    "e2e": ("e2e", "e2el_ms", "e2e_ms", "latency", "latency_ms", "request_latency"),
}
_NEEDED = (
    "a time of sending, prompt and output tokens, and times of the first and last token or TTFT "
    "and whole latency"
)


def runs(name: str, content: Any, range_ratio: float = 0.0) -> list[Measured] | None:
    """Read the successful requests of a log, JSON lines or CSV; None for another format.

    Raises
    ------
    ValueError
        If a table of requests lacks a column that is needed.
    """
    if not isinstance(content, list) or not content or not isinstance(content[0], dict):
        return None
    rows = [row for row in content if str(row.get("status", "ok")).lower() in ("ok", "success", "")]
    prompts, outputs, *times = (_column(rows, names) for names in COLUMNS.values())
    if prompts is None or outputs is None:
        return None
    sent, ttft, e2e = _latencies(*times)
    counts = [int(n) for n in outputs]
    kept = [i for i, count in enumerate(counts) if count > 0 and math.isfinite(ttft[i])]
    counts = [counts[i] for i in kept]
    sent, ttft, e2e = ([column[i] for i in kept] for column in (sent, ttft, e2e))
    tpot = per_token(map(sub, e2e, ttft), counts)
    return [measured(name, Requests([int(prompts[i]) for i in kept], counts, sent, ttft, tpot))]


def _latencies(
    sent: Floats | None,
    first: Floats | None,
    last: Floats | None,
    ttft: Floats | None,
    e2e: Floats | None,
) -> tuple[Floats, Floats, Floats]:
    """Return send times, TTFT and E2E latencies of the requests, seconds."""
    if sent is not None and first is not None and last is not None:
        return sent, list(map(sub, first, sent)), list(map(sub, last, sent))
    if sent is None or ttft is None or e2e is None:
        raise ValueError(f"a log of requests needs {_NEEDED}")
    return sent, ttft, e2e


def _column(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> Floats | None:
    """Return the first column that exists, in seconds or tokens; None if none does."""
    for name in names:
        if rows and name in rows[0]:
            unit = 1e-6 if name.endswith("_us") else 1e-3 if name.endswith("_ms") else 1.0
            return [unit * float(row[name]) if row[name] != "" else math.nan for row in rows]
    return None
