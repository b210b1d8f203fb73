"""Invariants 1 to 10 (see ARCHITECTURE.md) after every step, on random traces and configurations.

``check_invariants`` recounts all memory after every step (2, 3, 4, 9); ``check_result`` looks at
the tables (1, 5, 9, 10); the rest is checked here.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, note
from strategies import (
    ALLOCATORS,
    FREE_ALLOCATORS,
    SCHEDULERS,
    configs,
    examples,
    models_of,
    takes,
    traces,
)

import kvsim
from kvsim.config import Config
from kvsim.fleet.pool_setups import resolve_fleet
from kvsim.fleet.simulate import serve
from kvsim.kv.manager import ALLOCATORS as ALLOCATOR_REGISTRY
from kvsim.kv.paged import PagedManager
from kvsim.records.request import Request
from kvsim.results.tables import FinishReason
from kvsim.sched.scheduler import SCHEDULERS as SCHEDULER_REGISTRY
from kvsim.testing import check_result, equal_tables
from kvsim.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.engine.replica import Replica


def checked(trace: Trace, options: dict[str, Any]) -> kvsim.Result:
    result = kvsim.simulate(trace, check_invariants=True, record_steps=True, **options)
    check_result(result)
    return result


@pytest.mark.slow
@examples(400)
@given(traces(), configs())
def test_invariants_hold_after_every_step(trace: Trace, options: dict[str, Any]) -> None:
    result = checked(trace, options)
    note(str(result.summary))
    done = result.requests[result.requests["finish_reason"] == FinishReason.FINISHED]
    longest = options["max_model_len"]
    outputs = np.minimum(trace.num_output_tokens, longest - trace.num_prompt_tokens)
    assert np.array_equal(done["num_output_tokens"], outputs[done["request_id"]])
    assert (done["num_cached_tokens"] < done["num_prompt_tokens"]).all()
    assert done["num_preemptions"].sum() == result.summary["num_preemptions"]
    assert result.summary["peak_running"] <= options["max_num_seqs"]
    check_progress(result)


def check_progress(result: kvsim.Result) -> None:
    """Invariant 7: within three steps some request gains a token, ends, or the clock moves."""
    for replica in np.unique(result.steps["replica"]):
        steps = result.steps[result.steps["replica"] == replica]
        empty = steps["num_scheduled_tokens"] == 0
        assert not (empty[2:] & empty[1:-1] & empty[:-2]).any()
        assert (steps["duration"][~empty] > 0).all()
        assert (np.diff(steps["start_time"]) >= 0).all()


@pytest.mark.long
@examples(60)
@given(traces(), configs())
def test_same_configuration_gives_identical_tables(trace: Trace, options: dict[str, Any]) -> None:
    """Invariant 8."""
    first, second = checked(trace, options), checked(trace, options)
    for table in ("requests", "memory", "steps"):
        assert equal_tables(getattr(first, table), getattr(second, table))
    assert first.summary == second.summary


#: Allocators with a second pool are tested with a small one.
SMALL = {"unified": "+host-gib=0.05"}


def pairs() -> list[tuple[str, str]]:
    """Every allocator with every scheduler, but for those that one of them does not go with."""
    return [
        (allocator, scheduler)
        for allocator in ALLOCATOR_REGISTRY.names()
        for scheduler in SCHEDULER_REGISTRY.names()
        if getattr(ALLOCATOR_REGISTRY.get(allocator), "needs_scheduler", None) in (None, scheduler)
        and getattr(SCHEDULER_REGISTRY.get(scheduler), "needs_allocator", None) in (None, allocator)
    ]


@pytest.mark.long
@pytest.mark.parametrize(("allocator", "scheduler"), pairs())
@pytest.mark.parametrize("num_gpu_blocks", [1, 2, 3, 8])
def test_every_pair_in_the_registry_survives_tiny_pools(
    allocator: str, scheduler: str, num_gpu_blocks: int
) -> None:
    trace = Trace.from_arrays(
        [0.0, 0.0, 0.01, 0.5], [3, 20, 5, 90], [4, 12, 30, 2], priority=[1, 0, 2, 0]
    )
    result = checked(
        trace,
        {
            "model": "llama-3-8b",
            "gpu": "a100-80gb",
            "allocator": allocator + SMALL.get(allocator, ""),
            "scheduler": scheduler,
            "num_gpu_blocks_override": num_gpu_blocks,
            "max_model_len": 64,
        },
    )
    summary = result.summary
    assert summary["completed"] + summary["num_rejected"] == len(trace)


class Leaking(PagedManager):
    """Forgets every fifth request that it should free."""

    num_freed = 0

    def free(self, request: Request) -> None:
        self.num_freed += 1
        if self.num_freed % 5:
            super().free(request)


@pytest.mark.long
def test_a_leak_is_found() -> None:
    """Of a manager whose own sums agree with each other."""
    trace = Trace.from_arrays(np.arange(12) * 10.0, [40] * 12, [8] * 12)
    options: dict[str, Any] = {"model": "llama-3-8b", "gpu": "l4", "check_invariants": True}
    kvsim.simulate(trace, **options)
    with pytest.raises(RuntimeError, match="bytes are held, and no request is alive"):
        kvsim.simulate(trace[:5], allocator=f"{__name__}:Leaking", **options)
    crowded = Trace.from_arrays([0.0] * 12, [40] * 12, [8 + 4 * i for i in range(12)])
    with pytest.raises(RuntimeError, match="has an ended request kept its memory"):
        kvsim.simulate(crowded, allocator=f"{__name__}:Leaking", **options)


def test_the_strategies_cover_the_registries() -> None:
    assert {name.split("+")[0] for name in ALLOCATORS} == set(FREE_ALLOCATORS)
    alone = {(a, s) for a, s in pairs() if a not in FREE_ALLOCATORS or s not in SCHEDULERS}
    # tests/test_sglang.py and tests/test_tensorrt_llm.py serve these
    assert alone == {("radix", "sglang"), ("paged", "tensorrt-llm")}


@pytest.mark.long
def test_what_the_strategies_ask_is_answered() -> None:
    """Else they would draw less than there is, and nobody would see."""
    assert all(models_of(allocator) for allocator in ALLOCATORS)
    assert len(models_of("paged")) == 2
    assert takes(scheduler="vllm", async_scheduling=True, enable_prefix_caching=True)
    assert takes(scheduler="vllm", pipeline_parallel_size=2)
    assert takes(scheduler="vllm", max_num_batched_tokens=16, max_num_seqs=4)
    assert takes(scheduler="vllm-v0", preemption_mode="swap")
    assert not takes(scheduler="vllm-v0", async_scheduling=True)


def test_requests_left_at_the_horizon_are_in_flight() -> None:
    trace = Trace.from_arrays([0.0, 0.0, 5.0], [100, 100, 100], [1000, 10, 10])
    result = kvsim.simulate(
        trace,
        model="llama-3-8b",
        gpu="a100-80gb",
        horizon=1.0,
        num_gpu_blocks_override=200,
        max_model_len=2048,
        check_invariants=True,
    )
    reasons = result.requests["finish_reason"].tolist()
    assert reasons == [FinishReason.IN_FLIGHT, FinishReason.FINISHED, FinishReason.UNSENT]
    assert 0 < result.requests["num_output_tokens"][0] < 1000
    assert math.isnan(result.requests["first_scheduled_time"][2])
    assert result.summary["num_in_flight"] == 1
    assert result.summary["num_unsent"] == 1


def spoil(name: str, by: int = 1) -> Callable[[Replica], None]:
    """Return what counts a number of a replica's memory wrong."""

    def change(replica: Replica) -> None:
        *path, field = name.split(".")
        record: Any = replica.state.kv
        for part in path:
            record = record[0] if part == "0" else getattr(record, part)
        setattr(record, field, getattr(record, field) + by)

    return change


def lengthen(replica: Replica) -> None:
    """Fill more slots of a request than it has."""
    state = replica.state
    state.requests[state.running[0]].num_filled += 1000
    state.kv.num_filled += 1000


APART = {"num_prefill_workers": 1, "num_decode_workers": 1}
GEMMA = {"model": "gemma-3-27b", "gpu": "h100-sxm"}
#: Options, what is done to a replica's memory, and what the recount says of it.
SPOILED: dict[str, tuple[dict[str, Any], Callable[[Replica], None], str]] = {
    "slots": ({}, spoil("num_filled"), "filled slots counted"),
    "entries": ({}, spoil("groups.0.num_table_blocks"), "table entries"),
    "a request": ({}, lengthen, "more tokens than slots"),
    "windows": (GEMMA, spoil("dead_bytes"), "bytes out of windows counted"),
    "kept": (APART, spoil("groups.0.num_pinned"), "pinned blocks counted"),
}


class Spoiler:
    """An observer that spoils a replica's memory after some steps, and recounts it."""

    def __init__(self, change: Callable[[Replica], None]) -> None:
        self.change, self.num_steps = change, 0

    def scheduled(self, replica: Replica) -> None:
        """Count steps; the sixth one is spoiled."""
        self.num_steps += replica.state.num_running > 0
        if self.num_steps == 6:
            replica.check_integrity()
            self.change(replica)
            replica.check_integrity()

    def completed(self, replica: Replica) -> None:
        """Nothing."""


@pytest.mark.parametrize("name", SPOILED)
def test_what_is_miscounted_is_found_and_named(name: str) -> None:
    options, change, message = SPOILED[name]
    trace = Trace.from_arrays(np.arange(6) * 0.01, [1500] * 6, [40] * 6)
    given = {"model": "llama-3-8b", "gpu": "l4", "max_model_len": 4096, "backend": "python"}
    setup = resolve_fleet(Config.build(**{**given, **options}))
    with pytest.raises(RuntimeError, match=message):
        serve(setup, trace, observer=Spoiler(change))
