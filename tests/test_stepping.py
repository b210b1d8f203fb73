"""An engine that is stepped by hand does what a run over the same requests does."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from random_runs import drawn

import kvsim
from kvsim.results.tables import FinishReason
from kvsim.stepping.ranks import id_rank
from kvsim.testing import equal_tables

SMALL: dict[str, Any] = {
    "model": "llama-3-8b",
    "gpu": "a100-80gb",
    "num_gpu_blocks_override": 100,
    "max_model_len": 1024,
    "backend": "python",
    "check_invariants": True,
}
#: Kinds of random runs that one replica serves.
KINDS = (
    *("vllm", "windows", "eviction", "tiered", "contiguous", "virtual", "dynamic"),
    *("other schedulers", "speculation", "adapters", "sglang"),
)


def small(**options: Any) -> kvsim.Engine:
    return kvsim.Engine(**SMALL | options)


def ids_of(trace: kvsim.Trace, row: int) -> list[int]:
    """Return token ids of a prompt: equal exactly where two prompts have the same content."""
    return [
        segment.content_id * 1000 + segment.start + k
        for segment in trace.segments_of(row)
        for k in range(segment.num_tokens)
    ]


def add(engine: kvsim.Engine, trace: kvsim.Trace, row: int) -> None:
    asked = int(trace.num_output_tokens[row])
    is_eos = bool(trace.ends_by[row])
    engine.add_request(
        ids_of(trace, row),
        asked + 9 * is_eos,
        arrival_time=float(trace.arrival_time[row]),
        priority=int(trace.priority[row]),
        cache_salt=int(trace.cache_salt[row]),
        lora_id=int(trace.lora_id[row]),
        session_id=None if trace.session_id[row] < 0 else int(trace.session_id[row]),
        num_samples=int(trace.num_samples[row]),
        stop_after=asked if is_eos else None,
    )


def feed(engine: kvsim.Engine, trace: kvsim.Trace, way: str) -> list[kvsim.EngineStep]:
    """Serve a trace: with all requests given first, when they arrive, or at their arrival."""
    times, row = trace.arrival_time.tolist(), 0
    steps: list[kvsim.EngineStep] = []
    while row < len(trace):
        if way == "at arrival":
            steps += engine.steps_until(times[row])
        due = math.inf if way == "before" else max(times[row], engine.now)
        while row < len(trace) and times[row] <= due:
            add(engine, trace, row)
            row += 1
        if way == "late":
            while engine.num_running + engine.num_waiting and (
                row == len(trace) or times[row] > engine.now
            ):
                steps.append(engine.step())
            if row < len(trace) and times[row] > engine.now:
                continue
            steps.append(engine.step())
    return [*steps, *engine.steps_until(math.inf)]


def differences(a: kvsim.Result, b: kvsim.Result) -> list[str]:
    tables = ("requests", "memory", "steps", "samples", "token_gaps")
    found = [name for name in tables if not equal_tables(getattr(a, name), getattr(b, name))]
    return found + [name for name in a.summary if repr(a.summary[name]) != repr(b.summary[name])]


def served(kind: str, seed: int, way: str, backend: str) -> None:
    """Serve a random run by an engine, and compare it with a run over its requests."""
    one, draw = drawn(kind, seed), random.Random(seed)
    n = len(one.trace)
    is_eos = np.array([draw.random() < 0.2 * (seed % 3) for _ in range(n)])
    trace = replace(
        one.trace,
        ends_by=is_eos.astype(np.int64),
        max_tokens=np.where(is_eos, one.trace.num_output_tokens + 9, 0),
        tenant=np.full(n, -1),
        priority=one.trace.priority * (seed % 2),
        num_samples=np.array([draw.choice([1, 1, 3]) if kind == "vllm" else 1] * n),
    )
    options = one.options | {"backend": backend, "record_steps": True}
    engine = kvsim.Engine(**options, check_invariants=True)
    steps = feed(engine, trace, way)
    result, again = engine.result(), kvsim.simulate(engine.trace, **options)
    assert differences(result, again) == [], f"{one} {way}"
    assert differences(result, kvsim.simulate(trace, **options)) == [], f"{one} {way}"
    ended = [request for step in steps for request in step.finished]
    assert sorted(ended) == list(range(n)), "each request ends once"
    new = sum(sum(step.num_new_tokens.values()) for step in steps)
    assert new == result.requests["num_output_tokens"].sum()
    assert all(n > 0 for step in steps for n in step.num_new_tokens.values())
    real = result.steps[result.steps["num_scheduled_tokens"] > 0]
    tokens = [sum(step.num_scheduled_tokens.values()) for step in steps]
    assert [n for n in tokens if n] == real["num_scheduled_tokens"].tolist()


WAYS = ("before", "late", "at arrival")


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_stepped_run_equals_a_run_over_its_trace(kind: str) -> None:
    for seed, way in enumerate(WAYS * 2):
        served(kind, seed, way, "python")


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_compiled_stepped_run_equals_a_run_over_its_trace(kind: str) -> None:
    for seed, way in enumerate(WAYS):
        served(kind, seed, way, "auto")


def test_two_requests_with_equal_ids_share_blocks() -> None:
    engine = small()
    a = engine.add_request(prompt_token_ids=list(range(40)), max_tokens=3)
    b = engine.add_request(prompt_token_ids=list(range(40)), max_tokens=3)
    step = engine.step()
    assert (step.num_scheduled_tokens, step.num_new_tokens) == ({a: 40, b: 8}, {a: 1, b: 1})
    assert (engine.block_table(a), engine.block_table(b)) == ([[1, 2, 3]], [[1, 2, 4]])
    assert engine.num_free_blocks == 95
    assert engine.free_queue()[:2] == [5, 6]
    assert engine.cached_blocks() == [1, 2]
    assert step.time + step.duration == engine.now
    assert engine.abort(b)
    assert engine.num_free_blocks == 96
    ends = [engine.step().finished for _ in range(6)]
    assert ends[:2] == [{b: FinishReason.ABORTED}, {a: FinishReason.FINISHED}]
    assert not any(ends[2:])
    assert engine.num_running == engine.num_waiting == 0
    assert engine.result().summary["completed"] == 1
    assert not engine.abort(b)


def test_a_later_prompt_may_name_an_output() -> None:
    engine = small(async_scheduling=False)
    first = engine.add_request(list(range(30)), max_tokens=20)
    engine.run_until(math.inf)
    said = engine.output_token_ids(first)
    assert len(said) == 20
    # Of 50 tokens the last one's KV was never computed: three blocks of 16 are full.
    again = engine.add_request([*range(30), *said, *range(7)], max_tokens=1)
    other = engine.add_request([*range(30), *said[:10], 5, *said[11:], *range(7)], max_tokens=1)
    engine.run_until(math.inf)
    hits = engine.result().requests["num_cached_tokens"]
    assert hits[[again, other]].tolist() == [48, 32]


def test_sglang_shows_pages_and_ends_an_aborted_request_with_its_next_token() -> None:
    engine = kvsim.Engine(
        **{"model": "llama-3-8b", "gpu": "h200-sxm", "engine": "sglang", "page_size": 4},
        **{"max_total_tokens": 64, "backend": "python", "check_invariants": True},
    )
    first = engine.add_request(list(range(10)), max_tokens=9)
    engine.step()
    second = engine.add_request([*range(8), 99, 98], max_tokens=9)
    third = engine.add_request(num_prompt_tokens=40, max_tokens=9)
    engine.step()
    engine.step()
    mine, other = engine.block_table(first)[0], engine.block_table(second)[0]
    assert mine[:2] == other[:2]
    assert not set(mine[2:]) & set(other[2:])
    free = engine.num_free_blocks
    assert engine.abort(third)
    assert engine.num_waiting == 0
    assert engine.abort(second)
    steps = list(engine.steps_until(math.inf))
    ended = {request: reason for step in steps for request, reason in step.finished.items()}
    aborted = FinishReason.ABORTED
    assert ended == {third: aborted, second: aborted, first: FinishReason.FINISHED}
    tokens = engine.result().requests["num_output_tokens"].tolist()
    assert (tokens[0], tokens[2]) == (9, 0)
    assert 1 <= tokens[1] <= 3
    assert engine.num_free_blocks > free


def test_sglang_expects_max_tokens_and_not_where_an_answer_ends() -> None:
    def admitted(stop_after: int | None) -> int:
        options = {"engine": "sglang", "max_total_tokens": 400, "backend": "python"}
        engine = kvsim.Engine(model="llama-3-8b", gpu="h200-sxm", **options)
        for _ in range(9):
            asked = 200 if stop_after else 2
            engine.add_request(num_prompt_tokens=30, max_tokens=asked, stop_after=stop_after)
        return len(engine.step().num_scheduled_tokens)

    assert admitted(2) < admitted(None)


def test_a_reset_forgets_what_is_cached_unless_blocks_are_in_use() -> None:
    engine = small()
    engine.add_request(list(range(40)), max_tokens=2)
    engine.step()
    assert not engine.reset_prefix_cache()
    engine.run_until(math.inf)
    assert engine.reset_prefix_cache()
    again = engine.add_request(list(range(40)), max_tokens=2)
    assert engine.step().num_scheduled_tokens == {again: 40}


def test_a_request_that_no_idle_engine_serves_is_rejected_at_once() -> None:
    engine = small()
    long = engine.add_request(num_prompt_tokens=2000, max_tokens=2)
    fits = engine.add_request(num_prompt_tokens=20, max_tokens=2)
    step = engine.step()
    assert step.finished == {long: FinishReason.REJECTED}
    assert step.num_scheduled_tokens == {fits: 20}


def test_an_aborted_request_that_has_not_arrived_never_runs() -> None:
    engine = small()
    engine.add_request(num_prompt_tokens=20, max_tokens=2)
    later = engine.add_request(num_prompt_tokens=20, max_tokens=2, arrival_time=9.0)
    engine.step()
    assert engine.abort(later)
    engine.run_until(math.inf)
    reasons = engine.result().requests["finish_reason"].tolist()
    assert reasons == [FinishReason.FINISHED, FinishReason.ABORTED]
    assert engine.now < 9.0


def test_a_result_on_the_way_says_what_is_in_flight_and_what_has_not_come() -> None:
    engine = small(record_steps=True)
    engine.add_request(num_prompt_tokens=20, max_tokens=9)
    engine.add_request(num_prompt_tokens=20, max_tokens=9, arrival_time=50.0)
    engine.step()
    reasons = engine.result().requests["finish_reason"].tolist()
    assert reasons == [FinishReason.IN_FLIGHT, FinishReason.UNSENT]
    engine.run_until(math.inf)
    whole = kvsim.simulate(engine.trace, **SMALL | {"record_steps": True})
    assert differences(engine.result(), whole) == []


@pytest.mark.long
@pytest.mark.parametrize("backend", ["python", "compiled"])
def test_columns_double_as_requests_come(backend: str) -> None:
    options = SMALL | {"max_num_seqs": 4, "backend": backend, "check_invariants": False}
    engine = kvsim.Engine(**options)
    for number in range(700):
        engine.add_request([number % 5, *range(20)], max_tokens=1 + number % 3, num_samples=1)
        engine.step()
    engine.run_until(math.inf)
    assert differences(engine.result(), kvsim.simulate(engine.trace, **options)) == []


def test_waiting_requests_find_their_prompts_where_the_list_of_segments_has_moved() -> None:
    engine = small(max_num_seqs=2, backend="compiled", check_invariants=False)
    engine.add_request([1, 2, 3], max_tokens=50)
    engine.add_request([1, 2, 4], max_tokens=50)
    waiting = engine.add_request([1, 2, 5], max_tokens=50)
    engine.step()
    for number in range(300):
        engine.add_request([9, number], max_tokens=1)
    state = engine._replica.state
    place = state.requests[: state.num_requests].array["request_id"].tolist().index(waiting)
    assert len(state.requests[place].segments) == len(state.trace.segments) > 300


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "prompt_token_ids, num_prompt_tokens: give one of the two"),
        ({"num_prompt_tokens": 0}, "num_prompt_tokens: is 0, must be a whole number from 1"),
        ({"num_prompt_tokens": 5, "max_tokens": 0}, "max_tokens: is 0, must be"),
        ({"num_prompt_tokens": 5, "stop_after": 17}, "stop_after: is 17, must be"),
        ({"num_prompt_tokens": 5, "arrival_time": -1.0}, "arrival_time: is -1.0, must be at least"),
        ({"num_prompt_tokens": 5, "lora_id": 1}, "lora_id: names an adapter, and enable_lora"),
        ({"num_prompt_tokens": 5, "cache_salt": -1}, "cache_salt: is -1, must be a text or"),
        ({"num_prompt_tokens": 5, "num_samples": 99}, "num_samples: is 99, must be"),
        ({"prompt_token_ids": []}, "prompt_token_ids: must be a list of whole numbers"),
        ({"prompt_token_ids": [1.5]}, "prompt_token_ids: must be a list of whole numbers"),
        ({"prompt_token_ids": [-9]}, "a negative id must be one of output_token_ids"),
    ],
)
def test_a_wrong_request_is_one_clear_line(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        small().add_request(**asked)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"data_parallel_size": 2}, "data_parallel_size is for a run over a trace"),
        ({"max_concurrency": 2}, "max_concurrency is for a run over a trace"),
        ({"num_samples": 2}, "num_samples is given per request"),
        ({"ends_by": "eos"}, "ends_by is given per request: stop_after"),
        ({"allocator": "paged+eviction=belady"}, "eviction: a policy that foresees"),
    ],
)
def test_an_engine_refuses_options_of_runs_over_traces(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        small(**options)


def test_questions_without_an_answer_are_one_clear_line() -> None:
    engine = small(allocator="contiguous-max", check_invariants=False)
    for ask in (engine.result, engine.free_queue, engine.cached_blocks, engine.reset_prefix_cache):
        with pytest.raises(ValueError, match=r"no request was added yet|has no pool of blocks"):
            ask()
    for unknown in (0, -1, 1.5, "a"):
        with pytest.raises(ValueError, match="no such request was added"):
            engine.block_table(unknown)  # type: ignore[arg-type]
    request = engine.add_request(num_prompt_tokens=5)
    with pytest.raises(ValueError, match="sample: is 1, must be 0 to 0"):
        engine.block_table(request, sample=1)
    engine.step()
    with pytest.raises(ValueError, match="a step is scheduled up to then"):
        engine.add_request(num_prompt_tokens=5, arrival_time=0.0)


def test_ranks_order_ids_as_their_texts_do() -> None:
    draw = random.Random(0)
    ids: dict[str, tuple[int, int | None]] = {}
    for _ in range(400):
        request, sample = draw.randrange(10 ** draw.randint(1, 7)), draw.choice([None, 0, 1, 9, 12])
        ids[str(request) if sample is None else f"{sample}_{request}"] = (request, sample)
    assert sorted(ids) == sorted(ids, key=lambda text: id_rank(*ids[text]))
    assert id_rank(9_999_999, 9) < 2**31
