"""The bottleneck of a run: the resource that its requests wait for, or arrivals.

The samples of the memory table say, for each step with a queue, whether the head was refused for
lack of KV memory, or found the batch full, or neither: then the step's token budget was used up.
A limit on the batch is the bottleneck only if a higher limit would serve more. If half the limit
costs less than a tenth of the throughput, the bottleneck is the work itself: prefill or decode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.fleet.facts import decode_timer, prefill_timer
from kvsim.records.request import Request
from kvsim.results.load import Cause, backlog_grows, instants, offered_rate
from kvsim.results.tables import FinishReason
from kvsim.sched.scheduler import StepPlan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from kvsim.config import Config
    from kvsim.engine.setup import Setup
    from kvsim.fleet.pool import Pool
    from kvsim.results.totals import Totals
    from kvsim.trace import Trace

#: If queue growth is unknown, requests count as waiting if they wait in this share of the steps.
MOSTLY = 0.5
#: Throughput ratio that the last doubling of a limit must reach for the limit to bind.
WORTH = 1.1


def describe_load(
    config: Config,
    trace: Trace,
    table: NDArray[Any],
    parts: Sequence[Pool],
    totals: Mapping[int, Totals],
    served: float | None,
    transfers: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return ``load`` of the summary, as :mod:`kvsim.results.load` defines it.

    ``table`` is the requests table; if replicas serve each sample as a request, the pools' tables
    have one row per sample. ``served`` is the summary's request throughput, ``transfers`` its entry
    on KV transfers between pools.
    """
    is_closed = config.max_concurrency is not None or config.lanes is not None
    offered = offered_rate(table, trace.arrival_time, is_closed=is_closed)
    saturated: bool | None = None
    if offered is not None:
        # A first token of the prefill replica says nothing about the decode queue.
        beyond = len(parts) > 1 and config.first_token_from == "prefill"
        others = _waiting_at(instants(table), parts[0]) if beyond else None
        saturated = backlog_grows(table, others)
    binding: Cause = "arrivals"
    if saturated is not False:
        moving = 0.0  # seconds of all KV transfers together
        if transfers and transfers["mean_ms"] is not None:
            moving = transfers["num_transfers"] * transfers["mean_ms"] / 1000.0
        binding = _binding(parts[0].table, parts, totals, moving, is_known=saturated is True)
    return {
        "offered_request_rate": offered,
        "served_request_rate": served,
        "saturated": saturated,
        "binding": binding,
    }


def _waiting_at(times: NDArray[np.float64], part: Pool) -> NDArray[np.int64]:
    """Count the requests that wait at a pool's replicas at some times."""
    waiting = np.zeros(len(times), np.int64)
    for member in part.members:
        samples = member.replica.memory
        if len(samples):
            place = np.searchsorted(samples["time"], times, side="right") - 1
            waiting += np.where(place < 0, 0, samples["num_waiting"][np.maximum(place, 0)])
    return waiting


def _binding(
    table: NDArray[Any],
    parts: Sequence[Pool],
    totals: Mapping[int, Totals],
    moving: float,
    *,
    is_known: bool,
) -> Cause:
    """Return the resource that requests wait for; ``is_known`` if the queue is known to grow."""
    part = parts[0]
    if len(parts) > 1:
        own = [[totals[m.number] for m in one.members] for one in parts]
        waits = [sum(t.waiting_seconds for t in one) for one in own]
        running = sum(t.running_seconds for t in own[0])
        # Transfers that hold more memory than running requests keep other requests out.
        if moving > max(min(waits[0] - moving, running), waits[1]):
            return "link"
        part = parts[1] if waits[1] > waits[0] - moving else parts[0]
    samples = _in_arrival_seconds(table, part, is_known=is_known)
    waiting = samples[samples["num_waiting"] > 0]
    if not len(waiting) or (not is_known and len(waiting) < MOSTLY * len(samples)):
        return "arrivals"
    full = waiting["num_running"] >= part.setup.scheduler_config.max_num_seqs
    refused = ~full & (waiting["free"] == 0)
    shares = (float(refused.mean()), float(full.mean()), float((~full & ~refused).mean()))
    if shares[0] == max(shares):
        return "kv_cache"
    work = _Work(part.setup, table, len(parts) > 1)
    return work.of_places(part.role) if shares[1] == max(shares) else work.of_tokens(part.role)


def _in_arrival_seconds(table: NDArray[Any], part: Pool, *, is_known: bool) -> NDArray[Any]:
    """Return a pool's memory samples; if the queue grows, those in the arrivals' second half."""
    samples = np.concatenate([m.replica.memory for m in part.members])
    if not is_known:
        return samples
    times = instants(table)
    middle = (times[0] + times[-1]) / 2
    late: NDArray[Any] = samples[(samples["time"] >= middle) & (samples["time"] <= times[-1])]
    return late if len(late) else samples


class _Work:
    """Prefill and decode time of a request of mean lengths on a replica.

    Parameters
    ----------
    setup : setup of the replica
    table : the requests
    is_apart : True if prefill is disaggregated
    """

    def __init__(self, setup: Setup, table: NDArray[Any], is_apart: bool) -> None:
        finished = table["finish_reason"] == FinishReason.FINISHED
        self._setup, self._is_apart = setup, is_apart
        self._means = [
            round(float(table[name][finished].mean())) if finished.any() else 1
            for name in ("num_prompt_tokens", "num_output_tokens", "num_cached_tokens")
        ]

    def of_places(self, role: str) -> Cause:
        """Return the bottleneck when the batch is full."""
        most = self._setup.scheduler_config.max_num_seqs
        prompt, output, cached = self._means
        if most < 2 or (self._is_apart and role == "prefill"):
            return "max_num_seqs"
        try:
            length = prompt + output // 2
            step, fewer = (decode_timer(self._setup)(n, length) for n in (most, most // 2))
            first = 0.0
            if not self._is_apart:
                first = prefill_timer(self._setup)(max(prompt, 1), min(cached, max(prompt - 1, 0)))
        except ValueError:  # a table of measured steps may lack this step
            return "max_num_seqs"
        decodes, half = output * step / most, output * fewer / (most // 2)
        if first + half > WORTH * (first + decodes):
            return "max_num_seqs"
        return "prefill" if first > decodes else "decode"

    def of_tokens(self, role: str) -> Cause:
        """Return the bottleneck when requests wait although the batch and memory have room."""
        most = self._setup.scheduler_config.max_num_batched_tokens
        if self._is_apart and role == "decode":
            return "decode"
        if most < 2:
            return "max_num_batched_tokens"
        try:
            whole, half = self._chunk(most), self._chunk(most // 2)
        except ValueError:
            return "max_num_batched_tokens"
        return "max_num_batched_tokens" if 2 * half > WORTH * whole else "prefill"

    def _chunk(self, num_tokens: int) -> float:
        """Return the seconds of a step that computes a chunk of a prompt."""
        request = Request(0, 0.0, num_tokens + 1, 1, [], 1)
        request.num_computed_tokens = num_tokens
        return self._setup.cost.step(StepPlan.of([(request, num_tokens)], 1)).time
