"""Reports of inference-perf, per stage or per request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.calibration.bench import (
    Measured,
    Requests,
    arrivals_at,
    drawn_note,
    measured,
    number,
    per_token,
    trace_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


def runs(name: str, content: Any, range_ratio: float = 0.0) -> list[Measured] | None:
    """Read ``stage_N_`` or ``per_request_lifecycle_metrics.json``; None for another format."""
    if isinstance(content, dict) and "successes" in content:
        return [_stage(name, content)]
    if isinstance(content, list) and content and all(_is_request(row) for row in content):
        return [measured(name, _requests(content))]
    return None


def _is_request(row: Any) -> bool:
    return isinstance(row, dict) and isinstance(row.get("info"), dict) and "start_time" in row


def _stage(name: str, content: Mapping[str, Any]) -> Measured:
    """Read a stage: all requests get the mean lengths, and TPOT follows from mean latencies."""
    load, seen = content.get("load_summary") or {}, content["successes"]
    rate = number(load, "achieved_rate", "requested_rate")
    if rate is None:
        raise ValueError(
            f"{name}: has no request rate; give the report of a stage, not the summary"
        )
    count = int(seen["count"])
    if count < 1:
        raise ValueError(f"{name}: has no successful request")
    prompt = max(round(seen["prompt_len"]["mean"]), 1)
    output = max(round(seen["output_len"]["mean"]), 1)
    latency = seen["latency"]
    ttft = float(latency["time_to_first_token"]["mean"])
    whole = float(latency["request_latency"]["mean"])
    arrivals = arrivals_at(rate, 1.0, count)
    return Measured(
        name,
        tuple(trace_of(times, [prompt] * count, [output] * count) for times in arrivals),
        None,
        ttft,
        (whole - ttft) / (output - 1) if output > 1 else None,
        (
            *drawn_note(name, arrivals),
            f"{name}: has no lengths; every request gets the mean ones: {prompt} + "
            f"{output} tokens; per_request_lifecycle_metrics.json has them",
        ),
    )


def _requests(rows: list[Mapping[str, Any]]) -> Requests:
    prompts, outputs, sent, ttfts, decoding = [], [], [], [], []
    for row in rows:
        info = row["info"]
        response = info.get("response_metrics") or info
        times = response.get("output_token_times") or []
        if row.get("error") or not times:
            continue
        tokens = number(info, "input_tokens")
        if tokens is None:
            tokens = float(info["request_metrics"]["text"]["input_tokens"])
        produced = int(number(response, "output_tokens") or len(times))
        start, first = float(row["start_time"]), float(times[0])
        prompts.append(int(tokens))
        outputs.append(produced)
        sent.append(start)
        ttfts.append(first - start)
        decoding.append(float(times[-1]) - first)
    return Requests(prompts, outputs, sent, ttfts, per_token(decoding, outputs))
