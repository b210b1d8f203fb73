"""Sessions of agents: the generator's sample, and the facts of sessions in a summary."""

from typing import Any

import numpy as np
import pytest

import kvsim
import workloads
from kvsim.fleet.prefix_index.seen_before import tokens_seen_before
from kvsim.trace import Trace

SMALL = {"model": "llama-3-8b", "gpu": "h100-sxm", "backend": "python"}


def two_sessions() -> Trace:
    """Two turns each, of which the second repeats the first with its output."""
    return Trace.from_arrays(
        [0.0, 1.0, 10.0, 20.0],
        [100, 100, 160, 160],
        [10, 20, 10, 20],
        segments=[
            [(0, 0, 40), (1, 0, 60)],
            [(0, 0, 40), (2, 0, 60)],
            [(0, 0, 40), (1, 0, 60), (5, 0, 10), (6, 0, 50)],
            [(0, 0, 40), (2, 0, 60), (8, 0, 20), (9, 0, 40)],
        ],
        output_content_id=[5, 8, 20, 21],
        session_id=[0, 1, 0, 1],
    )


def test_tokens_seen_before_are_those_of_earlier_prompts_and_outputs():
    assert tokens_seen_before(two_sessions()).tolist() == [0, 40, 110, 120]


def test_a_piece_may_go_on_where_an_earlier_one_ended():
    trace = Trace.from_arrays(
        [0.0, 1.0, 2.0],
        [64, 128, 100],
        [1, 1, 1],
        segments=[[(0, 0, 64)], [(0, 0, 128)], [(0, 0, 90), (7, 0, 10)]],
    )
    assert tokens_seen_before(trace).tolist() == [0, 64, 90]


def test_the_same_prompt_again_leaves_a_token_to_compute():
    pieces = [[(0, 0, 50)]] * 2
    assert tokens_seen_before(Trace.from_arrays([0, 1], [50, 50], [1, 1], segments=pieces))[1] == 49


def test_sessions_are_described_by_hand():
    result = kvsim.simulate(two_sessions(), cost_model="constant+seconds=0.1", **SMALL)
    found = result.summary["sessions"]
    rows = result.requests
    durations = rows["finish_time"][2:] - rows["arrival_time"][:2]
    assert found["num"] == found["completed"] == 2
    assert found["mean_turns"] == 2
    assert found["mean_duration"] == pytest.approx(durations.mean())
    assert found["hit_rate"] == (32 + 96 + 112) / 520  # blocks of 16
    assert found["optimal_hit_rate"] == (40 + 110 + 120) / 520


def test_requests_without_sessions_have_no_such_facts():
    trace = Trace.from_arrays([0.0], [10], [2])
    assert kvsim.simulate(trace, **SMALL).summary["sessions"] is None


def test_a_session_that_is_cut_is_not_completed():
    found = kvsim.simulate(
        two_sessions(), cost_model="constant+seconds=0.1", horizon=15.0, **SMALL
    ).summary["sessions"]
    assert (found["num"], found["completed"]) == (2, 1)
    assert found["mean_duration"] == pytest.approx(11.0)


def test_a_session_that_never_began_does_not_count():
    found = kvsim.simulate(
        two_sessions(), cost_model="constant+seconds=0.1", horizon=0.5, **SMALL
    ).summary["sessions"]
    assert (found["num"], found["completed"], found["hit_rate"]) == (1, 0, None)


@pytest.mark.parametrize("backend", ["python", "compiled"])
def test_blocks_of_sessions_that_go_on_are_evicted_last(backend):
    """Under pressure more of their prompts hit; both engines agree on the tokens."""
    trace = workloads.multi_turn(num_requests=80, request_rate=8, seed=1, turns=3)
    options: dict[str, Any] = {"model": "llama-3-8b", "gpu": "l4", "max_model_len": 4096}
    options |= {"num_gpu_blocks_override": 300, "backend": backend}
    lru, kept = (
        kvsim.simulate(trace, session_policy=policy, **options).summary["sessions"]["hit_rate"]
        for policy in ("none", "ttl=5")
    )
    assert (lru, kept) == (pytest.approx(0.496562, abs=1e-6), pytest.approx(0.509743, abs=1e-6))


def test_without_pressure_a_session_policy_changes_nothing():
    trace = workloads.multi_turn(num_requests=100, request_rate=4, seed=1, turns=3)
    runs = [
        kvsim.simulate(trace, model="llama-3-8b", gpu="h100-sxm", session_policy=policy)
        for policy in ("none", "ttl=5")
    ]
    lru, kept = (str(run.requests.tolist()) for run in runs)
    assert lru == kept


def test_a_block_kept_for_a_session_is_evicted_before_a_request_waits():
    """One session fills the pool, and another request needs all of it: the TTL does not hold."""
    trace = Trace.from_arrays([0.0, 5.0, 10.0], [600, 600, 610], [8, 8, 8], session_id=[0, -1, 0])
    result = kvsim.simulate(
        trace, session_policy="ttl=1000", cost_model="constant+seconds=0.1", block_size=16,
        num_gpu_blocks_override=40, max_model_len=620, **SMALL,
    )  # fmt: skip
    assert result.summary["completed"] == 3
    assert result.requests["first_scheduled_time"][1] == 5.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"session_policy": "ttl=0"}, "session_policy must be none or ttl=SECONDS, got ttl=0"),
        ({"session_policy": "pin"}, "session_policy pin is not modelled; use ttl=SECONDS"),
        (
            {"session_policy": "ttl=3", "eviction": "lfu"},
            "needs vllm's allocator paged under LRU, got paged.eviction=lfu",
        ),
        ({"session_policy": "ttl=3", "engine": "sglang"}, "paged under LRU, got sglang"),
    ],
)
def test_a_wrong_session_policy_is_one_line(options, message):
    with pytest.raises(ValueError, match=message):
        kvsim.simulate(two_sessions(), **SMALL, **options)


def test_agentic_traces_resemble_the_recorded_sessions():
    """Means of the sample with prompts cut at 200,000 tokens: 107,708; outputs 443; joins 38."""
    trace = workloads.agentic(num_requests=7845)
    assert trace.num_prompt_tokens.mean() == pytest.approx(107_708, rel=0.1)
    assert trace.num_output_tokens.mean() == pytest.approx(443, rel=0.05)
    pauses = trace.think_time[trace.think_time > 0]
    assert np.median(pauses) == pytest.approx(20.1, rel=0.05)
    assert 20 <= (np.diff(trace.after_offsets) > 1).sum() <= 60
    assert trace.num_prompt_tokens.max() <= 200_000


def test_a_turn_begins_with_the_turn_before_and_its_answer():
    trace = workloads.agentic(num_requests=300, turns=10.0)
    seen = tokens_seen_before(trace)
    before: dict[int, int] = {}
    shares = []
    for row, session in enumerate(trace.session_id.tolist()):
        if session in before:
            last = before[session]
            whole = int(trace.num_prompt_tokens[last] + trace.num_output_tokens[last])
            shares.append(seen[row] >= whole)
        before[session] = row
    assert np.mean(shares) > 0.9  # the others are compactions


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"turns": 0.5}, "turns must be 1 to 1,000,000 on average, got 0.5"),
        ({"system": 200_000}, r"system must be 0 to below max_prompt \(200000\), got 200000"),
        ({"sub_agents": -1}, "sub_agents must be 0 to 189, got -1"),
        ({"think_time": -1}, "think_time must be finite and at least 0, got -1"),
        ({"num_requests": 0}, "num_requests must be at least 1, got 0"),
    ],
)
def test_wrong_parameters_are_named(given, message):
    with pytest.raises(ValueError, match=message):
        workloads.agentic(**given)
