"""What a fleet's run says of itself: of pools, of replicas that are gone, of who was not served."""

from __future__ import annotations

import gzip
import json
import re
import shlex
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import kvsim
import workloads
from kvsim.cli import main
from kvsim.engine.incoming import IncomingRequest
from kvsim.fleet.routing.router import REJECT, Router
from kvsim.fleet.tracking.bookkeeping import _imbalance
from kvsim.report.metrics import exposition
from kvsim.report.timeline import Window, events_of
from kvsim.report.title import deployment
from kvsim.results.idle import gone_time, memory_with_gaps
from kvsim.results.metrics import num_early_turns
from kvsim.results.tables import REQUESTS, FinishReason
from kvsim.trace import Trace

H100: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h100-sxm"}
SECONDS: dict[str, Any] = {**H100, "cost_model": "constant+seconds=1", "async_scheduling": False}
#: A failure that nobody notices for two seconds.
FAILS = "at+time=3.5+detection=2"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_decode_pool_hits_what_was_not_handed_over(workers: int) -> None:
    trace = workloads.generate(
        "shared-prefix+prefix=1024+suffix=100+output=60", num_requests=80, request_rate=10.0, seed=0
    )
    result = kvsim.simulate(
        trace, **H100, num_prefill_workers=2, num_decode_workers=workers, router="dynamo"
    )
    summary = result.summary
    moved = summary["kv_transfers"]["bytes"] / 131_072
    own = 1 - moved / trace.num_prompt_tokens.sum()
    rows = [row for row in summary["replicas"] if row["role"] == "decode"]
    tokens = [
        trace.num_prompt_tokens[result.requests["replica"] == row["replica"]].sum() for row in rows
    ]
    rates = [row["prefix_cache_hit_rate"] for row in rows]
    assert np.average(rates, weights=tokens) == pytest.approx(own)
    decode, prefill = summary["pools"]
    assert (decode["routing"] is None) == (workers == 1)
    assert summary["routing"] == decode["routing"]  # never the prefill pool's
    assert prefill["routing"]["actual_hit_rate"] != pytest.approx(own)
    if workers == 2:
        assert decode["routing"]["actual_hit_rate"] == pytest.approx(own)
        assert decode["routing"]["predicted_hit_rate"] == pytest.approx(own)


def test_imbalance_is_per_second_of_a_life() -> None:
    assert _imbalance([3.0, 1.0], [10.0, 10.0]) == 1.5
    assert _imbalance([8.0, 2.0, 6.0], [10.0, 2.5, 7.5]) == pytest.approx(1.0)
    assert _imbalance([8.0, 0.5], [10.0, 0.5]) == 1.0
    assert _imbalance([1.0, 9.0, 1.0], [10.0, 10.0, 0.1]) == pytest.approx(1.8)
    assert _imbalance([0.0, 0.0], [10.0, 2.0]) is None


def test_replications_of_a_changing_fleet_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    line = (
        "run llama-3.1-8b --gpu h100-sxm --workload shared-prefix --num-requests 40 "
        "--request-rate 40 --max-num-seqs 8 -dp 2 --failures rate+gpu_hours=0.001+detection=1 "
        "--cold-start 1 --replications 3"
    )
    main(shlex.split(line))
    assert "completed 40" in capsys.readouterr().out
    main([*shlex.split(line), "--json", "-"])
    summary = json.loads(capsys.readouterr().out)
    assert summary["replicas"] is summary["scaling"]["timeline"] is None
    assert summary["scaling"]["num_failures"] > 0


@pytest.mark.slow
def test_a_replica_that_is_gone_does_nothing_any_more(tmp_path: Path) -> None:
    line = (
        "run llama-3.1-8b --gpu h100-sxm --num-requests 100 --request-rate 20 --max-num-seqs 4 "
        "-dp 2 --router least-outstanding --failures at+time=2+detection=1 --cold-start 2"
    )
    files = tmp_path / "m.txt", tmp_path / "t.json.gz", tmp_path / "run"
    named = zip(("--metrics", "--timeline", "--out"), map(str, files), strict=True)
    main([*shlex.split(line), *(text for pair in named for text in pair)])
    result = kvsim.load(files[2])
    start = float(result.requests["arrival_time"].min())
    assert gone_time(result, 0) == start + 2
    assert gone_time(result, 1) == np.inf
    last = memory_with_gaps(result, 0)[-1]
    assert (last["time"], last["num_running"], last["cached"]) == (start + 2, 0, 0)
    running = r'^vllm:num_requests_running\{.*engine="0".*\} (\S+) (\S+)$'
    told = re.findall(running, files[0].read_text(), re.MULTILINE)
    late = [float(value) for value, time in told if float(time) > start + 2]
    assert late
    assert not any(late)
    events = json.loads(gzip.decompress(files[1].read_bytes()))["traceEvents"]
    mine = [e for e in events if e["pid"] == 0 and e["ph"] in "CX"]
    assert max(e["ts"] + e.get("dur", 0) for e in mine) <= 2e6
    (failure,) = (e for e in events if e["name"] == "fail")
    assert (failure["ts"], failure["pid"]) == (2e6, 0)


def test_reports_tell_each_pool_by_its_own_figures(tmp_path: Path) -> None:
    pools = [
        {"role": "prefill", "tensor_parallel_size": 2},
        {"role": "decode", "num_gpu_blocks_override": 900},
    ]
    trace = workloads.fixed(prompt=100, output=5, num_requests=4, request_rate=2.0)
    result = kvsim.simulate(trace, **H100, pool=pools)
    blocks = {pool["role"]: pool["num_gpu_blocks"] for pool in result.summary["pools"]}
    told = [line for line in exposition(result) if line.startswith("vllm:cache_config_info{")]
    engines = {re.search(r'engine="(\d)"', line)[1]: line for line in told}  # type: ignore[index]
    assert 'num_gpu_blocks="900"' in engines["0"]
    assert f'num_gpu_blocks="{blocks["prefill"]}"' in engines["1"]
    names = [e["args"]["name"] for e in events_of(result, Window()) if e["name"] == "process_name"]
    assert [name[-3:] for name in names] == ["tp1", "tp2"]
    assert "of KV memory per GPU of decode workers" in deployment(result)


def test_who_fails_is_counted() -> None:
    trace = Trace.from_arrays([0.0, 0.0, 0.0], [8] * 3, [6] * 3)
    options = {**SECONDS, "data_parallel_size": 3, "cold_start": 100}
    lost = kvsim.simulate(trace, failures=f"{FAILS}+policy=fail", **options).summary
    assert (lost["completed"], lost["num_failed"], lost["num_rejected"]) == (2, 1, 0)
    again = kvsim.simulate(trace, failures=FAILS, **options).summary
    assert (again["completed"], again["num_failed"]) == (3, 0)


@pytest.mark.parametrize("policy", ["retry", "fail", "migrate"])
def test_a_failure_that_nobody_has_noticed_leaves_its_requests_in_flight(policy: str) -> None:
    trace = Trace.from_arrays([0.0] * 3, [8] * 3, [6] * 3)
    options = {**SECONDS, "data_parallel_size": 3, "cold_start": 100, "horizon": 5}
    summary = kvsim.simulate(trace, failures=f"{FAILS}+policy={policy}", **options).summary
    assert (summary["num_in_flight"], summary["num_failed"]) == (3, 0)
    assert summary["scaling"]["num_lost"] == 1


class Once(Router):
    """Serves nobody a second time."""

    takes_changes = looks_at_replicas = True
    seen: ClassVar[set[int]] = set()

    def choose(self, request: IncomingRequest, replicas: Any) -> int:
        del replicas
        if request.request_id in self.seen:
            return REJECT
        self.seen.add(request.request_id)
        return 0


@pytest.mark.parametrize("policy", ["retry", "migrate"])
def test_who_is_turned_away_after_a_failure_has_no_first_life(policy: str) -> None:
    Once.seen.clear()
    trace = Trace.from_arrays([0.0, 9.0], [8] * 2, [6] * 2)
    result = kvsim.simulate(
        trace,
        **SECONDS,
        data_parallel_size=2,
        router=f"{__name__}:Once",
        failures=f"{FAILS}+policy={policy}",
        cold_start=100,
    )
    lost, served = result.requests
    assert served["finish_reason"] == FinishReason.FINISHED
    assert lost["finish_reason"] == FinishReason.REJECTED
    assert np.isnan([lost["first_scheduled_time"], lost["first_token_time"]]).all()
    assert np.isnan(lost["finish_time"])
    assert lost["num_output_tokens"] == 0
    assert result.summary["total_output_tokens"] == 6


def test_turns_that_were_never_sent_are_not_early() -> None:
    rows = np.zeros(4, REQUESTS)
    rows["arrival_time"], rows["finish_time"] = [0, 1, 2, 3], [0.5, 5, np.nan, np.nan]
    rows["finish_reason"] = [0, 0, FinishReason.UNSENT, FinishReason.UNSENT]
    assert num_early_turns(rows, np.zeros(4, np.int64)) == (0, 1)
    rows["finish_reason"] = [0, 0, FinishReason.IN_FLIGHT, FinishReason.UNSENT]
    assert num_early_turns(rows, np.zeros(4, np.int64)) == (1, 2)


def test_weights_of_tenants_are_the_fleets() -> None:
    trace = Trace.from_arrays([0.0] * 4, [8] * 4, [4] * 4, tenant=["a", "b"] * 2)
    weights = {"tenant_weights": "a=1,b=8"}
    with pytest.raises(ValueError, match="unknown option of pool 'mixed' 'tenant_weights'"):
        kvsim.simulate(trace, **H100, pool=[{"role": "mixed", **weights}])
    with pytest.raises(ValueError, match="tenant_weights: needs scheduling_policy vtc"):
        kvsim.simulate(trace, **H100, **weights)
    pools = [{"role": "mixed", "scheduling_policy": "vtc"}]
    served = kvsim.simulate(trace, **H100, **weights, pool=pools, max_num_seqs=1)
    plain = kvsim.simulate(trace, **H100, pool=pools, max_num_seqs=1)
    assert served.requests["finish_time"].tolist() != plain.requests["finish_time"].tolist()


@pytest.mark.parametrize("workers", [1, 2])
def test_who_computes_a_short_rest_has_hit_nothing_more(workers: int) -> None:
    trace = Trace.from_arrays([0.0, 1.0, 2.0], [80] * 3, [3] * 3)
    result = kvsim.simulate(
        trace,
        **H100,
        num_prefill_workers=workers,
        num_decode_workers=workers,
        kv_recompute_threshold=100,
    )
    rows = [row for row in result.summary["replicas"] if row["role"] == "decode"]
    assert {row["prefix_cache_hit_rate"] for row in rows if row["num_requests"]} == {0.0}


@pytest.mark.parametrize(
    "options",
    [
        {"router": "conductor+ttft-slo=0.1"},
        {"router": "round-robin", "flow_control": "llm-d+queue=1+most-waiting=2"},
        {"router": "dynamo", "flow_control": "dynamo+threshold=1+most-waiting=2"},
    ],
)
def test_who_is_turned_away_behind_the_horizon_was_not_sent(options: dict[str, Any]) -> None:
    trace = workloads.fixed(prompt=4000, output=50, num_requests=60, request_rate=60.0)
    result = kvsim.simulate(trace, **H100, data_parallel_size=2, horizon=0.5, **options)
    summary = result.summary
    assert summary["num_unsent"] > 0
    assert sum(summary["rejections"].values()) == summary["num_rejected"]


def test_a_quantum_is_read_by_a_pools_own_policy() -> None:
    trace = Trace.from_arrays([0.0] * 4, [8] * 4, [4] * 4, tenant=["a", "b"] * 2)
    for policy, said in (("dlpm", 0), ("vtc", 1)):
        pools = [{"role": "mixed", "scheduling_policy": policy}]
        notes = kvsim.simulate(trace, **H100, dlpm_quantum=9, pool=pools).provenance["notes"]
        assert sum("dlpm_quantum" in note for note in notes) == said


@pytest.mark.parametrize(("sessions", "said"), [([0, 1, 0, 1], 0), ([0, 1, 2, 3], 1)])
def test_think_time_has_an_effect_though_it_keeps_all_turns_unsent(
    sessions: list[int], said: int
) -> None:
    trace = Trace.from_arrays([0.0, 0.0, 1.0, 1.0], [8] * 4, [4] * 4, session_id=sessions)
    result = kvsim.simulate(trace, **H100, session_think_time=100, horizon=50)
    assert sum("session_think_time" in note for note in result.provenance["notes"]) == said
