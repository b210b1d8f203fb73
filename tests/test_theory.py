"""Queueing theory and other closed forms as checks of the whole engine."""

from __future__ import annotations

import numpy as np
import pytest

import kvsim
import workloads
from kvsim.sched.scheduler import SCHEDULERS
from kvsim.trace import Trace


@pytest.mark.long
@pytest.mark.parametrize("scheduler", SCHEDULERS.names())
@pytest.mark.parametrize("load", [0.5, 0.8])
def test_a_batch_of_one_with_constant_cost_is_an_m_d_1_queue(scheduler: str, load: float) -> None:
    """Mean wait = load x service / (2 (1 - load)) (Pollaczek and Khinchine)."""
    service = 0.1
    waits = []
    for seed in range(5):
        trace = workloads.fixed(
            prompt=16, output=1, num_requests=2500, request_rate=load / service, seed=seed
        )
        result = kvsim.simulate(
            trace,
            model="llama-3-8b",
            gpu="a100-80gb",
            scheduler=scheduler,
            max_num_seqs=1,
            async_scheduling=False,
            cost_model=f"constant+seconds={service}",
        )
        assert result.summary["completed"] == len(trace)
        table = result.requests
        waits.append(float((table["first_scheduled_time"] - table["arrival_time"]).mean()))
    expected = load * service / (2 * (1 - load))
    spread = float(np.std(waits, ddof=1)) / len(waits) ** 0.5
    assert abs(np.mean(waits) - expected) < max(4 * spread, 0.03 * expected)
    assert spread < 0.1 * expected  # else the line above could not fail


def test_littles_law_from_tables_alone() -> None:
    trace = workloads.sharegpt(num_requests=150, request_rate=6, seed=1)
    result = kvsim.simulate(trace, model="llama-2-7b", gpu="a100-40gb", max_num_seqs=8)
    table = result.requests
    spent = (table["finish_time"] - table["arrival_time"]).sum()
    duration = table["finish_time"].max() - table["arrival_time"].min()
    inside = result.summary["mean_running"] + result.summary["mean_waiting"]
    assert inside * duration == pytest.approx(spent, rel=1e-9)
    assert result.summary["mean_waiting"] > 1  # the queue is part of the law


def test_time_scales() -> None:
    """Arrivals and step times k times as long: every latency is k times as long."""
    trace = workloads.sharegpt(num_requests=100, request_rate=5, seed=0)
    slow = trace.with_request_rate(trace.request_rate / 4)
    shifted = trace.with_request_rate(trace.request_rate)

    def latencies(t: Trace, seconds: float) -> np.ndarray:
        result = kvsim.simulate(
            t, gpu="a100-80gb", max_num_seqs=16, cost_model=f"constant+seconds={seconds}"
        )
        return np.array([result.summary[f"mean_{m}_ms"] for m in ("ttft", "tpot", "itl", "e2el")])

    assert latencies(slow, 0.04) == pytest.approx(4 * latencies(shifted, 0.01), rel=1e-9)


def test_orca_max_serves_exactly_seven_requests_of_the_paper() -> None:
    """OPT-13B, 12 GiB of KV: floor(15,728 / 2048) = 7, and the rest is external: 8.85 %."""
    trace = workloads.sharegpt(num_requests=300, request_rate=float("inf"), seed=0)
    result = kvsim.simulate(
        trace,
        model="opt-13b",
        gpu="a100-40gb",
        kv_cache_memory_bytes=12 * 2**30,
        allocator="contiguous-max",
    )
    summary = result.summary
    assert summary["peak_running"] == 7
    assert summary["mean_running_while_refused"] == pytest.approx(7, abs=1e-9)
    full = result.memory[result.memory["num_waiting"] > 0]
    total = summary["kv_cache"]["bytes"]
    assert total == 15_728 * 819_200
    assert set(full["num_running"].tolist()) == {7}
    assert set(full["external"].tolist()) == {1_392 * 819_200}
    assert pytest.approx(0.0885, abs=5e-5) == 1_392 / 15_728
    assert summary["kv_cache"]["external_fragmentation"] == pytest.approx(0.0885, abs=0.004)


#: Paper, Fig. 2: percent of KV memory for token states, reservation, internal, external and others.
FIG_2 = {
    "contiguous-max": (20.4, 13.3, 57.3, 8.9),
    "contiguous-pow2": (26.8, 17.9, 13.6, 41.6),
    "contiguous-oracle": (38.2, 25.2, 0.0, 36.6),
    "paged": (96.3, None, None, None),
}


def test_fig_2_of_the_paper_within_four_points() -> None:
    trace = workloads.sharegpt(num_requests=1000, request_rate=2, seed=0)
    comparison = kvsim.compare(
        trace, list(FIG_2), model="opt-13b", gpu="a100-40gb", kv_cache_memory_bytes=12 * 2**30
    )
    keys = ("token_states", "reservation", "internal_fragmentation", "external_fragmentation")
    for row in comparison.rows:
        ours = [100 * row["kv_cache"][key] for key in keys]
        for mine, theirs in zip(ours, FIG_2[row["allocator"]], strict=True):
            if theirs is not None:
                assert abs(mine - theirs) < 4, (row["allocator"], ours)
    running = [row["mean_running"] for row in comparison.rows]
    assert running == sorted(running)


def test_waste_is_ordered_as_the_paper_says() -> None:
    trace = workloads.azure_conv(num_requests=300, request_rate=10, seed=0)
    comparison = kvsim.compare(trace, model="llama-2-7b", gpu="a100-80gb", max_model_len=4096)
    tokens = [row["kv_cache"]["token_states"] for row in comparison.rows]
    assert tokens == sorted(tokens)
    assert tokens[-1] > 0.96  # under 4 % wasted


def test_pressure_preempts_and_enough_blocks_end_it() -> None:
    """Not monotonic in between: a larger pool admits more requests, which may then collide."""
    trace = workloads.sharegpt(num_requests=150, request_rate=float("inf"), seed=2)

    def num_preemptions(blocks: int) -> int:
        options = {"num_gpu_blocks_override": blocks, "enable_prefix_caching": False}
        result = kvsim.simulate(trace, model="llama-3-8b", gpu="a100-80gb", **options)
        return int(result.summary["num_preemptions"])

    needed = int((-(-(trace.num_prompt_tokens + trace.num_output_tokens) // 16)).sum())
    assert num_preemptions(300) > num_preemptions(1600) > 0
    assert num_preemptions(needed + 1) == 0
