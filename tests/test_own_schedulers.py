"""A user's scheduler as rules: who is admitted first, who is preempted, in both engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvsim
import workloads
from kvsim.own_rules.part import per_block
from kvsim.plugins.scheduling import Request, SchedulerRules, check_scheduler, per_replica
from kvsim.registry import import_file
from kvsim.sched.scheduler import SCHEDULERS
from kvsim.testing import equal_tables

PARTS = Path(__file__).parents[1] / "docs" / "examples" / "parts"
SHORTEST = f"{PARTS / 'shortest_first.py'}:ShortestFirst"
ShortestFirst = import_file(str(PARTS / "shortest_first.py")).ShortestFirst


class Patient(SchedulerRules):
    """Short prompts first, but whoever has waited for a while before all others."""

    patience: float = 1.0

    def priority(self, request: Request, now: float) -> float:
        if now - request.arrival_time >= self.patience:
            return 0.0
        return request.num_prompt_tokens


class Largest(SchedulerRules):
    """Whoever has computed most is preempted; the queue is in order of arrival."""

    def victim(self, request: Request, now: float) -> float:
        return request.num_computed_tokens


class LargestLast(SchedulerRules):
    """The running request with the most computed tokens is the least urgent by now."""

    def priority(self, request: Request, now: float) -> float:
        return request.num_computed_tokens


class Counting(SchedulerRules):
    """All that a class may have: state, a helper, time, and both rules."""

    weight: float = 3.0
    asked: int = per_replica()

    def priority(self, request: Request, now: float) -> float:
        self.asked += 1
        return self.left(request) + self.weight * (self.asked % 7) - now

    def victim(self, request: Request, now: float) -> float:
        return self.left(request) + self.asked % 3

    def left(self, request: Request) -> float:
        return request.end - request.num_tokens


def served(prompts: list[int], arrivals: list[float], kind: type, **options: Any) -> kvsim.Result:
    """Serve prompts of one output token each, one at a time, a second each, in Python."""
    trace = kvsim.Trace.from_arrays(
        np.array(arrivals), np.array(prompts), np.array([2] * len(prompts))
    )
    with SCHEDULERS.lend(kind) as name:
        return kvsim.simulate(
            trace,
            model="llama-3-8b",
            gpu="a100-80gb",
            backend="python",
            max_num_seqs=1,
            cost_model="constant+seconds=0.5",
            scheduler="".join([name, *(f"+{key}={value}" for key, value in options.items())]),
        )


def order(result: kvsim.Result) -> list[int]:
    """Return the requests in the order in which they were first scheduled."""
    table = result.requests
    return [int(row) for row in table["request_id"][np.argsort(table["first_scheduled_time"])]]


def test_the_shortest_prompt_is_next_unless_another_is_older():
    """0 is alone at first; a second of waiting is worth ``ageing`` tokens."""
    prompts, arrivals = [50, 300, 200, 100], [0.0, 0.1, 0.2, 0.7]
    assert order(served(prompts, arrivals, ShortestFirst)) == [0, 3, 2, 1]
    assert order(served(prompts, arrivals, ShortestFirst, ageing=210)) == [0, 2, 3, 1]
    assert order(served(prompts, arrivals, ShortestFirst, ageing=2000)) == [0, 1, 2, 3]


def test_a_priority_of_now_is_asked_again_while_requests_wait():
    """At 1 s nobody has waited for a second; at 2 s, 1 has, and overtakes the shorter 2."""
    prompts, arrivals = [50, 300, 100], [0.0, 0.1, 0.2]
    assert order(served(prompts, arrivals, Patient, patience=5)) == [0, 2, 1]
    prompts, arrivals = [50, 300, 100, 10], [0.0, 0.1, 0.8, 0.9]
    assert order(served(prompts, arrivals, Patient, patience=1)) == [0, 3, 1, 2]


def test_what_reads_neither_time_nor_state_is_asked_once():
    assert not ShortestFirst().moves
    assert Patient().moves
    assert Counting().moves
    assert not Largest().moves


@pytest.mark.parametrize(("kind", "preempted"), [(Largest, 0), (LargestLast, 0), (None, 1)])
def test_the_victim_is_the_one_that_the_rule_names(kind, preempted):
    """Two requests of three blocks each grow in a pool of seven usable ones.

    0 has the longer prompt, and is preempted by the rule; by default it is 1, admitted last.
    """
    trace = kvsim.Trace.from_arrays(np.zeros(2), np.array([48, 40]), np.array([30, 30]))
    options = {"model": "llama-3-8b", "gpu": "a100-80gb", "backend": "python"}
    options |= {"num_gpu_blocks_override": 8, "max_model_len": 96}
    if kind is None:
        result = kvsim.simulate(trace, **options)
    else:
        with SCHEDULERS.lend(kind) as name:
            result = kvsim.simulate(trace, **options, scheduler=name)
    assert np.flatnonzero(result.requests["num_preemptions"]).tolist() == [preempted]


@pytest.mark.long
@pytest.mark.parametrize("kind", [ShortestFirst, Counting])
def test_python_and_compiled_are_equal(kind):
    trace = workloads.sharegpt(num_requests=60, seed=3, request_rate=40)
    options = {"model": "llama-3-8b", "gpu": "l4", "num_gpu_blocks_override": 300}
    options |= {"max_model_len": 4096}
    with SCHEDULERS.lend(kind) as name:
        first, second = (
            kvsim.simulate(trace, backend=backend, scheduler=name, **options)
            for backend in ("python", "compiled")
        )
    assert first.summary["num_preemptions"] > 3
    assert equal_tables(first.requests, second.requests)
    assert equal_tables(first.memory, second.memory)
    assert "vLLM 0.33, step by step" not in second.provenance["rules"]


def test_a_path_and_its_parameters_are_a_scheduler():
    trace = workloads.fixed(prompt=20, output=2, num_requests=3, request_rate=1.0)
    for joined in ("+ageing=5", ":ageing=5"):
        result = kvsim.simulate(
            trace, model="llama-3-8b", gpu="l4", backend="python", scheduler=SHORTEST + joined
        )
        assert result.summary["completed"] == 3


@pytest.mark.long
def test_rules_keep_the_promises_of_a_scheduler() -> None:
    check_scheduler(Counting, num_runs=3)
    check_scheduler(ShortestFirst(ageing=2), num_runs=1)


def test_the_check_finds_a_scheduler_that_depends_on_more_than_its_calls() -> None:
    calls = iter(range(10_000))

    class Fickle(SchedulerRules):
        def priority(self, request: Request, now: float) -> float:
            return next(calls) * 7919 % 101

    with pytest.raises(AssertionError, match="two runs differ in the requests table"):
        check_scheduler(Fickle, num_runs=1, seed=1)


def simulate_with(kind: type, **options: Any) -> None:
    trace = workloads.fixed(prompt=20, output=2, num_requests=1, request_rate=1.0)
    with SCHEDULERS.lend(kind) as name:
        kvsim.simulate(trace, model="llama-3-8b", gpu="l4", scheduler=name, **options)


def test_what_is_wrong_is_one_line():
    class Nothing(SchedulerRules):
        """No rule."""

    class Timeless(SchedulerRules):
        def priority(self, request: Request) -> float:  # type: ignore[override]
            return 0.0

    with pytest.raises(ValueError, match="Nothing: must define priority, victim or both"):
        simulate_with(Nothing)
    with pytest.raises(ValueError, match=r"Timeless\.priority: must take \(self, request, now\)"):
        simulate_with(Timeless)
    with pytest.raises(ValueError, match="scheduling_policy: priority conflicts with scheduler"):
        simulate_with(Patient, scheduling_policy="priority")
    with pytest.raises(ValueError, match="engine sglang: scheduler 'Patient' is another engine's"):
        simulate_with(Patient, engine="sglang")
    sized = {"__annotations__": {"seen": "list[int]"}, "seen": per_block()}
    with pytest.raises(ValueError, match=r"per_block\(\): here state is per_replica\(\)"):
        type("Sized", (SchedulerRules,), sized).kinds()
