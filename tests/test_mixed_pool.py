"""Splitwise's mixed pool: who stays where, what is counted for it, and what a failure leaves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kvsim
from kvsim.engine.replica import Replica
from kvsim.engine.setup import resolve
from kvsim.fleet.simulate import serve
from kvsim.fleet.tracking.compiled_lifecycle_events import CompiledLifecycleEvents
from kvsim.fleet.tracking.lifecycle_events import PythonLifecycleEvents
from kvsim.results.tables import REQUESTS, FinishReason
from kvsim.trace import Trace

#: A second a step, 1,200 slots everywhere, KV that moves at once.
OPTIONS: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "gpu": "h100-sxm",
    "cost_model": "constant+seconds=1",
    "async_scheduling": False,
    "num_gpu_blocks_override": 75,
    "max_model_len": 1100,
    "num_prefill_workers": 1,
    "num_decode_workers": 1,
    "disaggregation": "splitwise",
    "enable_prefix_caching": False,
    "check_invariants": True,
}

both = pytest.mark.parametrize("backend", ["python", "compiled"])


def run(trace: Trace, **options: Any) -> kvsim.Result:
    """Serve a trace; nobody holds anything in the end."""
    replicas: list[Replica] = []
    setup = resolve(kvsim.Config.build(**OPTIONS | options))
    result = serve(setup, trace, on_start=replicas.append)
    for replica in replicas:
        state = replica.state
        assert (
            state.kv.num_held == state.num_outstanding == state.connector.waiting_for_kv.length == 0
        )
        assert state.connector.num_pinned == state.connector.num_sent
    return result


@both
def test_who_is_on_the_way_takes_room_too(backend: str) -> None:
    trace = Trace.from_arrays([0, 0.1], [800, 500], [10, 4])
    rows = run(trace, backend=backend).requests
    assert rows["replica"].tolist() == [0, 1]


@pytest.mark.long
@both
def test_outputs_so_far_take_room(backend: str) -> None:
    """800 and 399 fit into 1,200 slots, when a token is there; not when two are."""
    for time, replica in ((2.5, 0), (3.5, 1)):
        trace = Trace.from_arrays([0, time], [800, 399], [10, 4])
        assert run(trace, backend=backend).requests["replica"].tolist() == [0, replica]


@both
def test_one_too_many_to_run_stays(backend: str) -> None:
    trace = Trace.from_arrays([0, 0, 1.5], [100, 100, 100], [10, 4, 4])
    rows = run(trace, backend=backend, max_num_seqs=2).requests
    assert rows["replica"].tolist() == [0, 0, 1]


@pytest.mark.long
@both
def test_a_prompt_that_is_computed_is_not_in_hand(backend: str) -> None:
    """500 have stayed and decode; 300 more would be too many beside them, and are not."""
    trace = Trace.from_arrays([0, 5, 7], [800, 500, 300], [20, 20, 2])
    rows = run(trace, backend=backend, disaggregation="splitwise+tokens=600").requests
    assert rows["prefill_replica"].tolist() == [1, -1, 1]
    # With prompts in hand that have no token yet, they are: a decode replica takes it whole.
    trace = Trace.from_arrays([0, 5, 5.5], [800, 500, 300], [20, 20, 2])
    rows = run(trace, backend=backend, disaggregation="splitwise+tokens=600").requests
    assert rows["prefill_replica"].tolist() == [1, -1, -1]
    assert rows["replica"].tolist() == [0, 1, 0]


@both
def test_one_prefill_replica_without_a_queue_is_enough(backend: str) -> None:
    trace = Trace.from_arrays([0, 0.1], [500, 500], [2, 2])
    short = "splitwise+tokens=600"
    rows = run(trace, backend=backend, disaggregation=short, num_prefill_workers=2).requests
    assert rows["prefill_replica"].tolist() == [1, 2]


@pytest.mark.long
@both
def test_a_prefill_replica_that_is_gone_has_no_room(backend: str) -> None:
    """One is lost; the other one has 500 tokens in hand, and 500 more are too many."""
    trace = Trace.from_arrays([0, 5, 5.1], [100, 500, 500], [2, 2, 2])
    options = {"num_prefill_workers": 2, "disaggregation": "splitwise+tokens=600"}
    fails = "at+time=4+replica=0+pool=prefill+detection=0"
    rows = run(trace, backend=backend, failures=fails, cold_start=100.0, **options).requests
    assert rows["prefill_replica"].tolist() == [1, 2, -1]


@pytest.mark.long
@both
def test_the_decode_router_forgets_who_stays(backend: str) -> None:
    """The third finds both decode replicas full and stays; the fourth finds both without work."""
    trace = Trace.from_arrays([0, 0, 5, 20], [800, 800, 500, 100], [10, 10, 30, 2])
    for router in ("least-outstanding", "vllm-dp", "dynamo+events=false"):
        options = {"num_decode_workers": 2, "router": router, "seed": 3}
        rows = run(trace, backend=backend, **options).requests
        assert rows["replica"][2] == 2
        if "dynamo" not in router:  # of equals it takes any
            assert rows["replica"].tolist() == [0, 1, 2, 0]


@pytest.mark.long
@both
def test_a_client_hears_of_the_end_of_who_stays(backend: str) -> None:
    """Two at a time: the third is sent when the second one has ended, which stayed."""
    trace = Trace.from_arrays([0, 0.1, 0.2], [800, 500, 100], [20, 4, 2])
    rows = run(trace, backend=backend, max_concurrency=2).requests
    assert rows["replica"].tolist() == [0, 1, 0]
    assert rows["arrival_time"][2] == np.nextafter(rows["finish_time"][1], np.inf)
    assert rows["finish_time"][1] < rows["finish_time"][0]


@both
@pytest.mark.parametrize(("fabric", "time"), [("400g-ib", 4.5), ("nixl-vllm", 2.05)])
def test_who_comes_back_and_stays_frees_what_it_held(
    backend: str, fabric: str, time: float
) -> None:
    """Its decode replica fails, after it has read or while it does; the other one has no room."""
    trace = Trace.from_arrays([0, 0], [800, 700], [20, 10])
    fails = f"at+time={time}+replica=1+pool=decode+detection=0.1+lease=1000"
    options = {"num_decode_workers": 2, "router": "round-robin", "cold_start": 100.0}
    result = run(trace, backend=backend, failures=fails, kv_transfer_fabric=fabric, **options)
    rows = result.requests
    assert rows["replica"].tolist() == [0, 2]
    assert rows["prefill_replica"].tolist() == [2, -1]
    assert rows["num_output_tokens"].tolist() == [20, 10]
    assert rows["finish_time"][1] == pytest.approx(time + 0.1 + 10)


@pytest.mark.long
@both
def test_a_failure_where_a_request_stayed_loses_it(backend: str) -> None:
    """It stays from 5 on, at 6 to 8 it gets tokens, at 8.5 its replica fails."""
    trace = Trace.from_arrays([0, 5], [800, 500], [12, 10])
    fails = "at+time=8.5+replica=0+pool=prefill+detection=1"
    lost = run(trace, backend=backend, failures=fails + "+policy=fail", cold_start=1.0)
    row = lost.requests[1]
    assert (row["replica"], row["finish_reason"]) == (1, FinishReason.FAILED)
    assert (row["first_token_time"], row["num_output_tokens"]) == (6.0, 3)
    assert row["finish_time"] == 9.5
    # There is another one at 10.5, and room to decode only from 13 on: it stays again.
    again = run(trace, backend=backend, failures=fails, cold_start=1.0).requests[1]
    assert (again["replica"], again["prefill_replica"]) == (2, -1)
    assert (again["first_scheduled_time"], again["finish_time"]) == (10.5, 20.5)
    # With the tokens that it has: seven are left.
    whole = run(trace, backend=backend, failures=fails + "+policy=migrate", cold_start=1.0)
    row = whole.requests[1]
    assert (row["first_token_time"], row["finish_time"]) == (6.0, 17.5)
    assert row["num_output_tokens"] == 10


@pytest.mark.long
@pytest.mark.parametrize("router", ["round-robin", "least-outstanding", "dynamo+events=false"])
def test_requests_stay_beside_a_decode_replica_whose_failure_nobody_noticed(router: str) -> None:
    """Both decode replicas are full, one has failed at 4; who is meant for it stays as well."""
    trace = Trace.from_arrays([0, 0, 5, 5.1, 5.2, 5.3], [800, 800, 90, 500, 500, 80], [20] * 6)
    fails = "at+time=4+replica=1+pool=decode+detection=30"
    options = {"num_decode_workers": 2, "router": router, "seed": 3, "failures": fails}
    ours, theirs = (run(trace, backend=name, **options).requests for name in ("python", "compiled"))
    assert ours.tolist() == theirs.tolist()
    assert ours["replica"][3:5].tolist() == [2, 2]
    assert ours["num_output_tokens"].tolist() == [20] * 6


@pytest.mark.parametrize("kind", [PythonLifecycleEvents, CompiledLifecycleEvents])
def test_requests_are_taken_back_from_a_replica_of_which_nothing_is_heard(kind: type) -> None:
    """One was sent before and two after; none has had a first token."""
    replica = SimpleNamespace(address=1)
    news = kind([replica], np.zeros(4, REQUESTS))
    news.send(0, 0)
    news.lose(0)
    news.send(1, 0)
    news.send(2, 0)
    assert [news.withdraw(row, 0) for row in (1, 0, 2)] == [True] * 3
    news.send(3, 0)
    news.replace(0, replica)
    news.send(3, 0)
    assert news.withdraw(3, 0)


@pytest.mark.long
@both
@pytest.mark.parametrize("router", ["round-robin", "least-outstanding", "dynamo+events=false"])
def test_who_stayed_may_go_on_apart(backend: str, router: str) -> None:
    """Its replica fails at 8.5; at 16.5 there is room to decode: one token there, ten here."""
    trace = Trace.from_arrays([0, 5], [800, 500], [12, 10])
    options = {"backend": backend, "num_prefill_workers": 2, "prefill_router": router}
    place = int(run(trace, **options).requests["replica"][1]) - 1
    fails = f"at+time=8.5+replica={place}+pool=prefill+detection=8"
    row = run(trace, failures=fails, cold_start=100.0, **options).requests[1]
    assert (row["replica"], row["prefill_replica"]) == (0, 2 - place)
    assert row["first_token_time"] == pytest.approx(18.5, abs=0.01)
    assert row["finish_time"] == pytest.approx(27.5, abs=0.01)


@pytest.mark.long
@both
def test_who_stayed_has_not_ended_where_it_goes_on(backend: str) -> None:
    """Beside it a short prompt ends at 17.2; at 17.5 a router looks who has ended."""
    trace = Trace.from_arrays([0, 5, 16.2, 17.5], [800, 500, 50, 50], [12, 10, 2, 2])
    options = {
        "backend": backend,
        "num_prefill_workers": 2,
        "prefill_router": "dynamo+events=false",
    }
    place = int(run(trace, **options).requests["replica"][1]) - 1
    fails = f"at+time=8.5+replica={place}+pool=prefill+detection=8"
    rows = run(trace, failures=fails, cold_start=100.0, **options).requests
    assert rows["prefill_replica"].tolist()[1:] == [2 - place] * 3
    assert rows["first_scheduled_time"].tolist() == pytest.approx([0, 17.2, 16.2, 18.2])
    assert rows["num_output_tokens"].tolist() == [12, 10, 2, 2]


def test_who_stays_came_when_it_was_sent() -> None:
    """The decode replica fails at 5; who comes at 7 waits at the gateway for its successor."""
    trace = Trace.from_arrays([0.0, 6.0, 7.0], [100, 800, 500], [3, 10, 4])
    result = kvsim.simulate(
        trace,
        model="llama-3.1-8b",
        gpu="h100-sxm",
        cost_model="constant+seconds=1",
        async_scheduling=False,
        num_prefill_workers=1,
        num_decode_workers=1,
        num_gpu_blocks_override=75,
        disaggregation="splitwise",
        failures="at+time=5+pool=decode+detection=0",
        cold_start=20.0,
    )
    assert result.requests["arrival_time"].tolist() == [0.0, 6.0, 7.0]
    assert result.requests["first_token_time"][2] == pytest.approx(27.0, abs=0.01)
