"""The memory table, with rows added for the gaps in which a replica is idle.

A sample is taken when a step is scheduled, so the last sample before a gap still shows that step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvsim.results.result import Result


def memory_with_gaps(result: Result, replica: int) -> NDArray[Any]:
    """Return a replica's memory samples, with a row of free memory at the start of each gap.

    The cached bytes in a gap are those of the next step, or of the last step if none follows. A
    replica that ends before the run gets a last row at its end, in which nothing is cached.
    """
    samples: NDArray[Any] = result.memory[result.memory["replica"] == replica]
    times, gone = idle_times(result, replica), gone_time(result, replica)
    samples, times = samples[samples["time"] <= gone], times[times < gone]
    if len(samples) and gone < np.inf:
        last = np.zeros(1, samples.dtype)
        last["time"], last["replica"] = gone, replica
        last["free"] = int(result.summary["kv_cache"]["bytes"])
        samples = np.concatenate([samples, last])
    if not len(samples) or not len(times):
        return samples
    total = int(result.summary["kv_cache"]["bytes"])
    gaps = np.zeros(len(times), samples.dtype)
    gaps["time"], gaps["replica"], gaps["free"] = times, replica, total
    following = np.minimum(np.searchsorted(samples["time"], times), len(samples) - 1)
    gaps["cached"] = samples["cached"][following]
    both: NDArray[Any] = np.concatenate([samples, gaps])
    return both[np.argsort(both["time"], kind="stable")]


def gone_time(result: Result, replica: int) -> float:
    """Return the time at which a replica ended, seconds; ``inf`` if the run ended first."""
    row = next((r for r in result.summary["replicas"] if r["replica"] == replica), None)
    if row is None or "start" not in row:  # saved by an earlier version
        return np.inf
    end = row["start"] + row["lifetime"]
    if end >= result.summary["duration"] * (1 - 1e-12):
        return np.inf
    return float(result.requests["arrival_time"].min()) + float(end)


def idle_times(result: Result, replica: int) -> NDArray[np.float64]:
    """Return the times at which a replica becomes idle, seconds."""
    requests = result.served
    here, prompts = requests["replica"] == replica, requests["prefill_replica"] == replica
    come = np.concatenate([requests["arrival_time"][here], requests["arrival_time"][prompts]])
    gone = np.concatenate([requests["finish_time"][here], requests["first_token_time"][prompts]])
    known = ~np.isnan(gone)
    if not known.all():  # a request still runs at the end: no gap is certain after its arrival
        until = come[~known].min()
        come, gone = come[known & (come < until)], gone[known & (come < until)]
    else:
        until = np.inf
    order = np.argsort(come, kind="stable")
    come, gone = come[order], np.maximum.accumulate(gone[order])
    ends: NDArray[np.float64] = gone[np.append(come[1:], until) > gone] if len(gone) else gone
    sure: NDArray[np.float64] = ends[ends < until]
    return sure
