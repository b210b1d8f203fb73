"""Sessions of agents: the generator's sample, and the facts of sessions in a summary."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kvsim
import workloads
from experiments.validation import retention
from kvsim.fleet.prefix_index.seen_before import tokens_seen_before
from kvsim.kv.eviction import EVICTION_POLICIES, Alone
from kvsim.trace import Trace
from kvsim.trace.files import write_trace
from kvsim.trace.turns import by_program, holds, turn_before, turns_of

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


def test_parts_of_sessions_are_times_with_a_request_in_flight() -> None:
    """One request runs at a time, for a second: another session's, the parent's, its sub-agent's.

    The parent is queued for a second; its next turn comes 5 s after the sub-agent's end.
    """
    trace = Trace.from_arrays(
        [0, 0, 0, 9],
        [100] * 4,
        [10] * 4,
        session_id=[2, 0, 1, 0],
        after=[[], [], [[1, "start"]], [1, 2]],
        think_time=[0, 0, 0, 5],
    )
    options = SMALL | {"cost_model": "constant+seconds=0.1", "max_num_seqs": 1}
    found = kvsim.simulate(trace, **options).summary["sessions"]
    parts = [found[name] for name in ("mean_served", "mean_queued", "mean_paused")]
    assert parts == pytest.approx([(1 + 3) / 2, (0 + 1) / 2, (0 + 5) / 2], abs=0.11)
    assert sum(parts) == pytest.approx(found["mean_duration"])


def test_requests_without_sessions_have_no_such_facts():
    trace = Trace.from_arrays([0.0], [10], [2])
    assert kvsim.simulate(trace, **SMALL).summary["sessions"] is None


@pytest.mark.long
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


def hinted(seed: int = 1) -> Trace:
    """Chats, some turns of which ask for a time, a priority or both."""
    trace = workloads.multi_turn(num_requests=80, request_rate=8, seed=seed, turns=3)
    draw = np.random.default_rng(seed)
    ttl = np.where(draw.random(80) < 0.6, draw.uniform(0, 20, 80), -1.0)
    level = np.where(draw.random(80) < 0.5, draw.choice([0, 20, 50, 100], 80), -1)
    ttl.flags.writeable = level.flags.writeable = False
    return replace(trace, hint_ttl=ttl, hint_priority=level)


UNDER_PRESSURE: dict[str, Any] = {
    "model": "llama-3-8b", "gpu": "l4", "max_model_len": 4096, "num_gpu_blocks_override": 300,
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("policy", ["program=2", "hints", "pin=0.5"])
def test_both_engines_agree_under_every_session_policy(policy):
    options = UNDER_PRESSURE | {"session_policy": policy}
    python, compiled = (
        kvsim.simulate(hinted(), backend=backend, **options) for backend in ("python", "compiled")
    )
    assert str(python.requests.tolist()) == str(compiled.requests.tolist())
    assert str(python.memory.tolist()) == str(compiled.memory.tolist())
    lru = kvsim.simulate(hinted(), **UNDER_PRESSURE)
    assert str(lru.requests.tolist()) != str(python.requests.tolist())


@pytest.mark.long
@pytest.mark.parametrize("backend", ["python", "compiled"])
def test_blocks_of_sessions_that_go_on_are_evicted_last(backend):
    """Under pressure more of their prompts hit; both engines agree on the tokens."""
    trace = workloads.multi_turn(num_requests=80, request_rate=8, seed=1, turns=3)
    options = UNDER_PRESSURE | {"backend": backend}
    lru, kept = (
        kvsim.simulate(trace, session_policy=policy, **options).summary["sessions"]["hit_rate"]
        for policy in ("none", "ttl=5")
    )
    assert (lru, kept) == (pytest.approx(0.496562, abs=1e-6), pytest.approx(0.509743, abs=1e-6))


@pytest.mark.long
def test_without_pressure_a_session_policy_changes_nothing():
    trace = workloads.multi_turn(num_requests=100, request_rate=4, seed=1, turns=3)
    runs = [
        kvsim.simulate(trace, model="llama-3-8b", gpu="h100-sxm", session_policy=policy)
        for policy in ("none", "ttl=5", "hints", "pin", "program=2")
    ]
    lru, *others = (str(run.requests.tolist()) for run in runs)
    assert all(rows == lru for rows in others)


def freed(policy: Any, blocks: list[int], goes_on: float = 0.0, hint: float = -1.0) -> None:
    """Cache blocks and free them as a request does."""
    policy.pool.goes_on, policy.pool.hint = goes_on, hint
    for block in blocks:
        policy.cached(block, 100 + block)
        policy.insert(block)


def alone(name: str) -> tuple[Any, list[float]]:
    """Return a policy without a replica, and its clock."""
    policy, clock = EVICTION_POLICIES.make(name), [0.0]
    Alone(policy)
    policy.clock = lambda: clock[0]
    return policy, clock


def test_lowest_priority_goes_first_and_lapses_after_its_time():
    policy, clock = alone("session-hints")
    freed(policy, [1, 2], goes_on=10.0, hint=90)
    freed(policy, [3], goes_on=-1.0, hint=50)
    freed(policy, [4], goes_on=-1.0)  # 35
    freed(policy, [5], goes_on=5.0)  # a time alone: 36
    freed(policy, [6], goes_on=-1.0, hint=0)
    assert [policy.evict(), policy.evict()] == [6, 4]
    clock[0] = 10.0  # all with a time are as any other now, and older ones go first
    assert [policy.evict() for _ in range(4)] == [1, 2, 5, 3]


def test_a_shared_block_keeps_its_higher_priority_until_that_lapses():
    policy, clock = alone("session-hints")
    freed(policy, [1], goes_on=10.0, hint=90)
    freed(policy, [2], goes_on=-1.0, hint=50)
    policy.remove(1)
    policy.pool.goes_on, policy.pool.hint = -1.0, 0
    policy.insert(1)
    assert next(iter(policy_order(policy))) == 2
    clock[0] = 11.0
    assert next(iter(policy_order(policy))) == 1


def policy_order(policy: Any) -> list[int]:
    twin = policy.twin()
    return [twin.evict() for _ in range(2)]


def test_pins_are_bounded_and_go_last():
    policy, _ = alone("session-pin:share=0.5")
    policy.num_blocks = 8
    freed(policy, [1, 2, 3, 4, 5], hint=100)
    freed(policy, [6])
    assert [policy.evict() for _ in range(6)] == [5, 6, 1, 2, 3, 4]
    freed(policy, [7, 5], hint=100)  # no room for their pins until pinned blocks are used again
    policy.cached(1, 1)
    freed(policy, [6], hint=100)
    assert [policy.evict() for _ in range(3)] == [7, 5, 6]


def test_programs_are_held_by_their_past_pauses_and_go_by_first_arrival():
    """Session 0 pauses 1 and 9 s, session 1 has short pauses only, and is held."""
    trace = Trace.from_arrays(
        [0.0, 1.0, 2.0, 3.0, 12.0, 13.0], [10] * 6, [2] * 6, session_id=[0, 1, 0, 1, 0, 1],
        after=[[], [], [0], [1], [2], [3]], think_time=[0, 0, 1.0, 1.5, 9.0, 1.0],
    )  # fmt: skip
    turns = turns_of(trace)
    assert turns.goes_on.tolist() == [1, 1, 1, 1, 0, 0]
    assert turns.past_pause.tolist() == [0, 0, 1, 1.5, 5, 1.25]
    assert holds(turns, 2.0).tolist() == [True] * 4 + [False] * 2
    priority = by_program(trace, 2.0).priority
    assert priority.tolist() == [0, 1, -6, -5, 0, -5]  # the pause of 9 s outlasts the holding


def test_hints_of_a_file_are_read_again(tmp_path):
    write_trace(hinted(), tmp_path / "t.csv")
    assert workloads.load(tmp_path / "t.csv").digest == hinted().digest
    with pytest.raises(ValueError, match="row 1: hint_priority is 101, must be 0 to 100, or -1"):
        Trace.from_arrays([0, 1], [9, 9], [1, 1], hint_priority=[5, 101])
    with pytest.raises(ValueError, match="row 0: hint_ttl is -3, must be at least 0, or -1"):
        Trace.from_arrays([0, 1], [9, 9], [1, 1], hint_ttl=[-3, 1])


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
        ({"session_policy": "ttl=0"}, "is 'ttl=0': must be none, ttl=SECONDS, .* or pin=SHARE"),
        ({"session_policy": "program"}, "is 'program': must be none"),
        ({"session_policy": "pin=2"}, "is 'pin=2': must be none"),
        ({"session_policy": "hints=3"}, "is 'hints=3': must be none"),
        (
            {"session_policy": "ttl=3", "eviction": "lfu"},
            "needs the allocator paged under LRU, got paged.eviction=lfu",
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


def test_agentic_clients_may_tell_of_the_pauses_to_come():
    trace = workloads.agentic(num_requests=200, turns=10.0, hints=True, sub_agents=0)
    before = turn_before(trace)
    rows = np.flatnonzero(before >= 0)
    assert trace.hint_ttl[before[rows]] == pytest.approx(2 * trace.think_time[rows])
    is_last = turns_of(trace).goes_on == 0
    assert (trace.hint_priority[is_last] == 0).all()
    assert (trace.hint_priority[~is_last] == -1).all()
    assert (trace.hint_ttl[is_last] == -1).all()


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


@pytest.mark.slow
def test_a_published_policy_is_better_above_the_knee_and_nothing_below():
    below, above = retention.CLAIMS[0], retention.CLAIMS[2]
    assert below.low <= retention.change_of(below)[0] <= below.high
    change, half = retention.change_of(above)
    assert change + half < 0.0


@pytest.mark.long
def test_knowing_the_next_use_helps_agents_in_turn_unless_all_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under LRU every prompt is evicted before its next use."""
    monkeypatch.setattr(retention, "SEEDS", 2)
    shorter = {"num_requests": 40}
    fits, turns = (
        one for one in retention.CLAIMS if one.load in (retention.FITTING, retention.AGENTS)
    )
    assert retention.change_of(fits._replace(load=fits.load | shorter)) == (0.0, 0.0)
    change, half = retention.change_of(turns._replace(load=turns.load | shorter))
    assert change + half < turns.high
