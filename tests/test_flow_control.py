"""The gate before routers: bands, turns, saturation and shedding, by hand and at random."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples, traces

import kvsim
import workloads
from kvsim.engine.setup import resolve
from kvsim.fleet.admission.flow_control import FLOW_CONTROLS
from kvsim.fleet.admission.priority_bands import PriorityBands
from kvsim.fleet.routing.view import Scraped
from kvsim.fleet.simulate import serve as serve_setup
from kvsim.results.tables import FinishReason
from kvsim.testing import equal_tables
from kvsim.trace import Trace

H100 = {"model": "llama-3.1-8b", "gpu": "h100-sxm"}
SECONDS = {**H100, "cost_model": "constant+seconds=1", "async_scheduling": False, "max_num_seqs": 1}


def test_bands_are_strict_and_tenants_take_turns() -> None:
    line = PriorityBands()
    for row, (priority, tenant) in enumerate(
        [(1, 7), (1, 7), (1, 8), (0, 7), (1, 9), (0, 8), (0, 8), (1, 8)]
    ):
        line.push(row, priority, tenant)
    assert [line.pop() for _ in range(4)] == [3, 5, 6, 0]
    line.push(8, 1, 7)
    line.push(9, 0, 9)  # more urgent than all that wait
    assert [line.pop() for _ in range(6)] == [9, 2, 4, 1, 7, 8]
    assert len(line) == 0


def test_saturation_is_a_mean_of_the_fuller_side() -> None:
    control = FLOW_CONTROLS.make("llm-d")
    both = [Scraped(0.0, 10, 1, 0.4), Scraped(0.0, 1, 1, 0.6)]
    assert control.saturation(both) == pytest.approx((10 / 5 + 0.6 / 0.8) / 2)
    assert control.saturation([]) == 1  # nobody could take it
    tuned = FLOW_CONTROLS.make("llm-d+queue=2+kv=0.5")
    assert tuned.saturation(both) == pytest.approx((5.0 + 1.2) / 2)


def test_only_what_can_be_spared_is_shed() -> None:
    control = FLOW_CONTROLS.make("llm-d+sheds=true")
    assert control.shedding(1, 0.2) == pytest.approx(0.096)
    assert control.shedding(1, 0.33) == 1.0
    assert control.shedding(0, 2.0) == control.shedding(-3, 2.0) == 0.0
    assert FLOW_CONTROLS.make("llm-d").shedding(1, 2.0) == 0.0


@pytest.mark.long
def test_who_comes_to_a_full_server_waits_at_the_gate() -> None:
    """One at a time, two steps of a second each; metrics are read at 0, 0.4, 0.8, ...

    A and B come at 0.5 and 0.6, when nobody waits. From 2 on, the end of A's first step, the
    metrics say that B waits while A runs, so C (2.3) and D (2.4) are held back. B begins at 3, and
    its first step ends at 4; then both go on, D first, which is more urgent. E comes at 4.3, when
    nobody was seen to wait. Without the gate C is before D.
    """
    trace = Trace.from_arrays(
        [0.0, 0.5, 0.6, 2.3, 2.4, 4.3], [8] * 6, [1, 2, 2, 2, 2, 2], priority=[0, 0, 0, 1, 0, 1]
    )
    result = kvsim.simulate(trace, **SECONDS, flow_control="llm-d+queue=1+interval=0.4")
    rows, told = result.requests, result.summary["flow_control"]
    assert rows["finish_time"].tolist() == [1.0, 3.0, 5.0, 9.0, 7.0, 11.0]
    assert (told["num_held_back"], told["peak_waiting"]) == (2, 2)
    assert told["mean_wait_ms"] == pytest.approx(1000 * (1.7 + 1.6) / 6)
    plain = kvsim.simulate(trace, **SECONDS)
    assert plain.requests["finish_time"].tolist() == [1.0, 3.0, 5.0, 7.0, 9.0, 11.0]


@pytest.mark.long
def test_the_gate_holds_back_who_comes_while_no_replica_is_ready() -> None:
    """The only replica fails at 1.5, which shows at 2.5; another one is ready at 12.5."""
    trace = Trace.from_arrays([0.0, 3.0, 4.0, 5.0], [8] * 4, [1] * 4, priority=[0, 0, 0, -1])
    result = kvsim.simulate(
        trace,
        **SECONDS,
        flow_control="llm-d+most-waiting=2+interval=0.5",
        failures="at+time=1.5+detection=1",
        cold_start=10.0,
    )
    told = result.summary["flow_control"]
    assert (told["num_held_back"], told["num_too_many"], told["peak_waiting"]) == (2, 1, 2)
    rows = result.requests
    assert rows["finish_reason"][3] == FinishReason.REJECTED
    assert rows["finish_time"][1:3].tolist() == [13.5, 14.5]
    assert told["mean_wait_ms"] == pytest.approx(1000 * (9.5 + 8.5) / 3)


def test_tenants_take_turns_at_the_gate_also_when_no_more_will_come() -> None:
    """As above; at 4 tenant 5 goes on, then 6, then 5 again."""
    trace = Trace.from_arrays(
        [0.0, 0.5, 0.6, 2.3, 2.4, 2.5], [8] * 6, [1, 2, 2, 2, 2, 2], tenant=[5, 5, 5, 5, 5, 6]
    )
    for fairness, ends in (("round-robin", [7.0, 11.0, 9.0]), ("global", [7.0, 9.0, 11.0])):
        control = f"llm-d+queue=1+interval=0.4+fairness={fairness}"
        result = kvsim.simulate(trace, **SECONDS, flow_control=control)
        assert result.requests["finish_time"].tolist() == [1.0, 3.0, 5.0, *ends]
        assert result.requests["first_scheduled_time"][3] == 5.0
        waits = 1.7 + 1.6 + 1.5
        told = result.summary["flow_control"]
        assert told["mean_wait_ms"] == pytest.approx(1000 * waits / 6)


@pytest.mark.long
@pytest.mark.parametrize("router", ["round-robin", "least-outstanding", "llm-d", "dynamo"])
def test_a_fleet_with_room_does_not_notice_its_gate(router: str) -> None:
    trace = workloads.sharegpt(num_requests=80, request_rate=10, seed=4)
    options = {**H100, "data_parallel_size": 3, "router": router}
    plain = kvsim.simulate(trace, **options)
    gated = kvsim.simulate(trace, **options, flow_control="llm-d+sheds=true")
    assert equal_tables(plain.requests, gated.requests)
    assert gated.summary["flow_control"]["num_held_back"] == 0


@pytest.mark.long
def test_shedding_keeps_the_urgent_fast_and_is_counted() -> None:
    count = 600
    base = workloads.fixed(prompt=500, output=100, num_requests=count, request_rate=120.0)
    trace = Trace.from_arrays(
        base.arrival_time,
        base.num_prompt_tokens,
        base.num_output_tokens,
        priority=np.arange(count) % 2,
    )
    options = {**H100, "max_num_seqs": 32, "data_parallel_size": 2}
    shed = kvsim.simulate(trace, **options, flow_control="llm-d+sheds=true")
    kept = kvsim.simulate(trace, **options)
    rows, told = shed.requests, shed.summary["flow_control"]
    rejected = rows["finish_reason"] == FinishReason.REJECTED
    assert rejected.sum() == told["num_shed"] > 50
    assert set(trace.priority[rejected].tolist()) == {1}
    assert shed.summary["rejections"] == {"shed by flow control": told["num_shed"]}
    urgent = trace.priority == 0

    def mean(table: Any) -> float:
        return float((table["first_token_time"] - table["arrival_time"])[urgent].mean())

    assert mean(rows) < mean(kept.requests) / 2
    again = kvsim.simulate(trace, **options, flow_control="llm-d+sheds=true")
    assert equal_tables(rows, again.requests)


def test_a_gate_has_places_for_so_many() -> None:
    trace = workloads.fixed(prompt=8, output=2, num_requests=40, request_rate=4.0)
    result = kvsim.simulate(
        trace, **SECONDS, flow_control="llm-d+queue=1+interval=0.1+most-waiting=5"
    )
    told = result.summary["flow_control"]
    assert told["peak_waiting"] == 5
    assert told["num_too_many"] > 10
    said = {"more than may wait at the gateway": told["num_too_many"]}
    assert result.summary["rejections"] == said
    assert result.summary["completed"] == 40 - told["num_too_many"]


def test_dynamo_holds_back_while_all_compute_more_than_enough() -> None:
    control = FLOW_CONTROLS.make("dynamo+threshold=2")
    assert control.prefill_saturation([128, 500], 64) < 1  # two steps are not too many
    assert control.prefill_saturation([129, 500], 64) >= 1
    assert FLOW_CONTROLS.make("dynamo").prefill_saturation([16 * 64 + 1], 64) >= 1
    assert FLOW_CONTROLS.make("dynamo").prefill_saturation([16 * 64], 64) < 1
    assert control.saturation([]) >= 1


#: Two replicas compute 64 tokens a step, of a second. A and B, of 100 tokens, have theirs at 2.0
#: and 2.1. The others come meanwhile, and the gate looks every half second.
IN_FLIGHT = {
    **{k: v for k, v in SECONDS.items() if k != "max_num_seqs"},
    "data_parallel_size": 2,
    "max_num_batched_tokens": 64,
    "enable_chunked_prefill": True,
}


@pytest.mark.parametrize(("order", "later"), [("fcfs", [4, 5]), ("lcfs", [2, 3]), ("wspt", [2])])
@pytest.mark.parametrize("backend", ["python", "compiled"])
def test_who_waits_for_dynamo_goes_on_in_its_order(
    order: str, later: list[int], backend: str
) -> None:
    """At 2.0 the first one has room for prompts until it has more than 64 tokens, as the other."""
    times, prompts = [0.0, 0.1, 0.2, 0.3, 0.4, 0.45], [100, 100, 50, 20, 45, 30]
    trace = Trace.from_arrays(times, prompts, [1] * 6)
    gate = f"dynamo+threshold=1+interval=0.5+order={order}"
    result = kvsim.simulate(trace, **IN_FLIGHT, router="dynamo", flow_control=gate, backend=backend)
    begins = result.requests["first_scheduled_time"]
    assert begins[:2].tolist() == [0.0, 0.1]
    assert [row for row in range(2, 6) if begins[row] > 2.0] == later
    told = result.summary["flow_control"]
    waits = [(2.5 if row in later else 2.0) - times[row] for row in range(2, 6)]
    assert told["num_held_back"] == told["peak_waiting"] == 4
    assert told["mean_wait_ms"] == pytest.approx(1000 * sum(waits) / 6)


def test_the_shortest_is_who_has_least_to_compute() -> None:
    """The last prompt is the longest, but a replica has all of it but four tokens.

    It goes on before the one of 66 tokens, which closes the gate again; if that is known.
    """
    times, prompts = [0.0, 10.0, 10.1, 10.2, 10.3], [128, 100, 100, 66, 132]
    others = [[(k, 0, n)] for k, n in enumerate(prompts[1:4], 2)]
    segments = [[(1, 0, 128)], *others, [(1, 0, 128), (9, 0, 4)]]
    trace = Trace.from_arrays(times, prompts, [1] * 5, segments=segments)
    begins = {}
    for router, order in (("dynamo", "wspt"), ("dynamo", "fcfs"), ("round-robin", "wspt")):
        gate = f"dynamo+threshold=1+interval=0.5+order={order}"
        result = kvsim.simulate(trace, **IN_FLIGHT, router=router, flow_control=gate)
        begins[router, order] = float(result.requests["first_scheduled_time"][4])
    assert begins["dynamo", "wspt"] < 12.5
    assert begins["dynamo", "fcfs"] >= 12.5
    assert begins["round-robin", "wspt"] >= 12.5


@pytest.mark.parametrize("parts", [{}, {"num_prefill_workers": 1, "num_decode_workers": 1}])
def test_dynamo_holds_back_before_one_replica_and_before_prompts_apart(
    parts: dict[str, int],
) -> None:
    trace = Trace.from_arrays([0.0, 0.1, 0.2], [100, 50, 50], [2] * 3)
    options = IN_FLIGHT | {"data_parallel_size": 1} | parts
    result = kvsim.simulate(trace, **options, flow_control="dynamo+threshold=1+interval=0.5")
    assert result.summary["flow_control"]["num_held_back"] == 2
    assert result.summary["flow_control"]["mean_wait_ms"] == pytest.approx(1000 * 3.7 / 3)
    free = kvsim.simulate(trace, **options, flow_control="dynamo+threshold=2")
    assert free.summary["flow_control"]["num_held_back"] == 1
    plain = kvsim.simulate(trace, **options)
    wide = kvsim.simulate(trace, **options, flow_control="dynamo")
    assert equal_tables(plain.requests, wide.requests)


@pytest.mark.long
@examples(40)
@given(trace=traces(max_requests=30), data=st.data())
def test_every_request_ends_once_and_both_engines_agree(trace: Trace, data: st.DataObject) -> None:
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    columns = {
        "priority": rng.integers(-1, 2, len(trace)),
        "tenant": rng.integers(3, size=len(trace)),
    }
    trace = replace(trace.with_num_samples(1), **columns)
    options: dict[str, Any] = {
        **H100,
        "data_parallel_size": draw(st.integers(1, 3)),
        "flow_control": draw(
            st.sampled_from(
                [
                    *("llm-d+queue=1+kv=0.3", "llm-d+queue=1+kv=0.3+sheds=true"),
                    *("llm-d+queue=1+kv=0.3+fairness=global", "dynamo+threshold=0.05+order=wspt"),
                    *("dynamo+threshold=0.05+order=lcfs", "llm-d+queue=1+kv=0.3+most-waiting=2"),
                ]
            )
        )
        + draw(st.sampled_from(["", "+interval=0.02"])),
        "num_gpu_blocks_override": draw(st.integers(8, 60)),
        "max_model_len": draw(st.sampled_from([60, 200])),
        "max_num_seqs": draw(st.integers(1, 8)),
        "router": draw(st.sampled_from(["round-robin", "least-outstanding", "llm-d", "dynamo"])),
        "scheduling_policy": draw(st.sampled_from(["fcfs", "priority"])),
        "max_concurrency": draw(st.sampled_from([None, 3])),
        "kv_store": draw(st.sampled_from([None, "peer"])),
        "failures": draw(st.sampled_from([None, "at+time=0.05+replica=0+detection=0.02"])),
        "horizon": draw(st.sampled_from([float("inf"), 0.3])),
        "cold_start": 0.05,
    }
    setup = resolve(kvsim.Config.build(**options, backend="python", check_invariants=True))
    python = serve_setup(setup, trace)
    compiled = kvsim.simulate(trace, **options, backend="compiled")
    assert equal_tables(python.requests, compiled.requests)
    assert python.summary == compiled.summary
    reasons = set(python.requests["finish_reason"].tolist())
    if options["horizon"] == float("inf"):
        assert reasons <= {FinishReason.FINISHED, FinishReason.REJECTED}
    told = python.summary["flow_control"]
    assert sum(python.summary["rejections"].values()) >= told["num_shed"] + told["num_too_many"]


@pytest.mark.parametrize(
    ("control", "said"),
    [
        ("envoy", "unknown flow control 'envoy'"),
        ("llm-d+queue=0", "queue"),
        ("llm-d+fairness=fifo", "fairness"),
        ("llm-d+most-waiting=-1", "most-waiting"),
        ("llm-d+sheds=perhaps", "sheds"),
        ("dynamo+order=random", "order"),
        ("dynamo+interval=1e-9", "interval"),
        ("llm-d+interval=1e-9", "interval"),
        ("dynamo+threshold=0", "threshold"),
    ],
)
def test_a_wrong_gate_is_refused_in_one_line(control: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as error:
        kvsim.simulate(workloads.fixed(num_requests=1), **H100, flow_control=control)
    assert "\n" not in str(error.value)
