"""Statistics of a trace, and their table."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.report.narrow import plain_table
from kvsim.report.text import number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

    from kvsim.trace import Trace


#: Units of facts other than counts, names and tokens.
UNITS = {"duration": "s", "request_rate": "requests/s"}


def trace_facts(trace: Trace) -> dict[str, Any]:
    """Return counts, rate, variation of the gaps between arrivals, and length statistics."""
    gaps = np.diff(trace.arrival_time)
    cv = float(gaps.std() / gaps.mean()) if len(gaps) and gaps.mean() > 0 else None
    rate = trace.request_rate
    facts: dict[str, Any] = {
        "num_requests": len(trace),
        "duration": trace.duration,
        "request_rate": rate if math.isfinite(rate) else None,
        "cv_of_gaps": cv,
    }
    for name in ("num_prompt_tokens", "num_output_tokens"):
        tokens = getattr(trace, name)
        label = name[4:-7]
        facts[f"mean_{label}_tokens"] = float(tokens.mean())
        facts[f"p50_p99_max_{label}_tokens"] = [
            float(np.percentile(tokens, 50)),
            float(np.percentile(tokens, 99)),
            int(tokens.max()),
        ]
    sessions = trace.session_id[trace.session_id >= 0]
    facts["num_sessions"] = len(np.unique(sessions))
    facts["has_segments"] = trace.has_segments
    facts["digest"] = trace.digest
    return facts


def facts_table(facts: Mapping[str, Any]) -> RenderableType:
    """Lay out labels and values, one note per line."""
    rows = []
    for label, value in facts.items():
        values = value if isinstance(value, list) else [value]
        separator = "\n" if label == "notes" else ", "
        unit = UNITS.get(label, "tokens" if label.endswith("_tokens") else "")
        words = label.removesuffix("_tokens").replace("_", " ")
        rows.append((f"{words}  ", f"{separator.join(map(_fact, values))} {unit}".rstrip()))
    return plain_table(("", ""), rows, "Ll")


def _fact(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else number(value)
    return f"{value:,}" if isinstance(value, int) else str(value)
