"""Whether a run keeps up with its arrivals, what binds it, and how long the longest gap took."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import kvsim
import workloads
from kvsim.cli import main
from kvsim.results.load import CAUSES, INSTANTS, backlog_grows, overload, overloads
from kvsim.results.replications import average
from kvsim.results.tables import REQUESTS, FinishReason
from kvsim.testing import equal_tables

#: One request after another, a second each, prompt and first token in half of it.
ONE_BY_ONE: dict[str, Any] = {
    **{"model": "opt-13b", "gpu": "a100-80gb", "max_num_seqs": 1, "async_scheduling": False},
    **{"cost_model": "constant+seconds=0.5", "backend": "python"},
}
SERVER: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "backend": "python"}


def queue(load: float, number: int, seed: int) -> np.ndarray:
    """Return the requests table of an M/D/1 queue with a server that takes a second."""
    arrivals = np.cumsum(np.random.default_rng(seed).exponential(1 / load, number))
    table, free = np.zeros(number, REQUESTS), 0.0
    table["arrival_time"] = arrivals
    for row, arrival in enumerate(arrivals.tolist()):
        begin = max(arrival, free)
        free = begin + 1.0
        table["first_token_time"][row] = begin
        table["finish_time"][row] = free
    return table


@pytest.mark.parametrize("number", [300, 1000, 3000])
@pytest.mark.parametrize("load", [0.3, 0.7, 0.8])
def test_a_stable_queue_is_never_called_saturated(load: float, number: int) -> None:
    assert not any(backlog_grows(queue(load, number, seed)) for seed in range(20))


def test_a_queue_at_nine_tenths_is_not_saturated() -> None:
    assert not any(backlog_grows(queue(0.9, 1000, seed)) for seed in range(40))


def test_a_short_run_at_nine_tenths_is_called_saturated_by_chance_alone() -> None:
    """Its backlog is larger at the end in some runs, and in few of them by more than chance."""
    assert sum(backlog_grows(queue(0.9, 300, seed)) for seed in range(40)) <= 1


@pytest.mark.parametrize(
    ("load", "number"), [(1.2, 1000), (1.2, 3000), (1.5, 300), (1.5, 1000), (3.0, 60), (1.1, 5000)]
)
def test_an_overload_always_is(load: float, number: int) -> None:
    assert all(backlog_grows(queue(load, number, seed)) for seed in range(20))


def test_a_constant_backlog_does_not_grow() -> None:
    """A hundred requests wait at any time, since a first token takes as long."""
    table = np.zeros(1000, REQUESTS)
    table["arrival_time"] = np.arange(1000)
    table["first_token_time"] = table["arrival_time"] + 100
    assert not backlog_grows(table)
    table["first_token_time"][500:] += np.arange(500)  # each waits longer than the one before
    assert backlog_grows(table)
    table["finish_reason"][500:] = FinishReason.REJECTED
    assert not backlog_grows(table)
    table["first_token_time"], table["finish_reason"] = math.nan, FinishReason.IN_FLIGHT
    assert backlog_grows(table)
    others = np.linspace(0, 1000, INSTANTS + 1).astype(np.int64)
    table["first_token_time"] = table["arrival_time"]
    assert backlog_grows(table, others)
    assert not backlog_grows(table[:0])


@pytest.mark.parametrize(("load", "saturated"), [(0.8, False), (1.25, True)])
def test_runs_of_the_simulator_are_judged_so(load: float, saturated: bool) -> None:
    arrivals = np.cumsum(np.random.default_rng(1).exponential(1 / load, 600))
    trace = kvsim.Trace.from_arrays(arrivals, [10] * 600, [2] * 600)
    found = kvsim.simulate(trace, **ONE_BY_ONE).summary
    assert found["load"]["saturated"] is saturated
    assert found["load"]["binding"] == ("max_num_seqs" if saturated else "arrivals")
    assert found["load"]["offered_request_rate"] == pytest.approx(trace.request_rate)
    assert found["load"]["served_request_rate"] == found["request_throughput"]


def rag(rate: float, number: int = 200, **options: Any) -> dict[str, Any]:
    """Serve prompts of 6,000 tokens, answers of 300."""
    name = "random+input-len=6000+output-len=300"
    trace = workloads.generate(name, num_requests=number, request_rate=rate, seed=0)
    return kvsim.simulate(trace, **SERVER, **options).summary


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "binding"),
    [
        ({"max_num_seqs": 16}, "max_num_seqs"),
        ({"kv_cache_memory_bytes": 20 * 2**30}, "kv_cache"),
        ({"max_num_batched_tokens": 64}, "max_num_batched_tokens"),
        ({"max_num_batched_tokens": 16384, "kv_cache_memory_bytes": 900 * 2**30}, "prefill"),
    ],
)
def test_what_binds_an_overload(options: dict[str, Any], binding: str) -> None:
    load = rag(10.0, **options)["load"]
    assert load["saturated"]
    assert load["binding"] == binding


@pytest.mark.slow
def test_raising_places_that_add_nothing_leaves_the_decodes() -> None:
    """Long contexts: a step over twice as many takes twice as long."""
    trace = workloads.fixed(prompt=16, output=4000, num_requests=400, request_rate=100.0)
    found = kvsim.simulate(
        trace, **SERVER, max_num_seqs=8, cost_model="constant+seconds=0.01", async_scheduling=False
    ).summary["load"]
    assert found["binding"] == "max_num_seqs"  # a constant step is free for more
    trace = workloads.fixed(prompt=100_000, output=2000, num_requests=100, request_rate=50.0)
    options: dict[str, Any] = {"max_num_seqs": 32, "kv_cache_memory_bytes": 2**40}
    found = kvsim.simulate(trace, **SERVER, **options, enable_prefix_caching=False).summary["load"]
    assert found["binding"] in ("prefill", "decode")


@pytest.mark.slow
def test_full_batches_of_long_contexts_leave_the_decodes() -> None:
    """Prompts share all but 16 tokens, and KV is most of what a step reads: places add little."""
    trace = workloads.generate(
        "shared-prefix+num-prefixes=1+prefix=100000+suffix=16+output=50",
        num_requests=60,
        request_rate=8.0,
        seed=0,
    )
    load = kvsim.simulate(trace, **SERVER, max_num_seqs=16, kv_cache_memory_bytes=2**42).summary[
        "load"
    ]
    assert load["saturated"]
    assert load["binding"] == "decode"


APART: dict[str, Any] = {"num_prefill_workers": 3, "num_decode_workers": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "options", "binding"),
    [
        (20.0, {**APART, "num_prefill_workers": 1}, "prefill"),
        (8.0, {**APART, "num_decode_workers": 3, "kv_transfer_fabric": "tcp-ucx"}, "link"),
        (16.0, {**APART, "kv_transfer_fabric": "tcp-ucx"}, "link"),
        (16.0, {**APART, "max_num_seqs": 16}, "max_num_seqs"),
        (16.0, {**APART, "max_num_seqs": 16, "first_token_from": "prefill"}, "max_num_seqs"),
    ],
)
def test_pools_say_which_of_them_binds(rate: float, options: Any, binding: str) -> None:
    load = rag(rate, **options)["load"]
    assert load["saturated"]
    assert load["binding"] == binding


@pytest.mark.slow
def test_pools_tell_their_own_preemptions_and_waits(capsys: pytest.CaptureFixture[str]) -> None:
    found = rag(20.0, **APART, kv_cache_memory_bytes=3 * 2**30)
    own = {pool["role"]: pool["num_preemptions"] for pool in found["pools"]}
    assert own["decode"] > 0
    assert sum(own.values()) == found["num_preemptions"]
    waits = sum(pool["mean_waiting"] for pool in found["pools"])
    assert waits == pytest.approx(found["mean_waiting"])
    main(["run", *f"{OVERLOADED} --num-prefill-workers 2 --num-decode-workers 2".split()])
    said = " ".join(capsys.readouterr().out.split())
    assert "waiting requests per replica" in said
    assert "preemptions; prefill: 2 replicas, busy" in said


@pytest.mark.slow
def test_the_pace_of_clients_is_no_load() -> None:
    """Closed loops and bursts offer no rate; what their requests wait for is still told."""
    burst = rag(math.inf, max_num_seqs=16)["load"]
    assert burst["offered_request_rate"] is burst["saturated"] is None
    assert burst["binding"] == "max_num_seqs"
    few = rag(math.inf, max_concurrency=4)["load"]
    assert (few["offered_request_rate"], few["saturated"]) == (None, None)
    assert few["binding"] == "arrivals"
    enough_places = rag(1.0, max_concurrency=200)["load"]  # held nobody back
    assert enough_places["offered_request_rate"] == pytest.approx(1.0, rel=0.2)
    assert enough_places["saturated"] is False


def test_the_longest_gap_is_exact_in_both_engines() -> None:
    """A running request waits while a long prompt that came later is computed."""
    trace = kvsim.Trace.from_arrays([0.0, 0.5], [16, 30_000], [100, 5])
    runs = [
        kvsim.simulate(
            trace,
            **{**SERVER, "backend": backend},
            max_num_batched_tokens=32_768,
            async_scheduling=False,
            record_steps=True,
        )
        for backend in ("python", "compiled")
    ]
    assert equal_tables(*(run.requests for run in runs))
    assert runs[0].summary == runs[1].summary
    longest = 1000.0 * float(runs[0].steps["duration"][runs[0].steps["start_time"] > 0].max())
    found = runs[0].summary
    assert found["max_itl_ms"] == pytest.approx(longest, rel=1e-9)
    assert found["p99_itl_ms"] < found["max_itl_ms"] / 10
    order = [found[f"{kind}_itl_ms"] for kind in ("median", "p90", "p99", "p999", "max")]
    assert order == sorted(order)


def test_a_run_is_saved_with_its_load_and_seeds_are_averaged(tmp_path: Any) -> None:
    arrivals = np.cumsum(np.random.default_rng(1).exponential(0.5, 300))
    trace = kvsim.Trace.from_arrays(arrivals, [10] * 300, [2] * 300)
    result = kvsim.simulate(trace, **ONE_BY_ONE)
    result.save(tmp_path / "run")
    assert kvsim.load(tmp_path / "run").summary == result.summary
    mean = average([result.summary] * 3)
    assert mean["load"] == pytest.approx(result.summary["load"])
    calm = {**result.summary["load"], "saturated": False, "binding": "arrivals"}
    mixed = average([{**result.summary, "load": calm}] * 2 + [result.summary])["load"]
    assert (mixed["saturated"], mixed["binding"]) == (True, "max_num_seqs")
    assert average([{**result.summary, "load": calm}] * 2)["load"]["saturated"] is False


def test_words_of_one_run_and_of_many() -> None:
    load = {"offered_request_rate": 10.0, "served_request_rate": 3.81, "saturated": True}
    one = {**load, "binding": "kv_cache"}
    assert overload(one) == (
        "served 3.8 of 10 requests/s: the queue grows; TTFT depends on the length of the run; "
        "bottleneck: kv_cache"
    )
    assert overload(None) is None
    assert overload({**one, "saturated": False}) is overload({**one, "saturated": None}) is None
    assert overloads({"a": one}) == [overload(one)]
    assert overloads({"a": one, "b": None}) == [f"a: {overload(one)}"]
    other = {**one, "served_request_rate": 0.98}
    bound = {**one, "binding": "decode"}
    assert overloads({"a": one, "b": other, "c": bound}) == [
        f"a, b: {str(overload(one)).replace('3.8', '3.8, 0.98')}",
        f"c: {overload(bound)}",
    ]
    many: dict[str, Any] = {str(k): one for k in range(9)} | {"calm": {**one, "saturated": False}}
    assert overloads(many)[0].startswith("9 of 10 do not keep up with their arrivals")
    assert overloads(many)[0].endswith("bottlenecks: kv_cache in 9")
    assert "arrivals" in CAUSES


OVERLOADED = (
    "--model llama-3.1-8b --gpu h100-sxm --workload random+input-len=6000+output-len=300 "
    "--num-requests 100 --request-rate 10 --backend python"
)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "compare --allocators paged"])
def test_commands_say_that_a_run_does_not_keep_up(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main([*command.split(), *OVERLOADED.split()])
    said = " ".join(capsys.readouterr().out.split())
    assert "of 10 requests/s: the queue grows; TTFT depends on the length of the run" in said
    main([*command.split(), *OVERLOADED.replace("-rate 10", "-rate 1").split()])
    assert "the queue grows" not in capsys.readouterr().out
