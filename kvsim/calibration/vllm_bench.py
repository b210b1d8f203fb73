"""Results of ``vllm bench serve --save-result`` and ``--save-detailed``, and similar files."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from kvsim.calibration.bench import (
    Measured,
    Requests,
    arrivals_at,
    drawn_note,
    lengths_around,
    measured,
    number,
    per_token,
    trace_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


def runs(name: str, content: Any, range_ratio: float = 0.0) -> list[Measured] | None:
    """Read one result, or several of ``--append-result``; None for another format.

    ``range_ratio`` is the client's ``--random-range-ratio``, which results do not record.
    """
    results = content if isinstance(content, list) else [content]
    if not results or not all(isinstance(r, dict) and "mean_ttft_ms" in r for r in results):
        return None
    if len(results) == 1:
        return [_run(name, results[0], range_ratio)]
    return [_run(f"{name}#{i + 1}", result, range_ratio) for i, result in enumerate(results)]


def _run(name: str, result: Mapping[str, Any], range_ratio: float) -> Measured:
    rate = number(result, "request_rate")
    rate = math.inf if rate is None else rate
    limit = number(result, "max_concurrency")
    how = {
        "request_rate": rate,
        "max_concurrency": None if limit is None else int(limit),
        "burstiness": number(result, "burstiness") or 1.0,
    }
    if result.get("input_lens") and result.get("ttfts") and result.get("itls") is not None:
        return measured(name, _requests(result), **how)  # type: ignore[arg-type]
    return _from_means(name, result, range_ratio, **how)  # type: ignore[arg-type]


def _requests(result: Mapping[str, Any]) -> Requests:
    """Return the requests that succeeded; a failed one has an error or no output."""
    errors = result.get("errors") or [""] * len(result["ttfts"])
    outputs = result["output_lens"]
    kept = [i for i, error in enumerate(errors) if not error and outputs[i] > 0]
    starts = result.get("start_times")
    produced = [int(outputs[i]) for i in kept]
    return Requests(
        [int(result["input_lens"][i]) for i in kept],
        produced,
        [float(starts[i]) for i in kept] if starts else None,
        [float(result["ttfts"][i]) for i in kept],
        per_token((sum(result["itls"][i]) for i in kept), produced),
    )


def _from_means(
    name: str,
    result: Mapping[str, Any],
    range_ratio: float,
    *,
    request_rate: float,
    max_concurrency: int | None,
    burstiness: float,
) -> Measured:
    """Return a run with lengths drawn around the means, for files without ``--save-detailed``."""
    count = int(result.get("completed") or 0)
    if count < 1:
        raise ValueError(f"{name}: has no successful request")
    means = result["total_input_tokens"] / count, result["total_output_tokens"] / count
    prompts, outputs = (lengths_around(mean, range_ratio, count) for mean in means)
    arrivals = arrivals_at(request_rate, burstiness, count)
    ttft, tpot = number(result, "mean_ttft_ms"), number(result, "mean_tpot_ms")
    return Measured(
        name,
        tuple(trace_of(times, prompts, outputs) for times in arrivals),
        max_concurrency,
        None if not ttft else ttft / 1e3,
        None if not tpot else tpot / 1e3,
        (
            *drawn_note(name, arrivals),
            f"{name}: has no lengths per request: {means[0]:.0f} + {means[1]:.0f} tokens"
            + (f" within {100 * range_ratio:g} %" if range_ratio else " for every request")
            + "; --save-detailed saves them, --random-range-ratio gives their range",
        ),
    )
