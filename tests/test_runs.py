"""Runs of steps before a horizon, and of replicas that tell events, are the steps one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kvsim
import workloads
from kvsim.rules import engine
from kvsim.testing import equal_tables

OPTIONS: dict[str, Any] = {
    "model": "llama-3-8b",
    "gpu": "a100-80gb",
    "data_parallel_size": 3,
    "max_model_len": 8192,
}


def serve(path: Path, **options: Any) -> tuple[Any, bytes]:
    """Serve conversations, of which some come together; return the events written, too."""
    trace = workloads.multi_turn(num_requests=90, request_rate=9.0, arrival="gamma+cv=3", seed=1)
    events = {"enable_kv_cache_events": True, "path": str(path)}
    result = kvsim.simulate(trace, **OPTIONS | {"kv_events_config": events} | options)
    return result, path.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("num_blocks", [250, 900])
@pytest.mark.parametrize("router", ["dynamo", "least-outstanding"])
@pytest.mark.parametrize("asynchronous", [True, False])
def test_runs_are_steps(
    router: str,
    asynchronous: bool,
    num_blocks: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {
        "router": router,
        "async_scheduling": asynchronous,
        "num_gpu_blocks_override": num_blocks,
        "max_model_len": 3000,
        "backend": "python",
    }
    runs: list[int] = []
    run_of_steps = engine.run_of_steps

    def noted(state: Any, most_steps: int) -> int:
        steps = run_of_steps(state, most_steps)
        assert steps == 0 or state.clock <= state.horizon
        if state.horizon < float("inf") and state.kv.pool.has_events:
            runs.append(steps)
        return steps

    monkeypatch.setattr(engine, "run_of_steps", noted)
    one, events = serve(tmp_path / "runs.jsonl", **options)
    assert (max(runs) > 10) == asynchronous
    monkeypatch.setattr(engine, "run_of_steps", lambda state, most_steps: 0)
    other, stepwise = serve(tmp_path / "steps.jsonl", **options)
    for name in ("requests", "memory"):
        assert equal_tables(getattr(one, name), getattr(other, name))
    assert one.summary == other.summary
    assert events == stepwise
    assert num_blocks > 250 or b"BlockRemoved" in events


@pytest.mark.parametrize(
    "given",
    [{}, {"num_gpu_blocks_override": 250, "max_model_len": 3000}],
    ids=str,
)
def test_nobody_ends_or_starts_while_a_replica_is_quiet(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless requests arrive; most of the time until the next end is known to be quiet."""
    told: list[tuple[int, float, float]] = []  # a running request, the time, and until when
    advance = engine.advance

    def noted(state: Any, most_steps: int) -> int:
        outcome = advance(state, most_steps)
        until = engine.quiet_until(state)
        if until > state.clock:
            told.append((state.requests[state.running[0]].request_id, state.clock, until))
        return outcome

    monkeypatch.setattr(engine, "advance", noted)
    trace = workloads.multi_turn(num_requests=30, request_rate=9.0, arrival="gamma+cv=3", seed=1)
    options = OPTIONS | {"router": "least-outstanding", "backend": "python"} | given
    rows = kvsim.simulate(trace, **options).requests
    shares = []
    for request, time, until in told:
        own = rows[rows["replica"] == rows["replica"][request]]
        times = [own[name] for name in ("arrival_time", "first_token_time", "finish_time")]
        arrival, *events = (float(one[one > time].min(initial=1e9)) for one in times)
        if arrival > until:
            assert until < min(events)
            shares.append((until - time) / (min(events) - time))
    assert len(shares) > 10
    assert sorted(shares)[len(shares) // 2] > 0.8
