"""Requests that wait for others: turns of sessions, sub-agents that are spawned and joined."""

from __future__ import annotations

import json
import math
import random
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import kvsim
import workloads
from kvsim.results.tables import FinishReason
from kvsim.testing import equal_tables
from kvsim.trace import Trace
from kvsim.trace.waits import roots_of

if TYPE_CHECKING:
    from pathlib import Path

H100: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h100-sxm"}
#: A second a step, and nothing that overlaps.
SECONDS = {**H100, "cost_model": "constant+seconds=1", "async_scheduling": False}


def tree() -> Trace:
    """Return a session that spawns two sub-agents, joins both, and one request beside it."""
    return Trace.from_arrays(
        [0.0, 0.0, 0.0, 0.0, 0.0, 50.0],
        [8] * 6,
        [5, 2, 3, 1, 4, 1],
        session_id=[0, 1, 2, 2, 0, -1],
        after=[[], [0], [(0, "start")], [2], [0, 1, 3], []],
        think_time=[0.0, 1.0, 2.0, 0.5, 10.0, 9.0],
    )


@pytest.mark.parametrize("backend", ["python", "compiled"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_joiner_waits_for_all_sub_agents_and_then_thinks(backend: str, replicas: int) -> None:
    options = {**SECONDS, "backend": backend, "data_parallel_size": replicas}
    rows = kvsim.simulate(tree(), **options, max_num_seqs=1 if replicas == 2 else 8).requests
    sent = rows["arrival_time"]
    assert sent[[0, 2, 5]].tolist() == [0.0, 2.0, 50.0]  # planned, after a start, planned
    assert sent[1] == pytest.approx(rows["finish_time"][0] + 1.0)
    assert sent[3] == pytest.approx(rows["finish_time"][2] + 0.5)
    ended = max(rows["finish_time"][[0, 1, 3]])
    assert sent[4] == pytest.approx(ended + 10.0)
    assert (rows["finish_reason"] == FinishReason.FINISHED).all()


def test_what_waits_for_a_request_that_nobody_serves_is_sent() -> None:
    trace = Trace.from_arrays(
        [0.0, 0.0, 0.0], [8, 900, 8], [2, 2, 2], after=[[], [0], [1]], think_time=[0, 1, 1]
    )
    rows = kvsim.simulate(trace, **SECONDS, max_model_len=100).requests
    assert rows["finish_reason"].tolist() == [0, FinishReason.REJECTED, 0]
    assert rows["arrival_time"].tolist() == pytest.approx([0.0, 3.0, 4.0])


def test_waits_of_a_trace_win_over_think_times_of_the_run() -> None:
    plain = kvsim.simulate(tree(), **SECONDS)
    given = kvsim.simulate(tree(), **SECONDS, session_think_time=3.0)
    assert equal_tables(plain.requests, given.requests)
    notes = given.provenance["notes"]
    assert any("session_think_time = 3.0 has no effect: the trace says" in n for n in notes)
    assert plain.summary["num_early_turns"] == 0


def random_tree(seed: int) -> Trace:
    """Return requests of which most wait for one to three earlier ones."""
    draw = random.Random(seed)
    n = draw.randint(2, 24)
    after: list[list[Any]] = []
    for row in range(n):
        others = draw.sample(range(row), min(row, draw.choice([0, 1, 1, 2, 3])))
        after.append([(k, "start") if draw.random() < 0.2 else k for k in others])
    return Trace.from_arrays(
        np.cumsum([draw.choice([0.0, 0.0, 0.2]) for _ in range(n)]).tolist(),
        [draw.randint(1, 60) for _ in range(n)],
        [draw.randint(1, 9) for _ in range(n)],
        after=after,
        think_time=[draw.choice([0.0, 0.0, 0.01, 1.0]) for _ in range(n)],
    )


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_every_turn_ends_once_and_both_ways_alike(engine: str) -> None:
    for seed in range(20):
        trace = random_tree(seed)
        options = {**H100, "engine": engine, "data_parallel_size": 1 + seed % 2}
        options |= {"max_concurrency": 2} if seed % 3 == 0 else {}
        python, compiled = (
            kvsim.simulate(trace, **options, backend=one) for one in ("python", "compiled")
        )
        assert equal_tables(python.requests, compiled.requests), seed
        rows = python.requests
        assert (rows["finish_reason"] == FinishReason.FINISHED).all(), seed
        for row in range(len(trace)):
            codes = trace.after[trace.after_offsets[row] : trace.after_offsets[row + 1]].tolist()
            ready = [
                rows["arrival_time"][-k - 1] if k < 0 else rows["finish_time"][k] for k in codes
            ]
            least = max(ready) + trace.think_time[row] if ready else trace.arrival_time[row]
            sent = rows["arrival_time"][row]
            assert sent >= least, (seed, row)
            if "max_concurrency" not in options:
                assert sent == pytest.approx(least, rel=1e-12), (seed, row)


@pytest.mark.parametrize("suffix", ["csv", "jsonl.gz", "parquet"])
def test_waits_survive_files_and_slices(tmp_path: Path, suffix: str) -> None:
    trace = tree()
    trace.save(tmp_path / f"trace.{suffix}")
    assert workloads.load(tmp_path / f"trace.{suffix}").digest == trace.digest
    assert trace[:5].after.tolist() == trace.after.tolist()
    rest = trace[2:]  # what lies before it has ended
    assert rest.after.tolist() == [0, 1]
    assert rest.after_offsets.tolist() == [0, 0, 1, 2, 2]
    assert roots_of(trace).tolist() == [0, 0, 0, 0, 0, -1]
    assert roots_of(rest).tolist() == [0, 0, 0, -1]


def test_a_file_may_name_its_requests(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    row = {"arrival_time": 0.0, "num_prompt_tokens": 8, "num_output_tokens": 1}
    rows = [
        {**row, "request_id": "a"},
        {**row, "request_id": "b", "after": ["a"], "think_time": 1.5},
        {**row, "request_id": "c", "after": [["a", "start"], "b"]},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    trace = workloads.load(path)
    assert trace.after.tolist() == [0, -1, 1]
    assert trace.think_time.tolist() == [0.0, 1.5, 0.0]
    for wrong, message in (
        ({"after": ["d"]}, "line 3: after has 'd', must be a request_id of the file"),
        ({"request_id": "a"}, "line 3: request_id 'a' is that of an earlier request, too"),
        ({"after": 7}, "line 3: after is 7, must be a list of requests"),
    ):
        path.write_text("\n".join(map(json.dumps, [*rows[:2], rows[2] | wrong])))
        with pytest.raises(ValueError, match=message):
            workloads.load(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"after": [[], [2], []]}, "row 1: after has 2, must be requests of earlier rows"),
        ({"after": [[0], [], []]}, "row 0: after has 0, must be empty in the first row"),
        ({"after": [[], [], [-3]]}, "row 2: after has -3, must be requests of earlier rows"),
        ({"after": [[], [], [0.5]]}, "row 2: after has 0.5, must be requests or"),
        ({"after": [[], []]}, "after must have one list per request (3), got 2"),
        ({"after": [[], 1, []]}, "row 1: after is 1, must be a list of requests"),
        ({"think_time": [0, -1, 0]}, "row 1: think_time is -1, must be at least 0 and finite"),
        ({"think_time": [0, 1, math.inf]}, "row 2: think_time is inf, must be at least 0"),
        ({"think_time": [0]}, "think_time must have one entry per request (3), got 1"),
    ],
)
def test_waits_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Trace.from_arrays([0.0, 1.0, 2.0], [8] * 3, [1] * 3, **changes)
