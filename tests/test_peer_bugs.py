"""Bugs that users found in other simulators (inference-sim issues 297, 492, 1121, 1321)."""

from __future__ import annotations

import pytest

import kvsim
import workloads
from kvsim.testing import check_result
from kvsim.trace import Trace


@pytest.mark.long
@pytest.mark.parametrize("num_gpu_blocks", [2, 3, 4, 5, 9, 17])
@pytest.mark.parametrize("async_scheduling", [False, True])
def test_tiny_pools_do_not_livelock(num_gpu_blocks: int, async_scheduling: bool) -> None:
    trace = Trace.from_arrays([0.0] * 12, [20 + 7 * i for i in range(12)], [30] * 12)
    result = kvsim.simulate(
        trace,
        model="llama-3-8b",
        gpu="h100-sxm",
        num_gpu_blocks_override=num_gpu_blocks,
        async_scheduling=async_scheduling,
        check_invariants=True,
    )
    check_result(result)
    usable = (num_gpu_blocks - 1) * 16
    fits = trace.num_prompt_tokens + 30 <= usable
    assert result.summary["completed"] == fits.sum()
    assert result.summary["num_rejected"] == (~fits).sum()


@pytest.mark.parametrize("backend", ["python", pytest.param("compiled", marks=pytest.mark.long)])
def test_requests_of_equal_urgency_do_not_preempt_each_other_for_ever(backend: str) -> None:
    # Preempting the oldest of four equals, each five tokens at a time, never ended.
    prompt = [17, 7, 19, 13, 34, 19, 26, 1, 23, 16, 16, 9, 21]
    output = [20, 59, 65, 31, 16, 18, 10, 76, 64, 39, 76, 18, 50]
    trace = Trace.from_arrays(
        [0.0] * 13, prompt, output, priority=[1, 0, 0, 0, 0, 2, 0, 0, 1, 1, 0, 2, 1]
    )
    result = kvsim.simulate(
        trace,
        model="llama-3-8b",
        gpu="h100-sxm",
        backend=backend,
        num_gpu_blocks_override=9,
        max_num_seqs=8,
        scheduling_policy="priority",
        enable_prefix_caching=False,
        scheduler_reserve_full_isl=False,
        long_prefill_token_threshold=5,
        horizon=1e3,
    )
    check_result(result)
    assert result.summary["completed"] == 13


def test_a_request_that_just_fits_runs_and_one_token_more_is_rejected() -> None:
    for output, completed in ((16, 1), (17, 0)):
        trace = Trace.from_arrays([0.0], [32], [output])
        result = kvsim.simulate(
            trace, model="llama-3-8b", gpu="h100-sxm", num_gpu_blocks_override=4
        )
        assert result.summary["completed"] == completed


@pytest.mark.parametrize("prompt", [63, 64, 65])
def test_prompts_at_the_length_limit(prompt: int) -> None:
    trace = Trace.from_arrays([0.0], [prompt], [10])
    result = kvsim.simulate(trace, model="llama-3-8b", gpu="h100-sxm", max_model_len=64)
    assert result.summary["completed"] == (prompt < 64)
    if prompt < 64:
        assert result.requests["num_output_tokens"][0] == 64 - prompt


@pytest.mark.long
def test_preemption_with_shared_prefixes_never_inflates_throughput() -> None:
    """Every token is counted once, however often it was computed: outputs and times stay true."""
    trace = workloads.shared_prefix(
        num_requests=40,
        request_rate=float("inf"),
        num_prefixes=2,
        prefix=400,
        suffix=40,
        output=60,
    )
    options = {"model": "llama-3-8b", "gpu": "a100-80gb", "check_invariants": True}
    roomy = kvsim.simulate(trace, num_gpu_blocks_override=600, **options)
    tight = kvsim.simulate(trace, num_gpu_blocks_override=120, **options)
    for result in (roomy, tight):
        check_result(result)
        assert result.summary["total_output_tokens"] == trace.num_output_tokens.sum()
    assert tight.summary["num_preemptions"] > 0
    assert tight.summary["output_throughput"] < roomy.summary["output_throughput"]
    assert tight.summary["prefix_cache_hit_rate"] <= 1


def test_retries_do_not_inflate_the_hit_rate() -> None:
    """Hits of a preempted request on its own blocks are not hits of the workload."""
    trace = Trace.from_arrays([0.0] * 6, [50] * 6, [60] * 6)
    result = kvsim.simulate(trace, model="llama-3-8b", gpu="a100-80gb", num_gpu_blocks_override=20)
    assert result.summary["num_preemptions"] > 0
    assert result.summary["prefix_cache_hit_rate"] == 0


def test_fragmentation_depends_on_the_block_size() -> None:
    """A published demonstration printed the same figure for every page size."""
    trace = workloads.sharegpt(num_requests=120, request_rate=8, seed=0)
    names = [f"paged+block-size={size}" for size in (1, 16, 128, 512)]
    rows = kvsim.compare(trace, names, model="llama-3-8b", gpu="a100-80gb").rows
    wasted = [1 - row["kv_cache"]["token_states"] for row in rows]
    assert wasted == sorted(wasted)
    assert wasted[0] < 0.001
    assert wasted[-1] > 0.3


def test_lookahead_slots_beside_a_window_must_fit_too() -> None:
    # 15 tokens of the window, 16 in flight and 3 ahead do not fit 32 blocks of one token.
    for blocks, completed in ((33, 0), (36, 1)):
        result = kvsim.simulate(
            Trace.from_arrays([0.0], [40], [8]),
            model="llama-3-8b",
            gpu="h100-sxm",
            allocator="paged+window=16",
            num_gpu_blocks_override=blocks,
            block_size=1,
            num_lookahead_tokens=3,
            max_num_seqs=11,
            max_num_batched_tokens=16,
            async_scheduling=False,
            enable_prefix_caching=False,
            backend="python",
            horizon=1e3,
        )
        check_result(result)
        assert result.summary["completed"] == completed
        assert result.summary["num_rejected"] == 1 - completed
