"""Results of ``vllm bench serve --save-result`` and ``--save-detailed``, and SGLang's like them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from kvsim.calibration.bench import (
    Measured,
    Requests,
    arrivals_at,
    drawn_note,
    measured,
    number,
    trace_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


def runs(name: str, content: Any) -> list[Measured] | None:
    """Read one result, or those that ``--append-result`` put after each other."""
    results = content if isinstance(content, list) else [content]
    if not results or not all(isinstance(r, dict) and "mean_ttft_ms" in r for r in results):
        return None
    if len(results) == 1:
        return [_run(name, results[0])]
    return [_run(f"{name}#{i + 1}", result) for i, result in enumerate(results)]


def _run(name: str, result: Mapping[str, Any]) -> Measured:
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
    return _from_means(name, result, **how)  # type: ignore[arg-type]


def _requests(result: Mapping[str, Any]) -> Requests:
    """Take the requests that did not fail; a failed one has an error or no output."""
    errors = result.get("errors") or [""] * len(result["ttfts"])
    outputs = result["output_lens"]
    kept = [i for i, error in enumerate(errors) if not error and outputs[i] > 0]
    starts = result.get("start_times")
    itls = [result["itls"][i] for i in kept]
    return Requests(
        [int(result["input_lens"][i]) for i in kept],
        [int(outputs[i]) for i in kept],
        [float(starts[i]) for i in kept] if starts else None,
        [float(result["ttfts"][i]) for i in kept],
        [
            sum(gaps) / (outputs[i] - 1) if outputs[i] > 1 else math.nan
            for i, gaps in zip(kept, itls, strict=True)
        ],
    )


def _from_means(
    name: str,
    result: Mapping[str, Any],
    *,
    request_rate: float,
    max_concurrency: int | None,
    burstiness: float,
) -> Measured:
    """Take every request for the mean one: only ``--save-detailed`` tells more."""
    count = int(result.get("completed") or 0)
    if count < 1:
        raise ValueError(f"{name}: no request of it succeeded")
    prompt = max(round(result["total_input_tokens"] / count), 1)
    output = max(round(result["total_output_tokens"] / count), 1)
    arrivals = arrivals_at(request_rate, burstiness, count)
    tpot = number(result, "mean_tpot_ms")
    return Measured(
        name,
        tuple(trace_of(times, [prompt] * count, [output] * count) for times in arrivals),
        max_concurrency,
        float(result["mean_ttft_ms"]) / 1e3,
        None if not tpot else tpot / 1e3,
        (
            *drawn_note(name, arrivals),
            f"{name}: lengths are not told, every request is taken for the mean one: "
            f"{prompt} + {output} tokens; --save-detailed tells them",
        ),
    )
