"""The binding limit: the bottleneck at the lowest rate that fails.

The run at that rate gives the evidence. The first rule that applies decides:

1. A run that does not keep up with its arrivals (``load.saturated``) reports its binding limit
   itself, as every run does.
2. ``kv_cache``: at least 1 % of the requests were preempted, or in at least 1 % of the steps an
   admission was refused for lack of KV memory.
3. ``link``, with separate pools: a mean transfer of KV takes more than half of a mean TTFT.
4. ``decode``: the missed target is TPOT, ITL, or an end-to-end latency of which more than half
   follows the first token; or it is TTFT, and decodes filled ``max_num_seqs``, or the decode pool
   was busier than the prefill pool.
5. ``prefill``: any other missed TTFT, or a backlog of requests that wait for their first token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvsim.results.load import Cause, overload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsim.study.trial import Trial

#: KV memory is the binding limit if the share of steps with a refused admission, or that of
#: preempted requests, reaches this value.
OFTEN = 0.01

#: Remedies for each limit.
REMEDIES: dict[Cause, str] = {
    "kv_cache": "more KV memory: --kv-cache-dtype fp8, more GPUs per replica",
    "max_num_seqs": "a larger --max-num-seqs, more replicas",
    "max_num_batched_tokens": "a larger --max-num-batched-tokens, more replicas",
    "prefill": "faster prompts: more GPUs per replica, prefix caching, separate prefill replicas",
    "decode": "faster steps: more GPUs per replica or more replicas, FP8 weights, another "
    "--max-num-seqs",
    "link": "a faster --kv-transfer-fabric, or no disaggregated prefill",
    "arrivals": "more requests (--num-requests): the clients set the pace",
}


class Binding(NamedTuple):
    """The binding limit, and the evidence for it."""

    cause: Cause
    evidence: str


def what_binds(trial: Trial, max_num_seqs: int) -> Binding:
    """Return the binding limit at the lowest rate that failed.

    Parameters
    ----------
    trial : the complete run at that rate
    max_num_seqs : most requests that one replica runs at once
    """
    assert trial.summary is not None
    summary = trial.summary
    missed = ", ".join(trial.missed)
    load = summary["load"]
    said = overload(load)
    if said is not None:
        return Binding(load["binding"], f"{said}; missed: {missed}")
    kv, steps = summary["kv_cache"], summary["num_steps"]
    served = max(summary["completed"], 1)
    if summary["num_preemptions"] >= OFTEN * served:
        return Binding("kv_cache", f"{summary['num_preemptions']:,} preemptions; missed: {missed}")
    if kv["num_allocation_failures"] >= OFTEN * steps:
        text = f"{kv['num_allocation_failures']:,} admissions refused for lack of KV memory"
        return Binding("kv_cache", f"{text}; missed: {missed}")
    moved, ttft = summary["kv_transfers"], summary["mean_ttft_ms"] or 0.0
    if moved and (moved["mean_ms"] or 0.0) > ttft / 2:
        return Binding("link", f"transfers take {moved['mean_ms']:.0f} ms of {ttft:.0f} ms TTFT")
    if _is_decode(trial, summary, max_num_seqs):
        return Binding("decode", f"missed: {missed}")
    return Binding("prefill", f"missed: {missed}")


def _is_decode(trial: Trial, summary: Mapping[str, Any], max_num_seqs: int) -> bool:
    late = " ".join(name for name in trial.missed)
    if "goodput" in late:
        return _decode_is_later(trial, summary)
    if "tpot" in late or "itl" in late:
        return True
    if "e2el" in late or "normalized" in late:
        return bool((summary["mean_e2el_ms"] or 0) > 2 * (summary["mean_ttft_ms"] or 0))
    if summary["pools"]:
        busy = {pool["role"]: pool["mean_busy"] or 0.0 for pool in summary["pools"]}
        return bool(busy.get("decode", 0.0) > busy.get("prefill", 0.0))
    full = [row["peak_running"] >= max_num_seqs for row in summary["replicas"]]
    single = summary["total_output_tokens"] <= summary["completed"]
    return any(full) and not single


def _decode_is_later(trial: Trial, summary: Mapping[str, Any]) -> bool:
    """Return True if the largest ratio of p90 to target is TPOT's, or E2E's as the only target."""
    taken = {name: (summary[f"p90_{name}_ms"] or 0.0) / limit for name, limit in trial.targets}
    worst = max(taken, key=lambda name: taken[name])
    return worst == "tpot" or (worst == "e2el" and "tpot" not in taken and "ttft" not in taken)
