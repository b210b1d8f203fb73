"""Data-parallel ranks of a mixture of experts: their passes begin and end together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples

import kvsim
import workloads
from kvsim.fleet.lock_step import LockStep
from kvsim.testing import check_result, equal_tables
from kvsim.trace import Trace

MOE = {"model": "qwen3-30b-a3b", "gpu": "h100-sxm", "data_parallel_size": 2}
SECOND = {**MOE, "cost_model": "constant+seconds=1", "enable_prefix_caching": False}
DENSE = {**SECOND, "model": "llama-3-8b"}


def run(trace: Trace, *, backend: str = "python", **options: Any) -> kvsim.Result:
    result = kvsim.simulate(trace, backend=backend, record_steps=True, **options)
    check_result(result)
    return result


def gaps_of(result: kvsim.Result, replica: int) -> Any:
    table = result.token_gaps[result.token_gaps["replica"] == replica]
    return np.repeat(table["gap"], table["count"])


@pytest.mark.long
@pytest.mark.parametrize("expert_parallel", [False, True])
def test_a_rank_waits_for_the_chunks_of_a_long_prompt_on_another_one(expert_parallel: bool) -> None:
    """Five chunks of up to 8,192 tokens on rank 0: five gaps between rank 1's tokens."""
    trace = Trace.from_arrays([0.0, 0.01, 1.0], [100, 100, 38_000], [1, 800, 2])
    result = run(trace, enable_expert_parallel=expert_parallel, **MOE)
    steps = result.steps
    chunks = steps[(steps["replica"] == 0) & (steps["num_scheduled_tokens"] > 1000)]
    assert chunks["num_scheduled_tokens"].tolist() == [8192] * 4 + [5232]
    long = np.sort(gaps_of(result, 1))[-6:]
    assert long[0] < 0.02
    assert long[1:] == pytest.approx(np.sort(chunks["duration"]), rel=2e-3)
    other = steps[(steps["replica"] == 1) & (steps["duration"] > 0.1)]
    assert other["start_time"].tolist() == chunks["start_time"].tolist()
    assert other["duration"].tolist() == chunks["duration"].tolist()
    cost = result.summary["data_parallel"]
    assert cost["waiting_seconds"] == pytest.approx(chunks["duration"].sum(), rel=0.05)
    assert cost["num_padding_tokens"] > 37_900


@pytest.mark.long
def test_ranks_of_a_dense_model_are_servers_of_their_own() -> None:
    trace = Trace.from_arrays([0.0, 0.5], [64, 64], [4, 4])
    result = run(trace, async_scheduling=False, **DENSE)
    assert result.requests["first_token_time"].tolist() == [1.0, 1.5]
    assert result.summary["data_parallel"] is None
    assert not any("step together" in note for note in result.provenance["notes"])


@pytest.mark.long
def test_a_request_that_comes_during_a_pass_begins_with_the_next_one() -> None:
    """Rank 0 steps at 0, 1, 2, ...; rank 1 gets its request at 0.5 and is in the pass from 1 on."""
    trace = Trace.from_arrays([0.0, 0.5], [64, 64], [4, 4])
    result = run(trace, async_scheduling=False, **SECOND)
    assert result.requests["replica"].tolist() == [0, 1]
    assert result.requests["first_token_time"].tolist() == [1.0, 2.0]
    assert result.requests["finish_time"].tolist() == [4.0, 5.0]
    assert result.requests["arrival_time"].tolist() == [0.0, 0.5]
    # Rank 1 had no work in the first of five passes, rank 0 in the last; the 16th ends the wave.
    cost = result.summary["data_parallel"]
    assert cost["num_steps"] == 16
    assert cost["num_dummy_steps"] == 2 + 2 * 11
    assert cost["waiting_seconds"] == 0.0


def test_several_requests_that_come_during_a_pass_begin_together() -> None:
    trace = Trace.from_arrays([0.0, 0.5, 0.6, 0.7, 0.75, 0.8], [64] * 6, [4] * 6)
    result = run(trace, async_scheduling=False, **SECOND)
    assert result.requests["first_token_time"].tolist() == [1.0, 2.0, 2.0, 2.0, 2.0, 2.0]


@pytest.mark.long
def test_prompts_that_are_tokenised_during_a_pass_begin_together() -> None:
    """Rank 1 knows its prompts at 1.1, 1.3 and 1.5 s, within the second pass."""
    trace = Trace.from_arrays([0.0, 0.9, 0.92, 0.95, 0.96, 0.97], [1, 10] * 3, [9, 4] * 3)
    options = {**SECOND, "front_end_latency_per_token": 0.02}
    result = run(trace, async_scheduling=False, **options)
    first = result.requests["first_token_time"] - result.requests["first_token_time"][0]
    assert first[[1, 3, 5]].tolist() == pytest.approx([2.0, 2.0, 2.0])


@pytest.mark.long
@pytest.mark.parametrize(("arrival", "first_token"), [(9.25, 11.0), (16.5, 17.5)])
def test_a_wave_lasts_until_the_ranks_ask_each_other(arrival: float, first_token: float) -> None:
    """Passes of a second go on idly until the 16th ends, at 16 s; then a request starts at once."""
    trace = Trace.from_arrays([0.0, arrival], [64, 64], [4, 4])
    result = run(trace, async_scheduling=False, **SECOND)
    assert result.requests["first_token_time"].tolist() == [1.0, first_token]


@pytest.mark.long
def test_a_wave_of_one_pass_ends_with_it() -> None:
    trace = Trace.from_arrays([0.0, 1.5], [64, 64], [1, 1])
    result = run(trace, async_scheduling=False, **SECOND)
    assert result.requests["first_token_time"].tolist() == [1.0, 2.5]


def test_equal_ranks_do_not_wait_for_each_other() -> None:
    trace = Trace.from_arrays([0.0] * 8, [200] * 8, [30] * 8)
    together = run(trace, **MOE)
    cost = together.summary["data_parallel"]
    assert cost["waiting_seconds"] == pytest.approx(0.0, abs=1e-9)
    assert cost["num_padding_tokens"] == 0


@pytest.mark.long
def test_padding_to_the_largest_rank_takes_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt of 400 tokens on one rank, beside decodes that read much KV on the other."""
    trace = Trace.from_arrays([0.0] * 32 + [6.0], [100, 12_000] * 16 + [400], [2, 600] * 16 + [2])

    def seconds() -> float:
        steps = run(trace, max_num_batched_tokens=8192, **MOE).steps
        (step,) = steps[(steps["replica"] == 0) & (steps["num_scheduled_tokens"] == 400)]
        return float(step["duration"])

    padded = seconds()
    monkeypatch.setattr(LockStep, "_padding", lambda *_: 0.0)
    assert padded > 1.2 * seconds()


@pytest.mark.long
def test_what_is_not_modelled_in_step_is_said() -> None:
    trace = workloads.fixed(prompt=100, output=5, num_requests=6, request_rate=3.0)
    options = {**MOE, "enable_expert_parallel": True}
    result = run(trace, failures="at+time=1e6", **options)
    (note,) = [note for note in result.provenance["notes"] if "step together" in note]
    assert note.endswith("not modelled with replicas that start, stop or fail")
    result = run(trace, pipeline_parallel_size=2, **options)
    (note,) = [note for note in result.provenance["notes"] if "step together" in note]
    assert note.endswith("not modelled with pipeline stages")


@st.composite
def fleets(draw: st.DrawFn) -> tuple[Trace, dict[str, Any]]:
    number = draw(st.integers(1, 14))
    gaps = draw(
        st.lists(st.sampled_from([0.0, 0.003, 0.05, 0.4]), min_size=number, max_size=number)
    )
    trace = Trace.from_arrays(
        np.cumsum(gaps),
        draw(st.lists(st.integers(1, 900), min_size=number, max_size=number)),
        draw(st.lists(st.integers(1, 40), min_size=number, max_size=number)),
    )
    options = {
        **MOE,
        "data_parallel_size": draw(st.integers(2, 4)),
        "num_gpu_blocks_override": draw(st.sampled_from([60, 70, 400])),
        "max_model_len": 950,
        "max_num_seqs": draw(st.sampled_from([2, 3, 64])),
        "async_scheduling": draw(st.booleans()),
        "router": draw(st.sampled_from(["round-robin", "least-outstanding", "vllm-dp"])),
        "max_concurrency": draw(st.sampled_from([None, None, 3])),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 100])),
    }
    return trace, options


def in_step(result: kvsim.Result) -> None:
    """No rank's step begins or ends within another one's."""
    steps = result.steps[result.steps["num_scheduled_tokens"] > 0]
    starts = np.unique(steps["start_time"])
    for row in steps:
        inside = (starts > row["start_time"]) & (
            starts < row["start_time"] + row["duration"] - 1e-9
        )
        assert not inside.any()
    for start in starts:
        assert len(np.unique(steps["duration"][steps["start_time"] == start])) == 1


@pytest.mark.long
@examples(25)
@given(fleets())
def test_every_pass_is_of_all_ranks_and_every_request_ends(fleet: Any) -> None:
    trace, options = fleet
    result = run(trace, check_invariants=True, **options)
    in_step(result)
    assert result.summary["completed"] + result.summary["num_rejected"] == len(trace)


@pytest.mark.long
@examples(40)
@given(fleets())
def test_both_engines_step_alike(fleet: Any) -> None:
    trace, options = fleet
    one, other = (run(trace, backend=backend, **options) for backend in ("python", "compiled"))
    for table in ("requests", "memory", "steps", "token_gaps"):
        assert equal_tables(getattr(one, table), getattr(other, table)), table
    assert one.summary == other.summary
