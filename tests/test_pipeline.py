"""Times of steps in a pipeline: a token passes all stages before the next of its request begins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvsim
from kvsim.testing import equal_tables
from kvsim.trace import Trace

SECOND = {
    "model": "llama-3-8b",
    "gpu": "h100-sxm",
    "cost_model": "constant+seconds=1",
    "async_scheduling": True,
    "backend": "python",
}


def serve(requests: list[tuple[float, int, int]], **options: Any) -> kvsim.Result:
    return kvsim.simulate(Trace.from_arrays(*zip(*requests, strict=True)), **SECOND | options)


def ends(result: kvsim.Result) -> tuple[list[float], list[float]]:
    table = result.requests
    return table["first_token_time"].tolist(), table["finish_time"].tolist()


@pytest.mark.long
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8])
def test_one_request_gains_nothing_from_stages(stages: int) -> None:
    first, last = ends(serve([(0.0, 8, 6)], pipeline_parallel_size=stages))
    assert first == pytest.approx([1.0])
    assert last == pytest.approx([6.0])


def test_two_requests_fill_two_stages() -> None:
    """The budget holds one prompt, so that the two never share a step."""
    two = [(0.0, 8, 4), (0.0, 8, 4)]
    result = serve(two, pipeline_parallel_size=2, max_num_batched_tokens=8)
    assert ends(result) == ([1.0, 1.5], [4.0, 4.5])


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_as_many_batches_as_stages_keep_the_pipeline_full(stages: int, asynchronous: bool) -> None:
    """Each batch gets a token a second: with p batches, p tokens a second."""
    trace = [(0.0, 8, 21)] * stages
    result = serve(
        trace,
        pipeline_parallel_size=stages,
        max_num_batched_tokens=8,
        async_scheduling=asynchronous,
    )
    first, last = ends(result)
    assert first == pytest.approx([1 + k / stages for k in range(stages)])
    assert last == pytest.approx([21 + k / stages for k in range(stages)])


@pytest.mark.long
def test_requests_of_one_batch_share_the_pipeline_as_one() -> None:
    """Admitted together they stay together: stages give them nothing, as they give vLLM nothing."""
    _, last = ends(serve([(0.0, 8, 5)] * 8, pipeline_parallel_size=4))
    assert last == pytest.approx([5.0] * 8)


def test_chunks_of_one_prompt_follow_each_other_through_the_stages() -> None:
    """A chunk needs its predecessor's KV layer by layer, no token: it starts at the free stage."""
    result = serve([(0.0, 32, 2)], pipeline_parallel_size=2, max_num_batched_tokens=8)
    assert ends(result) == ([2.5], [3.5])


@pytest.mark.long
def test_a_short_step_behind_a_long_one_waits_at_every_stage() -> None:
    """With two stages a short step leaves half of its own time after the long one, not with it."""
    trace = Trace.from_arrays([0.0, 0.0], [8000, 16], [1, 1])
    shape: dict[str, Any] = {
        "model": "llama-3-8b",
        "gpu": "h100-sxm",
        "max_num_batched_tokens": 8000,
        "pipeline_parallel_size": 2,
        "record_steps": True,
        "backend": "python",
    }
    result = kvsim.simulate(trace, **shape)
    steps = result.steps[result.steps["num_scheduled_tokens"] > 0]
    assert steps["num_scheduled_tokens"].tolist() == [8000, 16]
    long, short = steps["duration"].tolist()
    finish = result.requests["finish_time"]
    assert finish[0] == pytest.approx(long)
    assert finish[1] - finish[0] == pytest.approx(short / 2)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_no_token_begins_before_its_predecessor_has_left(seed: int) -> None:
    """n tokens take n seconds at least, preemptions and chunks included."""
    draw = np.random.default_rng(seed)
    count, stages = 30, int(draw.choice([2, 3, 4]))
    arrivals = np.sort(draw.uniform(0, 20, count)).tolist()
    prompts, outputs = draw.integers(1, 200, count).tolist(), draw.integers(1, 30, count).tolist()
    result = serve(
        list(zip(arrivals, prompts, outputs, strict=True)),
        pipeline_parallel_size=stages,
        max_num_batched_tokens=int(draw.choice([64, 128])),
        max_num_seqs=int(draw.choice([4, 16])),
        num_gpu_blocks_override=int(draw.choice([20, 60])),
        max_model_len=256,
        check_invariants=True,
    )
    rows = result.requests
    took = rows["finish_time"] - rows["first_token_time"]
    assert (took >= np.array(outputs) - 1 - 1e-9).all()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_both_engines_pass_the_stages_alike(asynchronous: bool) -> None:
    draw = np.random.default_rng(1)
    trace = Trace.from_arrays(
        np.sort(draw.uniform(0, 2, 60)).tolist(),
        draw.integers(1, 3000, 60).tolist(),
        draw.integers(1, 80, 60).tolist(),
    )
    options: dict[str, Any] = {
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "pipeline_parallel_size": 4,
        "async_scheduling": asynchronous,
        "max_num_seqs": 24,
        "num_gpu_blocks_override": 3000,
    }
    one = kvsim.simulate(trace, backend="python", **options)
    other = kvsim.simulate(trace, backend="compiled", **options)
    assert equal_tables(one.requests, other.requests)
    assert equal_tables(one.memory, other.memory)
