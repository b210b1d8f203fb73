"""A log of requests: a row each with tokens, and times of sending, first and last token."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from kvsim.calibration.bench import Measured, Requests, measured

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Columns by what they hold, best first. A name that ends in ``_us`` or ``_ms`` is of such a unit.
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
    """Read a log, JSON lines or CSV; rows that did not succeed are left out.

    Raises
    ------
    ValueError
        If a table of requests lacks what is needed.
    """
    del range_ratio
    if not isinstance(content, list) or not content or not isinstance(content[0], dict):
        return None
    rows = [row for row in content if str(row.get("status", "ok")).lower() in ("ok", "success", "")]
    found = {kind: _column(rows, names) for kind, names in COLUMNS.items()}
    if found["prompts"] is None or found["outputs"] is None:
        return None
    sent, first, last = found["sent"], found["first"], found["last"]
    ttft, e2e = found["ttft"], found["e2e"]
    if sent is not None and first is not None and last is not None:
        ttft = [f - s for f, s in zip(first, sent, strict=True)]
        e2e = [t - s for t, s in zip(last, sent, strict=True)]
    if sent is None or ttft is None or e2e is None:
        raise ValueError(f"a log of requests needs {_NEEDED}")
    outputs = [int(n) for n in found["outputs"]]
    kept = [i for i, output in enumerate(outputs) if output > 0 and math.isfinite(ttft[i])]
    return [
        measured(
            name,
            Requests(
                [int(found["prompts"][i]) for i in kept],
                [outputs[i] for i in kept],
                [sent[i] for i in kept],
                [ttft[i] for i in kept],
                [
                    (e2e[i] - ttft[i]) / (outputs[i] - 1) if outputs[i] > 1 else math.nan
                    for i in kept
                ],
            ),
        )
    ]


def _column(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> list[float] | None:
    """Return the first column that is there, in seconds or tokens."""
    for name in names:
        if rows and name in rows[0]:
            unit = 1e-6 if name.endswith("_us") else 1e-3 if name.endswith("_ms") else 1.0
            return [unit * float(row[name]) if row[name] != "" else math.nan for row in rows]
    return None
