"""Metrics of a run under vLLM's metric names and buckets, over simulated time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvsim.budget.capacity import resolve_memory
from kvsim.files import write_whole, writing
from kvsim.report.openmetrics import Observed, family, histogram, series
from kvsim.report.title import model_name
from kvsim.results.block_events import residency
from kvsim.results.buckets import LATENCY, PER_TOKEN, STEP_TOKENS, TTFT, token_counts
from kvsim.results.idle import memory_with_gaps
from kvsim.results.phases import last_scheduled_times
from kvsim.results.tables import FinishReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from kvsim.results.result import Result

RESIDENCY = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0),
    *(60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0),
)

#: Maximum number of points in time, and of lines of the file (approximately).
MOST_POINTS, MOST_LINES = 240, 400_000
#: Lines per point in time and replica.
LINES_PER_POINT = 330
REASONS = {
    FinishReason.FINISHED: "length",
    FinishReason.ABORTED: "abort",
    FinishReason.FAILED: "error",
}


class _Seen(NamedTuple):
    """The results of one replica, and the labels of its metrics."""

    result: Result
    replica: int
    requests: NDArray[Any]
    scheduled: NDArray[np.float64]
    pairs: dict[str, str]


def write_metrics(result: Result, path: Path) -> None:
    """Write a run as OpenMetrics text, whole or not at all; see :func:`exposition`."""

    def write(file: Any) -> None:
        for line in exposition(result):
            file.write(f"{line}\n".encode())

    with writing(path):
        write_whole(path, write)


def exposition(result: Result) -> Iterator[str]:
    """Return a run as lines of OpenMetrics text, with a timestamp on every sample.

    Times are the simulation's seconds; the label ``engine`` is the replica. Step sizes and
    preemptions need ``record_steps=True``, residency of blocks ``record_block_events=True``.
    """
    times = _points(result)
    seen = [_of(result, row["replica"]) for row in result.summary["replicas"]]
    for name, text, column in GAUGES:
        yield from family(f"vllm:{name}", "gauge", text)
        for one in seen:
            yield from series(f"vllm:{name}", one.pairs, times, _gauge(one, column, times))
    yield from _cache_config(result)
    for name, text, values in COUNTERS:
        found = [(one, values(one, times)) for one in seen]
        if any(counted is None for _, counted in found):
            continue
        yield from family(f"vllm:{name}", "counter", text)
        for one, counted in found:
            assert counted is not None
            yield from series(f"vllm:{name}_total", one.pairs, times, counted)
    yield from family("vllm:request_success", "counter", "Requests that have ended, by reason.")
    for one in seen:
        for reason, said in REASONS.items():
            ended = one.requests["finish_time"][one.requests["finish_reason"] == reason]
            counted = np.searchsorted(np.sort(ended), times, side="right")
            pairs = {**one.pairs, "finished_reason": said}
            yield from series("vllm:request_success_total", pairs, times, counted)
    yield from _histograms(result, seen, times)
    yield "# EOF"


def _points(result: Result) -> list[float]:
    """Return evenly spaced instants from the start of the run to its end."""
    start = float(result.requests["arrival_time"].min())
    replicas = len(result.summary["replicas"])
    count = max(2, min(MOST_POINTS, MOST_LINES // (LINES_PER_POINT * replicas)))
    end = start + result.summary["duration"]
    # Prometheus stores milliseconds: round up, so that the last instant includes every event.
    times = np.ceil(1000 * np.linspace(start, end, count)) / 1000
    found: list[float] = np.unique(times).tolist()
    return [*found[:-1], round(found[-1] + 0.001, 3)]


def _of(result: Result, replica: int) -> _Seen:
    config = result.config
    mine = result.served["replica"] == replica
    mine &= result.served["finish_reason"] != FinishReason.UNSENT
    pairs = {"model_name": model_name(config), "engine": str(replica)}
    return _Seen(result, replica, result.served[mine], last_scheduled_times(result)[mine], pairs)


# -- gauges and counters ---------------------------------------------------------------------------

GAUGES = (
    ("num_requests_running", "Requests in the batch.", "num_running"),
    ("num_requests_waiting", "Requests that wait to be scheduled.", "num_waiting"),
    ("kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1.", "kv_usage"),
)


def _gauge(one: _Seen, column: str, times: Sequence[float]) -> NDArray[Any]:
    """Return the last sample at each time, 0 before the first."""
    rows = memory_with_gaps(one.result, one.replica)
    at = np.searchsorted(rows["time"], times, side="right") - 1
    values = np.append(rows[column], 0)  # -1 is before the first
    return values[at]


def _until(times: NDArray[Any], amounts: NDArray[Any], points: Sequence[float]) -> NDArray[Any]:
    """Return the cumulative amount at each point in time."""
    known = ~np.isnan(times)
    order = np.argsort(times[known], kind="stable")
    sums = np.append(0, amounts[known][order].cumsum())
    counted: NDArray[Any] = sums[np.searchsorted(times[known][order], points, side="right")]
    return counted


def _counted(time: str, amount: str) -> Callable[[_Seen, Sequence[float]], NDArray[Any]]:
    """Return a function that sums a column of the requests until each point in time."""
    return lambda one, points: _until(one.requests[time], one.requests[amount], points)


_prompts = _counted("first_token_time", "num_prompt_tokens")
_queries = _counted("first_scheduled_time", "num_prompt_tokens")
_hits = _counted("first_scheduled_time", "num_cached_tokens")


def _generated(one: _Seen, points: Sequence[float]) -> NDArray[Any]:
    """Return cumulative output tokens, spread evenly between a request's first and last token."""
    rows = one.requests[~np.isnan(one.requests["first_token_time"])]
    first, count = rows["first_token_time"], rows["num_output_tokens"]
    last = np.where(np.isnan(rows["finish_time"]), points[-1], rows["finish_time"])
    span = np.maximum(last - first, 1e-12)
    counted = []
    for point in points:
        there = first <= point
        share = np.minimum((point - first[there]) / span[there], 1.0)
        counted.append(int((1 + np.floor((count[there] - 1) * share + 1e-9)).sum()))
    return np.array(counted)


def _preempted(one: _Seen, points: Sequence[float]) -> NDArray[Any] | None:
    steps = _steps(one)
    if steps is None:
        return None
    return _until(steps["start_time"], steps["num_preempted"].astype(np.int64), points)


def _steps(one: _Seen) -> NDArray[Any] | None:
    if not one.result.config.record_steps:
        return None
    steps: NDArray[Any] = one.result.steps
    mine: NDArray[Any] = steps[steps["replica"] == one.replica]
    return mine


COUNTERS = (
    ("prompt_tokens", "Prompt tokens, counted when the first token is produced.", _prompts),
    ("generation_tokens", "Output tokens, evenly between a request's first and last.", _generated),
    ("prefix_cache_queries", "Prompt tokens looked up, at the first admission.", _queries),
    ("prefix_cache_hits", "Prompt tokens found in the prefix cache at that time.", _hits),
    ("num_preemptions", "Preemptions.", _preempted),
)


def _cache_config(result: Result) -> Iterator[str]:
    config, cache = result.config, result.summary["kv_cache"]
    name = "vllm:cache_config_info"
    yield from family(name, "gauge", "Configuration of the KV cache.")
    told = {
        "block_size": cache["block_size"],
        "cache_dtype": config.kv_cache_dtype,
        "enable_prefix_caching": config.enable_prefix_caching,
        "gpu_memory_utilization": config.gpu_memory_utilization,
        "num_gpu_blocks": cache["num_gpu_blocks"],
    }
    start = float(result.requests["arrival_time"].min())
    blocks = {pool["role"]: pool["num_gpu_blocks"] for pool in result.summary["pools"] or ()}
    for row in result.summary["replicas"]:
        told["num_gpu_blocks"] = blocks.get(row["role"], cache["num_gpu_blocks"])
        pairs = {key: str(value) for key, value in told.items()}
        yield from series(name, {**pairs, "engine": str(row["replica"])}, [start], [1])


# -- histograms ------------------------------------------------------------------------------------


def _histograms(result: Result, seen: Sequence[_Seen], times: Sequence[float]) -> Iterator[str]:
    lengths = token_counts(resolve_memory(result.config).limits.max_model_len)
    ends = {one.replica: _ended(one) for one in seen}
    stays = {one.replica: _residency(one) for one in seen}
    shown: list[tuple[str, str, Sequence[float], dict[int, Observed]]] = [
        (
            "time_to_first_token_seconds",
            "From arrival to the first token.",
            TTFT,
            {one.replica: _ttft(one) for one in seen},
        ),
        (
            "inter_token_latency_seconds",
            "Gaps between tokens; counted at the end of the run, binned to 0.1 %.",
            PER_TOKEN,
            {one.replica: _gaps(one, times[-1]) for one in seen},
        ),
    ]
    per_request: tuple[tuple[str, str, Sequence[float]], ...] = (
        ("request_time_per_output_token_seconds", "TPOT of each request.", PER_TOKEN),
        ("e2e_request_latency_seconds", "From arrival to the last token.", LATENCY),
        ("request_queue_time_seconds", "Arrival to last admission before first token.", LATENCY),
        ("request_prefill_time_seconds", "From that admission to the first token.", LATENCY),
        ("request_decode_time_seconds", "First to last token, preemptions included.", LATENCY),
        ("request_inference_time_seconds", "Prefill and decode.", LATENCY),
        ("request_prompt_tokens", "Prompt tokens per request.", lengths),
        ("request_generation_tokens", "Output tokens per request.", lengths),
    )
    for name, text, buckets in per_request:
        shown.append((name, text, buckets, {k: found[name] for k, found in ends.items()}))
    if result.config.record_steps:
        text = "Tokens scheduled per step."
        steps = {one.replica: _step_tokens(one) for one in seen}
        shown.append(("iteration_tokens_total", text, STEP_TOKENS, steps))
    if result.config.record_block_events:
        for name, text in (
            ("kv_block_lifetime_seconds", "From a block's allocation to its eviction."),
            ("kv_block_idle_before_evict_seconds", "From the last touch to eviction."),
            ("kv_block_reuse_gap_seconds", "Between two touches of a block."),
        ):
            shown.append((name, text, RESIDENCY, {k: found[name] for k, found in stays.items()}))
    for name, text, buckets, found in shown:
        yield from family(f"vllm:{name}", "histogram", text)
        for one in seen:
            pairs = one.pairs
            yield from histogram(f"vllm:{name}", pairs, buckets, found[one.replica], times)


def _ttft(one: _Seen) -> Observed:
    rows = one.requests[~np.isnan(one.requests["first_token_time"])]
    return Observed(rows["first_token_time"], rows["first_token_time"] - rows["arrival_time"])


def _gaps(one: _Seen, end: float) -> Observed:
    gaps = one.result.token_gaps
    gaps = gaps[gaps["replica"] == one.replica]
    return Observed(np.full(len(gaps), end), gaps["gap"], gaps["count"].astype(np.float64))


def _ended(one: _Seen) -> dict[str, Observed]:
    done = one.requests["finish_reason"] == FinishReason.FINISHED
    rows, scheduled = one.requests[done], one.scheduled[done]
    finish, token, arrival = rows["finish_time"], rows["first_token_time"], rows["arrival_time"]
    several = rows["num_output_tokens"] > 1
    per_token = (finish - token)[several] / (rows["num_output_tokens"][several] - 1)
    return {
        "request_time_per_output_token_seconds": Observed(finish[several], per_token),
        "e2e_request_latency_seconds": Observed(finish, finish - arrival),
        "request_queue_time_seconds": Observed(finish, scheduled - arrival),
        "request_prefill_time_seconds": Observed(finish, token - scheduled),
        "request_decode_time_seconds": Observed(finish, finish - token),
        "request_inference_time_seconds": Observed(finish, finish - scheduled),
        "request_prompt_tokens": Observed(finish, rows["num_prompt_tokens"].astype(np.float64)),
        "request_generation_tokens": Observed(finish, rows["num_output_tokens"].astype(np.float64)),
    }


def _step_tokens(one: _Seen) -> Observed:
    steps = _steps(one)
    assert steps is not None
    real = steps[steps["num_scheduled_tokens"] > 0]
    return Observed(real["start_time"], real["num_scheduled_tokens"].astype(np.float64))


def _residency(one: _Seen) -> dict[str, Observed]:
    events = one.result.block_events
    ends, lives, idles, gaps, gap_ends = residency(events[events["replica"] == one.replica])
    return {
        "kv_block_lifetime_seconds": Observed(ends, lives),
        "kv_block_idle_before_evict_seconds": Observed(ends, idles),
        "kv_block_reuse_gap_seconds": Observed(gap_ends, gaps),
    }
