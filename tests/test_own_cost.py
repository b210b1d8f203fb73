"""A user's cost model as rules: a known step, one text run both ways, and no wrong times."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import test_cost as known

import kvsim
import workloads
from kvsim.cost.model import StepCost
from kvsim.own_rules.part import per_block, per_replica
from kvsim.plugins.cost import CostConfig, CostRules, Work
from kvsim.registry import import_file
from kvsim.testing import check_cost_model, equal_tables

PARTS = Path(__file__).parents[1] / "docs" / "examples" / "parts"
MY_GPU = f"{PARTS / 'my_gpu.py'}:MyGpu"
MyGpu = import_file(str(PARTS / "my_gpu.py")).MyGpu
HERE = "test_own_cost"
SMALL = {"model": "llama-3-8b", "gpu": "l4", "num_gpu_blocks_override": 700}


class ByContext(CostRules):
    """Looks at counts alone, and gets slower with every step that it prices."""

    slowdown: float = 0.001
    num_priced: int = per_replica(0)

    def price(self, work: Work) -> float:
        self.num_priced += 1
        seconds = 1e-6 * work.num_context_tokens + 1e-5 * work.num_prefill_tokens
        return 1e-3 + seconds + self.slowdown * (self.num_priced % 7)


class Wrong(CostRules):
    """Returns what is no time once a step has several requests."""

    seconds: float = 0.0

    def price(self, work: Work) -> float:
        return 0.01 if work.num_requests == 1 else self.seconds


class InPython:
    """The same time for every step, in plain Python."""

    def __init__(self, config: CostConfig, *, seconds: float = 0.0) -> None:
        del config
        self.seconds = seconds

    def step(self, plan: Any) -> StepCost:
        del plan
        return StepCost(self.seconds, 0.0, 0.0)


def test_a_step_of_known_work_takes_the_sum_of_its_parts() -> None:
    model = MyGpu(bandwidth=1e12, flops=1e15, overhead=0.5, request=0.25)
    work = Work(num_requests=2, weight_bytes=3e12, gemm_flops=1e15, decode_bytes=1e12)
    work.prefill_flops = 4e15
    assert model.price(work) == 0.5 + 2 * 0.25 + 3.0 + 1.0 + 4.0


def test_context_is_what_decodes_attend_to() -> None:
    """A decode after 99 tokens, one after 199, and a prompt of 50: 100 + 200 tokens of context."""
    config = known.cost_config()
    model = ByContext(config, slowdown=0.0)
    time = model.step(known.plan((99, 1), (199, 1), (0, 50))).time
    assert time == 1e-3 + (1e-6 * 300 + 1e-5 * 50)


@pytest.mark.long
@pytest.mark.parametrize("name", [MY_GPU, f"{HERE}:ByContext"])
@pytest.mark.parametrize("steps", [False, True], ids=["runs", "step-by-step"])
def test_python_and_compiled_are_equal(name: str, steps: bool) -> None:
    """Recorded steps are never run together, so counts in runs of steps are compared as well."""
    trace = workloads.WORKLOADS.create("multi-turn", num_requests=40, seed=3, request_rate=4)
    options: Any = SMALL | {"max_model_len": 8192, "cost_model": name}
    first = kvsim.simulate(trace, backend="python", record_steps=steps, **options)
    second = kvsim.simulate(trace, backend="compiled", **options)
    assert equal_tables(first.requests, second.requests)
    assert equal_tables(first.memory, second.memory)


def test_replicas_keep_their_own_state() -> None:
    """Two replicas with the same requests take the same times."""
    trace = workloads.fixed(prompt=100, output=20, num_requests=8, request_rate=1e6)
    options: Any = SMALL | {"cost_model": f"{HERE}:ByContext", "backend": "python"}
    rows = kvsim.simulate(trace, data_parallel_size=2, router="round-robin", **options).requests
    times = [rows["finish_time"][rows["replica"] == one].max() for one in (0, 1)]
    assert times[0] == pytest.approx(times[1], abs=1e-5)


@pytest.mark.parametrize("seconds", [-0.5, 0.0, float("inf"), float("nan")])
@pytest.mark.parametrize(
    ("model", "backend"), [("Wrong", "python"), ("Wrong", "compiled"), ("InPython", "auto")]
)
def test_what_is_no_time_is_refused(seconds: float, model: str, backend: Any) -> None:
    trace = workloads.fixed(prompt=100, output=20, num_requests=4, request_rate=100.0)
    options: Any = SMALL | {"cost_model": f"{HERE}:{model}+seconds={seconds}"}
    said = f"{model}+seconds={seconds} returned {seconds:g} seconds for a step: must be above 0"
    with pytest.raises(ValueError, match=re.escape(said)):
        kvsim.simulate(trace, backend=backend, **options)


@pytest.mark.long
def test_the_check_accepts_the_example_and_names_what_is_wrong() -> None:
    check_cost_model(MyGpu, num_runs=2)
    check_cost_model(ByContext, num_runs=1)
    with pytest.raises(ValueError, match="Wrong returned 0 seconds for a step"):
        check_cost_model(Wrong, num_runs=1)

    class Forgetful:
        """Slower each time, and never has a number of FLOPs."""

        def __init__(self, config: Any, *, slower: float = 0.0) -> None:
            self.seconds, self.slower = 0.01, slower

        def step(self, plan: Any) -> StepCost:
            self.seconds += self.slower
            return StepCost(self.seconds, -1.0, 0.0)

    with pytest.raises(AssertionError, match=r"of them decodes, over .* of KV: it has -1 FLOPs"):
        check_cost_model(Forgetful, num_runs=1)
    with pytest.raises(AssertionError, match=r"it takes 1.01 s, and 2.01 s in a second call"):
        check_cost_model(lambda config: Forgetful(config, slower=1.0), num_runs=1)


def test_a_cost_model_has_no_lists() -> None:
    class Listed(CostRules):
        seen: list[int] = per_block()

        def price(self, work: Work) -> float:
            return float(self.seen[0])

    with pytest.raises(ValueError, match=r"Listed\.seen: per_block\(\): here state is per_replica"):
        Listed()
