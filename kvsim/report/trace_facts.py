"""What there is to say about a trace."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from kvsim.trace import Trace


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
