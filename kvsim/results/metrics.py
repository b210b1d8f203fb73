"""The summary of a run, from its tables and totals; keys have the names of ``vllm bench serve``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvsim.kv.usage import HELD
from kvsim.results.tables import FinishReason
from kvsim.results.totals import Totals, bin_middle, bin_middles

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    Summary = dict[str, Any]

PERCENTILES = {"median": 50, "p90": 90, "p99": 99}
#: Percentiles of gaps between tokens; a rare long gap is a stall that a user sees.
GAP_PERCENTILES = {**PERCENTILES, "p999": 99.9}


class Pool(NamedTuple):
    """The KV memory of one replica: blocks, usable blocks, tokens per block, bytes."""

    num_gpu_blocks: int
    num_usable_blocks: int
    block_size: int
    bytes: int


def rows_where(table: NDArray[Any], mask: NDArray[np.bool_]) -> NDArray[Any]:
    """Return the rows where a mask is true; the table itself, not a copy, if all are."""
    rows: NDArray[Any] = table if mask.all() else table[mask]
    return rows


def latencies(
    requests: NDArray[Any], front_end_latency: float = 0.0
) -> dict[str, NDArray[np.float64]]:
    """Return the latencies of finished requests in seconds, one array per metric.

    ``ttft`` = first token - arrival, ``e2el`` = finish - arrival, ``tpot`` = (finish - first token)
    / (output tokens - 1), NaN for a single token. ``front_end_latency`` is added to TTFT and E2E,
    as a client sees them; the times of the table are the server's.
    """
    done = rows_where(requests, requests["finish_reason"] == FinishReason.FINISHED)
    ttft = done["first_token_time"] - done["arrival_time"] + front_end_latency
    e2el = done["finish_time"] - done["arrival_time"] + front_end_latency
    several = done["num_output_tokens"] > 1
    tpot = done["finish_time"] - done["first_token_time"]
    np.divide(tpot, done["num_output_tokens"] - 1, out=tpot, where=several)
    tpot[~several] = math.nan
    return {"ttft": ttft, "tpot": tpot, "e2el": e2el}


def summarize(
    requests: NDArray[Any],
    totals: Sequence[Totals],
    pool: Pool,
    *,
    end_time: float,
    goodput: Mapping[str, float] | None = None,
    front_end_latency: float = 0.0,
    replica_seconds: float | None = None,
    served: NDArray[Any] | None = None,
    num_samples: NDArray[np.int64] | int = 1,
) -> Summary:
    """Return the summary of a run; latencies are in ms, undefined values None.

    Parameters
    ----------
    requests : the requests table; rows that were not sent by the horizon do not count
    totals : one per replica
    pool : KV memory of one replica
    end_time : time of the last event, seconds
    goodput : targets in ms by metric
    front_end_latency : seconds that every TTFT and E2E contains outside the server
    replica_seconds : sum of the replicas' lifetimes; by default each lives for the whole run
    served : rows that the replicas served, if they served samples as separate requests; hits and
        gaps between tokens are then computed from these rows
    num_samples : samples of each request
    """
    total = Totals()
    for one in totals:
        total.add(one)
    reasons = np.ascontiguousarray(requests["finish_reason"])
    sent = reasons != FinishReason.UNSENT
    num_unsent = len(sent) - int(sent.sum())
    finished = reasons == FinishReason.FINISHED
    samples = num_samples if isinstance(num_samples, int) else num_samples[finished]
    requests, reasons = rows_where(requests, sent), rows_where(reasons, sent)
    done = rows_where(requests, reasons == FinishReason.FINISHED)
    lengths = done["num_output_tokens"] // samples  # of one sample
    duration = float(end_time - requests["arrival_time"].min())
    values = latencies(requests, front_end_latency)
    summary: Summary = {
        "duration": duration,
        "completed": len(done),
        "total_input_tokens": int(done["num_prompt_tokens"].sum()),
        "total_output_tokens": int(done["num_output_tokens"].sum()),
    }
    tokens = summary["total_input_tokens"] + summary["total_output_tokens"]
    summary["request_throughput"] = _ratio(len(done), duration)
    met = _num_good(values, goodput) if goodput else None
    summary["request_goodput"] = None if met is None else _ratio(met, duration)
    summary["goodput_attainment"] = None if met is None else _ratio(met, len(requests))
    summary["output_throughput"] = _ratio(summary["total_output_tokens"], duration)
    summary["total_token_throughput"] = _ratio(tokens, duration)
    for name in ("ttft", "tpot"):
        summary |= _statistics(name, values[name])
    all_ended = not (reasons == FinishReason.IN_FLIGHT).any()
    if served is None:
        summary |= _gap_statistics(done, lengths, total, all_ended=all_ended)
    else:
        each = rows_where(served, served["finish_reason"] == FinishReason.FINISHED)
        summary |= _gap_statistics(each, each["num_output_tokens"], total, all_ended=all_ended)
    summary |= _statistics("e2el", values["e2el"])
    normalized = values["e2el"] / np.maximum(lengths, 1)
    summary["mean_normalized_latency_ms"] = _ms(normalized.mean()) if len(done) else None
    summary |= _counts(requests, reasons, total) | {"num_unsent": num_unsent}
    summary["prefix_cache_hit_rate"] = _hit_rate(requests if served is None else served)
    summary |= {
        "mean_running": _ratio(total.running_seconds, duration),
        "mean_waiting": _ratio(total.waiting_seconds, duration),
        "peak_running": total.peak_running,
        "mean_running_while_refused": _ratio(
            total.running_while_refused_seconds, total.refused_seconds
        ),
        "kv_cache": _kv_cache(
            total, pool, duration * len(totals) if replica_seconds is None else replica_seconds
        ),
    }
    return summary


def num_early_turns(requests: NDArray[Any], session_id: NDArray[np.int64]) -> tuple[int, int]:
    """Count the turns that arrived before the previous turn was answered, and all but first turns.

    Parameters
    ----------
    requests : the requests table; rows that were not sent by the horizon do not count
    session_id : session of each row, -1 for a request without a session

    Returns
    -------
    Turns that arrived too early, and turns that are not the first of their session.
    """
    order = np.flatnonzero((session_id >= 0) & (requests["finish_reason"] != FinishReason.UNSENT))
    order = order[np.argsort(session_id[order], kind="stable")]
    is_later = session_id[order][1:] == session_id[order][:-1]
    later, before = order[1:][is_later], order[:-1][is_later]
    answered = requests["finish_time"][before] <= requests["arrival_time"][later]
    ended = requests["finish_reason"][before] == FinishReason.REJECTED
    return int((~answered & ~ended).sum()), len(later)


def _counts(requests: NDArray[Any], reasons: NDArray[np.int8], total: Totals) -> Summary:
    return {
        "num_rejected": int((reasons == FinishReason.REJECTED).sum()),
        "num_in_flight": int((reasons == FinishReason.IN_FLIGHT).sum()),
        "num_failed": int(np.isin(reasons, (FinishReason.FAILED, FinishReason.ABORTED)).sum()),
        "num_preemptions": total.num_preemptions,
        "num_recomputed_tokens": total.num_recomputed_tokens,
        "num_steps": total.num_steps,
        "prefix_cache_hit_rate": None,
        **_acceptance(total),
        **_transfers(total),
        **_encoder(total),
        "num_adapter_switches": total.num_adapter_switches or None,
    }


def _hit_rate(served: NDArray[Any]) -> float | None:
    """Return the share of prompt tokens found in the cache at the first admission."""
    admitted = rows_where(served, ~np.isnan(served["first_scheduled_time"]))
    found = int(admitted["num_cached_tokens"].sum())
    return _ratio(found, int(admitted["num_prompt_tokens"].sum()))


def external_hit_rate(totals: Iterable[Totals]) -> float | None:
    """Return the hit rate of KV connectors or a host tier, by tokens; None without queries.

    As in vLLM's counters, an admission queries the tokens that the GPU lacks, and admissions after
    a preemption do not count.
    """
    totals = list(totals)
    found = sum(one.num_external_tokens for one in totals)
    return _ratio(found, sum(one.num_external_queries for one in totals))


def _transfers(total: Totals) -> Summary:
    """Return the metrics of KV connectors; None if no connector was queried."""
    wait = _ratio(total.loading_seconds, total.num_loads)
    return {
        "external_prefix_cache_hit_rate": external_hit_rate([total]),
        "num_kv_loads": total.num_loads if total.num_external_queries else None,
        "mean_kv_load_ms": None if wait is None else _ms(wait),
    }


def _encoder(total: Totals) -> Summary:
    """Return the metrics of an encoder and its cache; None without encoder inputs."""
    items = total.num_encoder_items
    return {
        "num_encoded_items": total.num_encoded_items if items else None,
        "num_encoded_tokens": total.num_encoded_tokens if items else None,
        "encoder_cache_hit_rate": _ratio(total.num_found_items, items),
    }


def _acceptance(total: Totals) -> Summary:
    """Return the acceptance of drafts, as vLLM logs it; None without drafts."""
    accepted = _ratio(total.num_accepted_tokens, total.num_drafts)
    return {
        "num_drafts": total.num_drafts if total.num_drafts else None,
        "num_draft_tokens": total.num_draft_tokens if total.num_drafts else None,
        "num_accepted_tokens": total.num_accepted_tokens if total.num_drafts else None,
        "acceptance_rate": _ratio(total.num_accepted_tokens, total.num_draft_tokens),
        "mean_acceptance_length": None if accepted is None else 1.0 + accepted,
    }


def _kv_cache(total: Totals, pool: Pool, replica_seconds: float) -> Summary:
    everything = 0.0
    for cause in HELD:
        everything += total.held_seconds(cause)
    cache: Summary = {
        "num_gpu_blocks": pool.num_gpu_blocks,
        "num_usable_blocks": pool.num_usable_blocks,
        "block_size": pool.block_size,
        "bytes": pool.bytes,
        **{cause.summary_key: _ratio(total.held_seconds(cause), everything) for cause in HELD},
        "cached": _ratio(total.cached_seconds, total.unallocated_seconds),
        "mean_usage": _ratio(total.usage_seconds, replica_seconds),
        "peak_usage": total.peak_usage,
        "num_allocation_failures": total.num_allocation_failures,
    }
    # Of forked sequences: the share of block-table entries saved, and the blocks copied.
    held = _ratio(total.forked_seconds, total.entry_seconds)
    cache["saved_by_sharing"] = None if held is None else 1.0 - held
    cache["num_copied_blocks"] = None if held is None else total.num_copied_blocks
    for way in ("fetched", "stored", "paged_in", "paged_out"):
        cache[f"{way}_bytes"] = getattr(total, f"{way}_bytes")
    active = _ratio(total.heap_active_seconds, total.heap_reserved_seconds)
    cache["fragmentation"] = None if active is None else 1.0 - active  # of PyTorch's allocator
    return cache


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _ms(seconds: float) -> float:
    return float(seconds) * 1000.0


def _statistics(name: str, seconds: NDArray[np.float64]) -> Summary:
    known = seconds[~np.isnan(seconds)]
    if not len(known):
        return {f"{kind}_{name}_ms": None for kind in ("mean", *PERCENTILES)}
    stats = {f"mean_{name}_ms": _ms(known.mean())}
    found = np.percentile(known, list(PERCENTILES.values()), overwrite_input=True)
    return stats | {f"{k}_{name}_ms": _ms(v) for k, v in zip(PERCENTILES, found, strict=True)}


def _gap_statistics(
    done: NDArray[Any], lengths: NDArray[Any], total: Totals, *, all_ended: bool
) -> Summary:
    """Return the inter-token latency of all tokens, those of requests in flight included.

    Tokens that one verification accepts arrive together, after one gap, as a client sees it.
    Percentiles come from the binned gaps. The mean is exact if all requests have ended, else it
    comes from the bins, too. The maximum is exact, and no percentile is above it.
    """
    gaps = total.token_gaps
    num_gaps = int((lengths - 1).sum())
    if total.num_drafts:
        num_gaps = sum(gaps.values())
    if not gaps or (all_ended and not num_gaps):
        return {f"{kind}_itl_ms": None for kind in ("mean", *GAP_PERCENTILES, "max")}
    keys = np.array(sorted(gaps))
    counts = np.array([gaps[key] for key in keys.tolist()])
    if all_ended:
        mean = float((done["finish_time"] - done["first_token_time"]).sum()) / num_gaps
    else:
        middles = bin_middles(keys)
        mean = float((middles * counts).sum() / counts.sum())
    stats = {"mean_itl_ms": _ms(mean)}
    cumulative = np.cumsum(counts)
    for kind, rank in GAP_PERCENTILES.items():
        at = int(np.searchsorted(cumulative, rank / 100 * cumulative[-1]))
        found = bin_middle(int(keys[min(at, len(keys) - 1)]))
        stats[f"{kind}_itl_ms"] = _ms(min(found, total.peak_token_gap))
    return stats | {"max_itl_ms": _ms(total.peak_token_gap)}


def _num_good(values: Mapping[str, NDArray[np.float64]], goodput: Mapping[str, float]) -> int:
    """Count the requests that meet every target; a single output token meets any TPOT."""
    good = np.ones(len(values["e2el"]), dtype=np.bool_)
    for metric, target in goodput.items():
        seconds = values[metric]
        good &= np.isnan(seconds) | (seconds * 1000.0 <= target)
    return int(good.sum())
