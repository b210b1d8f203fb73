"""Fleets whose replicas come, drain and fail: autoscalers' rules, no request doubled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples, traces

import kvsim
import workloads
from kvsim.fleet.autoscalers.dynamo_throughput import sustained_rate
from kvsim.fleet.autoscalers.hpa import recommend
from kvsim.fleet.routing.router import ROUTERS
from kvsim.fleet.scaling.autoscaler import AUTOSCALERS, Autoscaler, Load, PoolLoad, make_autoscaler
from kvsim.fleet.scaling.replica_changes import perfect_replica_hours
from kvsim.fleet.scaling.traffic import Traffic, traffic_between
from kvsim.report import plot
from kvsim.report.fleet import fleet_lines
from kvsim.results.tables import REQUESTS, FinishReason
from kvsim.testing import equal_tables
from kvsim.trace import Trace

#: A second a step, and nothing that overlaps.
SECONDS: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "gpu": "h100-sxm",
    "cost_model": "constant+seconds=1",
    "async_scheduling": False,
}
#: Routers that take changes of their fleet.
CHANGING = [
    *("round-robin", "random", "least-outstanding", "power-of-two", "least-kv", "vllm-dp"),
    *("llm-d", "llm-d+index=precise+event-delay=0.01", "dynamo", "aibrix-throughput"),
    "llm-d+index=precise+latency=1+ttft-slo=2+tpot-slo=0.5+affinity=0.5",
]


def pool(*ready: Load, now: float = 0.0, starting: int = 0, unplaced: int = 0) -> PoolLoad:
    return PoolLoad(now, ready, starting, unplaced, num_kv_tokens=1600, block_size=16)


def busy(waiting: int = 0, running: int = 0, kv: float = 0.0, queued: int = 0) -> Load:
    return Load(waiting, running, kv, queued)


def test_hpa_brings_the_mean_to_its_target() -> None:
    assert recommend(50, 50 * 90, 75, 0.1) == 60
    assert recommend(50, 50 * 82, 75, 0.1) == 50  # within a tenth
    assert recommend(50, 50 * 83, 75, 0.1) == 56
    assert recommend(50, 50 * 15, 75, 0.1) == 10
    assert recommend(0, 12, 5, 0.1) == 3


def test_hpa_at_most_doubles_or_adds_four_in_a_period() -> None:
    hpa = make_autoscaler("hpa+target=1+max=100")
    assert hpa.desired(pool(busy(waiting=50))) == 5
    assert hpa.desired(pool(*[busy(waiting=50)] * 10, now=20.0)) == 20
    steady = make_autoscaler("hpa+target=1+max=100")  # four more, then the double, every period
    sizes = [1]
    for period in range(5):
        load = [busy(waiting=100)] * sizes[-1]
        sizes.append(steady.desired(pool(*load, now=15.0 * period)))
    assert sizes == [1, 5, 10, 20, 40, 80]
    again = make_autoscaler("hpa+target=1+max=100")
    assert again.desired(pool(busy(waiting=50))) == 5
    assert again.desired(pool(*[busy(waiting=50)] * 5, now=10.0)) == 5  # of one, 10 s ago


def test_hpa_shrinks_to_the_largest_of_the_last_five_minutes() -> None:
    hpa = make_autoscaler("hpa+target=5")
    four = [busy()] * 4
    assert hpa.desired(pool(*[busy(waiting=5)] * 4, now=0.0)) == 4
    assert hpa.desired(pool(*[busy(waiting=3)] * 4, now=15.0)) == 4  # 3 now, 4 before
    assert hpa.desired(pool(*four, now=301.0)) == 3
    assert hpa.desired(pool(*four, now=616.0)) == 0


def test_wva_looks_at_the_peaks_of_a_minute() -> None:
    wva = make_autoscaler("wva")
    for time, one, other in ((15, 0.2, 0.2), (30, 0.79, 0.2), (45, 0.2, 0.2), (60, 0.2, 0.2)):
        loads = Load(0, 1, one, 0, replica=4), Load(0, 1, other, 0, replica=7)
        wva.look(pool(*loads, now=time))
    assert wva.desired(pool(*loads, now=60)) == 2  # 0.99 on one would be too much
    loads = Load(0, 1, 0.2, 0, replica=4), Load(0, 1, 0.2, 0, replica=7)
    wva.look(pool(*loads, now=90))
    assert wva.desired(pool(*loads, now=90)) == 1  # a minute after the peak
    calm = make_autoscaler("wva")
    calm.look(pool(*loads, now=60))
    assert calm.desired(pool(*loads, now=60)) == 1


@pytest.mark.long
def test_an_autoscaler_looks_more_often_than_it_decides() -> None:
    """Three wait after 15 s, and nobody at the end of the minute; wva has seen them."""
    trace = Trace.from_arrays([0.0] * 7 + [200.0], [10] * 8, [5] * 8)
    options = {**SECONDS, "max_num_seqs": 1, "cold_start": 1}
    seen = kvsim.simulate(trace, autoscaler="wva", **options).summary["scaling"]
    assert [(row["time"], row["starting"]) for row in seen["timeline"][:2]] == [(0, 0), (60, 1)]
    assert seen["peak_replicas"] == 2


def test_wva_adds_where_little_is_spare_and_takes_one_that_is_not_needed() -> None:
    wva = make_autoscaler("wva")
    assert wva.desired(pool(busy(kv=0.72), busy(kv=0.70))) == 3  # spare 0.08 and 0.10
    assert wva.desired(pool(busy(kv=0.30, waiting=3), busy(kv=0.30, waiting=2))) == 3
    assert wva.desired(pool(busy(kv=0.72), busy(kv=0.72), starting=1)) == 3  # one is coming
    assert wva.desired(pool(busy(kv=0.85), busy(kv=0.30))) == 2  # spare is the second one's
    assert wva.desired(pool(busy(kv=0.85), busy(kv=0.95))) == 3
    assert wva.desired(pool(busy(kv=0.35), busy(kv=0.34))) == 1  # 0.69 on one leaves 0.11
    assert wva.desired(pool(busy(kv=0.36), busy(kv=0.36))) == 2


def test_dynamo_load_looks_at_any_on_the_way_up_and_at_all_on_the_way_down() -> None:
    planner = make_autoscaler("dynamo-load")
    assert planner.desired(pool(busy(kv=0.9, queued=200), busy(kv=0.1))) == 3  # 0.9 + 200/1600
    assert planner.desired(pool(busy(kv=0.9), busy(kv=0.1))) == 2
    assert planner.desired(pool(busy(kv=0.5), busy(kv=0.1))) == 1
    assert planner.desired(pool(busy(kv=0.9, queued=200), starting=1)) == 2


def test_dynamo_load_measures_prefill_replicas_by_prompts_not_computed() -> None:
    def desired(*queued: int, spec: str = "dynamo-load") -> int:
        ready = [busy(kv=0.9, queued=tokens) for tokens in queued]
        return make_autoscaler(spec).desired(
            PoolLoad(0.0, ready, 0, 0, 1600, 16, max_model_len=1000, role="prefill")
        )

    assert desired(1000, 0) == 3
    assert desired(999, 0) == 2
    assert desired(99, 99) == 1
    assert desired(100, 99) == 2
    assert desired(100, 0, spec="dynamo-load+prefill-up=0.1") == 3


def test_prompts_that_are_being_computed_are_not_queued() -> None:
    trace = Trace.from_arrays([0.0, 0.0], [3000, 3000], [50, 50])
    seen: list[tuple[float, list[int]]] = []

    class Watch(Autoscaler):
        interval = 1.5

        def desired(self, pool: PoolLoad) -> int:
            seen.append((pool.now, [one.queued_tokens for one in pool.ready]))
            return pool.num_replicas

    with AUTOSCALERS.lend(Watch) as name:
        kvsim.simulate(trace, **SECONDS, autoscaler=name, max_num_batched_tokens=2048)
    # Steps of a second: 2,048 of the first; its last 952 and 1,096; the last 1,904.
    assert [queued for _, queued in seen[:3]] == [[1904], [0], [0]]


def test_an_autoscaler_replaces_nobody_before_a_failure_is_noticed() -> None:
    """A replica of two fails at 4.5, which shows at 7.5; the autoscaler looks every second."""
    trace = workloads.fixed(prompt=8, output=3, num_requests=40, request_rate=2.0)
    result = kvsim.simulate(
        trace,
        **SECONDS,
        data_parallel_size=2,
        autoscaler="hpa+min=2+interval=1+target=1000",
        failures="at+time=4.5+detection=3",
        cold_start=2.0,
    )
    scaling = result.summary["scaling"]
    lives = [(round(row["time"], 3), row["ready"], row["starting"]) for row in scaling["timeline"]]
    assert lives[:4] == [(0.0, 2, 0), (4.5, 1, 0), (7.5, 1, 1), (9.5, 2, 0)]
    seen: dict[int, int] = {}

    class Watch(Autoscaler):
        interval = 1.0

        def desired(self, pool: PoolLoad) -> int:
            seen[round(pool.now)] = len(pool.ready)
            return 2

    with AUTOSCALERS.lend(Watch) as name:
        failing = {"failures": "at+time=4.5+detection=3", "cold_start": 2.0}
        kvsim.simulate(trace, **SECONDS, data_parallel_size=2, autoscaler=name, **failing)
    assert [seen[time] for time in (4, 5, 7, 8, 10)] == [2, 2, 2, 1, 2]
    assert scaling["num_scaling_events"] == 0


@pytest.mark.parametrize(
    ("grace", "lost", "ends"), [(0.0, 1, 31.0), (4.0, 1, 35.0), (50.0, 0, 30.1)]
)
def test_who_has_not_drained_in_time_is_killed(grace: float, lost: int, ends: float) -> None:
    """The second replica is not wanted from 1 on; its request needs 30 steps of a second."""
    trace = Trace.from_arrays([0.0, 0.1], [8, 8], [40, 30])

    class One(Autoscaler):
        interval = 1.0

        def desired(self, pool: PoolLoad) -> int:
            return 1

    with AUTOSCALERS.lend(One) as name:
        spec = f"{name}+grace={grace}"
        options = {"data_parallel_size": 2, "router": "round-robin", "autoscaler": spec}
        result = kvsim.simulate(trace, **SECONDS, **options)
    told, rows = result.summary["scaling"], result.requests
    assert (told["num_failures"], told["num_lost"], told["num_scaling_events"]) == (0, lost, 1)
    assert rows["replica"].tolist() == [0, 0 if lost else 1]
    assert rows["finish_time"][1] == pytest.approx(ends, abs=1.0)
    assert result.summary["completed"] == 2
    with pytest.raises(ValueError, match="grace=-1: must be at least 0 seconds"):
        make_autoscaler("hpa+grace=-1")


def test_a_decision_counts_if_somebody_comes_or_goes() -> None:
    """Who drains keeps its place: of two places none is free, until it has left at 10."""
    trace = Trace.from_arrays([0.0, 0.1], [8, 8], [10, 30])

    class Wavering(Autoscaler):
        interval = 1.0

        def desired(self, pool: PoolLoad) -> int:
            return 1 if pool.now < 1.5 else 2

    with AUTOSCALERS.lend(Wavering) as name:
        result = kvsim.simulate(
            trace, **SECONDS, data_parallel_size=2, autoscaler=f"{name}+max=2", cold_start=1.0
        )
    assert result.summary["scaling"]["num_scaling_events"] == 2


def test_kpa_panics_and_does_not_shrink_in_panic() -> None:
    kpa = make_autoscaler("kpa+target=10+max=100")
    for step in range(18):
        assert kpa.desired(pool(busy(running=10), now=10.0 * step)) == 1
    assert kpa.desired(pool(busy(running=100), now=180.0)) == 2  # doubles at most
    calm = make_autoscaler("kpa+target=10+max=100+cooldown=0+stable-window=0+panic-window=0")
    assert calm.desired(pool(*[busy(running=2)] * 8)) == 4  # halves at most


def test_apa_takes_the_mean_of_a_replica_over_its_window() -> None:
    apa = make_autoscaler("apa+target=10+max=100")
    assert apa.desired(pool(busy(running=11), now=0.0)) == 1  # within a tenth
    assert apa.desired(pool(busy(running=16), now=10.0)) == 2  # 13.5 on average
    # 11, 16, and 8 each: 11.7 of 10 a replica, where the total of now asks for no more.
    assert apa.desired(pool(*[busy(running=8)] * 2, now=20.0)) == 3
    assert apa.desired(pool(*[busy(running=90)] * 3, now=90.0)) == 6  # doubles at most
    idle = [busy(running=1)] * 6
    assert apa.desired(pool(*idle, now=200.0)) == 6  # it grew 110 s ago
    assert apa.desired(pool(*idle, now=400.0)) == 3  # halves at most


def test_llumnix_counts_free_blocks_per_request() -> None:
    llumnix = make_autoscaler("llumnix")
    assert llumnix.desired(pool(busy(running=9, kv=0.1))) == 2 - 1  # 90 blocks by 9: 10
    assert llumnix.desired(pool(busy(running=10, kv=0.1))) == 2
    assert llumnix.desired(pool(busy(running=1), busy(running=0))) == 1  # 100 would be left
    assert llumnix.desired(pool(busy(running=2), busy(running=0))) == 2  # 50


def test_a_cold_start_is_the_sum_of_its_parts() -> None:
    """16.06 GB of weights at 8 GB/s are 2.0 s; the next replica of the same size is as late."""
    trace = workloads.fixed(prompt=8, output=3, num_requests=40, request_rate=2.0)
    parts = "parts+node=1+image=2+compile=3+graphs=4+first-request=5+bandwidth=8"
    result = kvsim.simulate(
        trace, **SECONDS, failures="at+time=4.5+detection=1", cold_start=parts, horizon=100.0
    )
    rows = result.summary["scaling"]["timeline"]
    begins = next(row["time"] for row in rows if row["starting"])
    ready = next(row["time"] for row in rows if row["time"] > begins and row["ready"])
    assert ready - begins == pytest.approx(15 + 2.0, abs=0.02)
    for wrong, said in (
        ("-1", "must be seconds, at least 0, or parts"),
        ("nan", "must be seconds, at least 0, or parts"),
        ("warm", "must be seconds, at least 0, or parts"),
        ("parts+disk=3", "cold start 'parts' has no parameter 'disk'"),
        ("parts+node=-3", "node"),
    ):
        with pytest.raises(ValueError, match=said):
            kvsim.simulate(trace, **SECONDS, cold_start=wrong)
    assert kvsim.simulate(trace, **SECONDS, cold_start="30").config.cold_start == 30.0


def test_a_pool_grows_after_its_cold_start_and_shrinks_when_drained() -> None:
    trace = workloads.fixed(prompt=16, output=20, num_requests=40, request_rate=2.0)
    result = kvsim.simulate(
        trace,
        **SECONDS,
        max_num_seqs=4,
        autoscaler="hpa+target=2+max=3+interval=5+window=0",
        cold_start=7.0,
        router="least-outstanding",
    )
    scaling = result.summary["scaling"]
    times = {(row["ready"], row["starting"]): row["time"] for row in scaling["timeline"][::-1]}
    assert times[1, 2] == 5.0
    assert times[3, 0] == 12.0
    assert scaling["peak_replicas"] == 3
    first = result.requests["first_scheduled_time"][result.requests["replica"] == 2].min()
    assert first >= trace.arrival_time[0] + 12.0
    lives = [row["lifetime"] for row in result.summary["replicas"]]
    assert lives == [160.0, 120.0, 120.0]  # the oldest stays
    assert result.summary["gpu_hours"] == pytest.approx(sum(lives) / 3600)
    assert result.summary["completed"] == 40


def test_requests_of_a_failed_replica_begin_anew_once_it_is_noticed() -> None:
    trace = Trace.from_arrays([0.0, 0.0, 5.0], [8, 8, 8], [20, 20, 2])
    options = {**SECONDS, "data_parallel_size": 2, "cold_start": 100.0}
    planned = "at+time=4.5+replica=1+detection=3"
    rows = kvsim.simulate(trace, **options, failures=planned, router="round-robin").requests
    # The second one is lost at 4.5, and sent to the first replica at 7.5.
    assert rows["finish_time"].tolist() == [20.0, 28.0, 7.0]
    assert rows["replica"].tolist() == [0, 0, 0]
    assert rows["arrival_time"].tolist() == [0.0, 0.0, 5.0]
    lost = kvsim.simulate(trace, **options, failures=planned + "+policy=fail")
    assert lost.requests["finish_reason"].tolist() == [0, FinishReason.FAILED, 0]
    assert lost.requests["finish_time"][1] == 7.5
    scaling = lost.summary["scaling"]
    assert (scaling["num_failures"], scaling["num_lost"]) == (1, 1)


@pytest.mark.long
def test_a_request_that_begins_anew_has_not_ended() -> None:
    """Its client waits for it, and not only for those that end beside it at 20.

    What a client sends after an answer misses the step that is scheduled at that time.
    """
    trace = Trace.from_arrays([0.0] * 4, [8] * 4, [20, 20, 30, 2])
    rows = kvsim.simulate(
        trace,
        **SECONDS,
        data_parallel_size=2,
        cold_start=100.0,
        router="round-robin",
        max_concurrency=2,
        failures="at+time=4.5+replica=1+detection=3",
    ).requests
    assert rows["first_scheduled_time"].tolist() == [0.0, 8.0, 21.0, 29.0]


def test_what_is_sent_to_a_dead_replica_is_lost_until_somebody_notices() -> None:
    trace = Trace.from_arrays([0.0, 0.0, 5.0, 5.0], [8] * 4, [20, 20, 2, 2])
    options = {**SECONDS, "data_parallel_size": 2, "cold_start": 100.0}
    result = kvsim.simulate(
        trace, **options, failures="at+time=4.5+replica=1+detection=3+policy=fail"
    )
    assert result.requests["finish_reason"].tolist() == [0, FinishReason.FAILED] * 2
    assert result.summary["scaling"]["num_lost"] == 2


def test_requests_wait_where_no_replica_is_left() -> None:
    trace = Trace.from_arrays([0.0, 12.0], [8, 8], [3, 3])
    planned = "at+time=10+replica=0+detection=1"
    rows = kvsim.simulate(trace, **SECONDS, failures=planned, cold_start=20.0).requests
    assert rows["first_scheduled_time"].tolist() == [0.0, 31.0]
    assert rows["replica"].tolist() == [0, 1]


def test_an_autoscaler_ends_with_the_horizon() -> None:
    trace = workloads.fixed(prompt=16, output=1000, num_requests=4, request_rate=1.0)
    result = kvsim.simulate(trace, **SECONDS, autoscaler="hpa+target=1", horizon=50.0)
    assert result.requests["finish_reason"].tolist() == [FinishReason.IN_FLIGHT] * 4
    assert result.summary["duration"] < 60


@pytest.mark.long
def test_nothing_fails_after_the_horizon() -> None:
    """Who fails at a rate would fail for ever: requests that were cut off never end."""
    trace = workloads.fixed(prompt=16, output=1000, num_requests=4, request_rate=1.0)
    options = {**SECONDS, "data_parallel_size": 2, "horizon": 50.0, "cold_start": 1.0}
    result = kvsim.simulate(trace, **options, failures="rate+gpu-hours=0.002+detection=1")
    assert result.summary["scaling"]["num_failures"] > 0
    assert result.summary["duration"] < 60
    for time, number in ((49.5, 1), (50.0, 0)):
        planned = f"at+time={time}+replica=0"
        assert (
            kvsim.simulate(trace, **options, failures=planned).summary["scaling"]["num_failures"]
            == number
        )


@pytest.mark.long
def test_failures_at_a_rate_come_about_that_often() -> None:
    trace = workloads.fixed(prompt=8, output=2, num_requests=2000, request_rate=0.2)
    result = kvsim.simulate(
        trace,
        **SECONDS,
        data_parallel_size=4,
        failures="rate+gpu-hours=0.25+detection=1",
        cold_start=9.0,
        router="least-outstanding",
    )
    expected = 4 * trace.duration / 900.0
    number = result.summary["scaling"]["num_failures"]
    assert number == pytest.approx(expected, abs=4 * expected**0.5)
    assert result.summary["completed"] == 2000


@pytest.mark.long
@examples(60)
@given(trace=traces(max_requests=30), data=st.data())
def test_every_request_ends_once_whatever_fails(trace: Trace, data: st.DataObject) -> None:
    draw = data.draw
    options: dict[str, Any] = {
        **SECONDS,
        "cost_model": "constant+seconds=0.02",
        "data_parallel_size": draw(st.integers(1, 3)),
        "num_gpu_blocks_override": draw(st.integers(8, 60)),
        "max_model_len": draw(st.sampled_from([60, 200])),
        "max_num_seqs": draw(st.integers(1, 8)),
        "async_scheduling": draw(st.booleans()),
        "router": draw(st.sampled_from(CHANGING)),
        "max_concurrency": draw(st.sampled_from([None, 3])),
        "session_think_time": draw(st.sampled_from([None, 0.1])),
        "cold_start": draw(st.sampled_from([0.0, 0.3])),
        "failures": draw(
            st.sampled_from(
                [
                    None,
                    "rate+gpu-hours=0.0002+detection=0.1",
                    "rate+gpu-hours=0.0002+detection=0+policy=fail",
                    "rate+gpu-hours=0.0002+detection=0.1+policy=migrate",
                    "at+time=0.3+replica=0+detection=0.2+policy=migrate",
                    "at+time=0.3+replica=0+detection=0.2",
                ]
            )
        ),
    }
    if draw(st.booleans()):
        name = draw(
            st.sampled_from(["hpa+target=1", "wva", "dynamo-load", "kpa", "apa", "llumnix"])
        )
        options["autoscaler"] = f"{name}+max=4+interval=0.2"
    trace = trace.with_num_samples(1)
    python = kvsim.simulate(trace, **options, backend="python", check_invariants=True)
    compiled = kvsim.simulate(trace, **options, backend="compiled")
    assert equal_tables(python.requests, compiled.requests)
    assert equal_tables(python.memory, compiled.memory)
    assert python.summary == compiled.summary
    reasons = python.requests["finish_reason"]
    allowed = {FinishReason.FINISHED, FinishReason.REJECTED}
    if (options["failures"] or "").startswith("rate") and "policy" in options["failures"]:
        allowed.add(FinishReason.FAILED)
    assert set(reasons.tolist()) <= allowed
    done = reasons == FinishReason.FINISHED
    longest = options["max_model_len"] - trace.num_prompt_tokens
    got = python.requests["num_output_tokens"]
    assert np.array_equal(got[done], np.minimum(trace.num_output_tokens, longest)[done])
    assert (python.requests["finish_time"][done] >= python.requests["arrival_time"][done]).all()
    assert (python.requests["first_token_time"] <= python.requests["finish_time"])[done].all()
    if not {FinishReason.FAILED, FinishReason.REJECTED} & set(reasons.tolist()):
        retried = options["failures"] is not None and "migrate" not in options["failures"]
        number = python.token_gaps["count"].sum()
        assert number == (got - 1).sum() or (retried and number > (got - 1).sum())


@pytest.mark.long
def test_a_fleet_that_could_change_and_does_not_is_the_same_run() -> None:
    trace = workloads.sharegpt(num_requests=80, request_rate=30, seed=1)
    for router in CHANGING:
        options = {**SECONDS, "cost_model": "roofline", "data_parallel_size": 3, "router": router}
        plain = kvsim.simulate(trace, **options)
        never = kvsim.simulate(trace, **options, failures="at+time=100000")
        assert equal_tables(plain.requests, never.requests), router
        same = set(plain.summary) - {"scaling"}
        changed = {key for key in same if plain.summary[key] != never.summary[key]}
        assert changed <= {"kv_cache", "gpu_hours", "replicas", "routing"}, (router, changed)


def test_routers_say_whether_they_take_changes() -> None:
    taking = {n for n in ROUTERS.names() if getattr(ROUTERS.get(n), "takes_changes", False)}
    assert taking == {name.partition("+")[0] for name in CHANGING}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"autoscaler": "more"}, "unknown autoscaler 'more'"),
        ({"autoscaler": "hpa+max=0"}, "max=0: must be a whole number from 1 to 4096"),
        ({"autoscaler": "hpa+min=3+max=2"}, "min=3 is more than max=2"),
        ({"autoscaler": "hpa+interval=-1"}, "must be at least 0.001 seconds"),
        ({"autoscaler": "hpa+interval=1e-9"}, "must be at least 0.001 seconds"),
        ({"autoscaler": "hpa+min=2"}, "starts with 1 replicas: must be 2 to 8"),
        (
            {"autoscaler": "hpa", "router": "chwbl"},
            "router 'chwbl' needs a constant number of replicas",
        ),
        ({"failures": "often"}, "unknown failures 'often'"),
        ({"failures": "at+replica=3"}, "replica=3: must be below 1"),
        ({"failures": "at+limit=3"}, "failures: limit=3: is not read with policy=retry"),
        ({"failures": "rate+max-seq-len=9+policy=fail"}, "max-seq-len=9: is not read with"),
        ({"failures": "at+lease=3"}, "lease need disaggregated prefill"),
        ({"failures": "at+policy=recompute"}, "lease need disaggregated prefill"),
        ({"failures": "at", "scheduler": "orca", "allocator": "paged"}, "cannot end requests"),
    ],
)
def test_a_wrong_wish_is_refused_in_one_line(options: dict[str, Any], said: str) -> None:
    trace = workloads.fixed(prompt=8, output=2, num_requests=2, request_rate=1.0)
    given_ = {k: v for k, v in SECONDS.items() if k != "async_scheduling"} | options
    with pytest.raises(ValueError, match=said):
        kvsim.simulate(trace, **given_)


def test_dynamo_sla_looks_at_what_a_prompt_would_wait() -> None:
    planner = make_autoscaler("dynamo-sla+ttft=1.5+itl=0.05")

    def load(queued: int, running: int = 0) -> Load:
        return Load(0, running, 0.1 * bool(running), queued, mean_prompt_tokens=100.0)

    def asked(*ready: Load) -> int:
        found = PoolLoad(0.0, ready, 0, 0, 1600, 16, 100.0, lambda number, _: 0.01 * number)
        return planner.desired(found)

    assert asked(load(60), load(60)) == 3  # 0.6 s and its own second
    assert asked(load(60), load(40)) == 2  # not on all
    assert asked(load(20), load(10)) == 2  # with one fewer 0.4 s, and 0.8 * 0.5 may be used
    assert asked(load(10), load(10)) == 1
    assert asked(load(0, running=6)) == 2  # steps of 60 ms
    assert asked(load(0, running=3), load(0)) == 2  # 60 ms with one fewer


def needed(planner: Autoscaler, now: float, *sent: float, hits: float = 0.0) -> int:
    """Ask about prompts of 100 tokens, a second each, and 10 tokens of output."""
    table = np.zeros(len(sent), REQUESTS)
    table["num_prompt_tokens"], table["num_output_tokens"] = 100, 10
    table["num_cached_tokens"] = 100 * hits
    table["finish_time"] = now
    found = PoolLoad(
        *(now, [busy(), busy()], 0, 0, 1600, 16, 100.0, lambda number, _: 0.01 * number),
        max_num_seqs=256,
        traffic=lambda seconds: traffic_between(np.array(sent), table, now - seconds, now),
    )
    return planner.desired(found)


def test_dynamo_throughput_divides_requests_by_what_a_replica_sustains() -> None:
    """Five decode at once within 50 ms, so 10 tokens take 0.1 s of a replica, a prompt 1 s."""
    planner = make_autoscaler("dynamo-throughput+interval=10")
    times = [10.0 + k for k in range(1, 11)]
    assert needed(planner, 20.0, *times) == 2  # 1 a second, 0.909 by one
    assert needed(planner, 20.0, *times[:9]) == 1
    assert needed(planner, 20.0, *times, hits=0.5) == 1  # 0.6 s each
    assert needed(planner, 20.0, *times, *times) == 3
    assert needed(planner, 40.0, *times) == 2  # nobody came: as many as there are
    slow = sustained_rate(
        PoolLoad(0.0, [], 0, 0, 315, 16, 100.0, lambda *_: 9.0, max_num_seqs=9),
        Traffic(1, 100.0, 10.0, 0.0),
        itl=9.0,
    )
    assert slow == pytest.approx(1 / (1 + 10 * 9.0 / 3))  # three contexts of 105 fit


def test_dynamo_sla_keeps_what_throughput_says() -> None:
    """Nothing waits, so load alone lets one go; 30 requests in 10 s need four."""
    planner = make_autoscaler("dynamo-sla+ttft=9+throughput-interval=10")
    times = [k / 3 for k in range(1, 31)]
    assert needed(planner, 5.0, *times) == 1  # not asked yet
    assert needed(planner, 10.0, *times) == 4
    assert needed(planner, 15.0, *times) == 4
    assert needed(planner, 20.0, *times) == 4  # nobody came since: still the last that is known
    assert needed(planner, 30.0, *times, 25.0) == 1


def test_a_pool_grows_by_its_traffic() -> None:
    """Twenty steps of a second for 32 at once: 1.6 a second, of five; none has ended by 20 s."""
    trace = workloads.fixed(prompt=16, output=20, num_requests=200, request_rate=5.0)
    planner = "dynamo-throughput+interval=5+itl=2"
    result = kvsim.simulate(trace, autoscaler=planner, max_num_seqs=32, **SECONDS)
    changes = result.summary["scaling"]["timeline"]
    assert {one["ready"] for one in changes if one["time"] < 20} == {1}
    assert {one["starting"] for one in changes if one["time"] == 20} == {1, 2, 3}
    assert result.summary["completed"] == 200


@pytest.mark.long
def test_a_request_goes_on_elsewhere_with_the_tokens_it_has() -> None:
    """A second a step: token k at k s; at 4.5 s it has four, at 6.5 s it begins to go on.

    The other replica computes prompt and four tokens in one step, and gives the fifth at 7.5 s.
    """
    trace = Trace.from_arrays([0.0, 0.0], [10, 10], [8, 8])
    planned = "at+time=4.5+replica=0+detection=2+policy=migrate"
    options: dict[str, Any] = SECONDS | {
        "data_parallel_size": 2,
        "router": "round-robin",
        "cold_start": 100,
    }
    for backend in ("python", "compiled"):
        result = kvsim.simulate(trace, failures=planned, backend=backend, **options)
        row, other = result.requests
        assert (row["first_token_time"], row["finish_time"]) == (1.0, 11.0)
        assert (row["num_output_tokens"], row["replica"]) == (8, 1)
        assert row["first_scheduled_time"] == 0.0
        assert other["finish_time"] == 8.0
        scaling = result.summary["scaling"]
        assert (scaling["num_migrations"], scaling["num_lost"]) == (1, 1)
        assert result.summary["total_output_tokens"] == 16
        told = " ".join(fleet_lines(result.summary))
        assert (
            "1 failed; 1 requests lost their replica, 1 of them resumed on another replica" in told
        )
        gaps = result.token_gaps
        assert gaps["count"].sum() == 14
        assert gaps["count"][gaps["gap"] > 2].tolist() == [1]  # from 4 to 8 s


@pytest.mark.parametrize(("longest", "moved"), [(None, 2), (114, 2), (113, 1), (14, 1), (13, 0)])
def test_who_is_too_long_does_not_migrate(longest: int | None, moved: int) -> None:
    trace = Trace.from_arrays([0.0, 0.0], [10, 110], [8, 8])
    planned = "at+time=4.5+detection=2+policy=migrate"  # both have four tokens then
    planned += "" if longest is None else f"+max-seq-len={longest}"
    result = kvsim.simulate(trace, failures=planned, cold_start=1, **SECONDS)
    assert result.summary["scaling"]["num_migrations"] == moved
    assert result.summary["completed"] == moved


@pytest.mark.long
def test_a_request_migrates_only_so_often() -> None:
    trace = Trace.from_arrays([0.0] * 4, [10] * 4, [30] * 4)
    often = "rate+gpu-hours=0.002+detection=0+policy=migrate"
    ended = {}
    for limit in (0, 1, 50):
        result = kvsim.simulate(
            trace, failures=f"{often}+limit={limit}", data_parallel_size=2, seed=3, **SECONDS
        )
        reasons = result.requests["finish_reason"]
        ended[limit] = int((reasons == FinishReason.FINISHED).sum())
        assert set(reasons) <= {FinishReason.FINISHED, FinishReason.FAILED}
        moved = result.summary["scaling"]["num_migrations"]
        assert moved <= 4 * limit
        done = result.requests[reasons == FinishReason.FINISHED]
        assert (done["num_output_tokens"] == 30).all()
    lost = kvsim.simulate(
        trace,
        failures=often.replace("migrate", "fail"),
        data_parallel_size=2,
        seed=3,
        **SECONDS,
    )
    assert ended[0] == (lost.requests["finish_reason"] == FinishReason.FINISHED).sum()
    assert ended[0] <= ended[1] <= ended[50] == 4


def test_a_day_has_a_peak_at_noon_and_keeps_its_rate() -> None:
    trace = workloads.generate(
        "fixed+prompt=1+output=1+arrival=diurnal+trough=0.25",
        num_requests=43_200,
        request_rate=0.5,
        seed=0,
    )
    hours = np.bincount((trace.arrival_time % 86_400 // 3600).astype(int), minlength=24)
    assert trace.request_rate == pytest.approx(0.5, rel=0.01)
    night, noon = hours[[0, 23]].mean(), hours[[11, 12]].mean()
    assert night / noon == pytest.approx(0.25, abs=0.06)


def test_the_hours_of_a_perfect_pool_follow_its_arrivals() -> None:
    """The best minute of a replica completes two; minutes bring three, none and, cut off, one."""
    table = np.zeros(4, REQUESTS)
    table["arrival_time"] = [10.0, 11.0, 12.0, 130.0]
    table["finish_time"] = [20.0, 21.0, 22.0, 131.0]
    table["replica"] = [0, 0, 1, 0]
    assert perfect_replica_hours(table, 0.0) == pytest.approx((2 * 60 + 0 + 1) / 3600)
    assert perfect_replica_hours(table, 3 / 60) == pytest.approx((60 + 1) / 3600)
    table["finish_reason"] = FinishReason.REJECTED
    assert perfect_replica_hours(table, 0.0) == 0.0


def test_the_hours_of_a_perfect_pool_do_not_grow_with_an_idle_fleet() -> None:
    trace = workloads.fixed(prompt=256, output=64, num_requests=300, request_rate=1.0)

    def serve(number: int) -> dict[str, Any]:
        options = {"data_parallel_size": number, "autoscaler": f"hpa+min={number}"}
        return kvsim.simulate(trace, model="llama-3.1-8b", gpu="h100-sxm", **options).summary

    alone, idle = serve(1), serve(8)
    assert idle["gpu_hours"] > 7 * alone["gpu_hours"]
    bounds = [one["scaling"]["gpu_hours_perfect"] for one in (alone, idle)]
    assert bounds[0] == pytest.approx(bounds[1], rel=0.01)
    assert 0.9 * alone["gpu_hours"] < bounds[0] <= alone["gpu_hours"]


@pytest.mark.long
def test_the_figure_of_a_fleet_has_a_panel_for_what_there_is() -> None:
    trace = workloads.fixed(prompt=64, output=8, num_requests=30, request_rate=4.0)
    apart = kvsim.simulate(trace, num_prefill_workers=1, num_decode_workers=2)
    assert len(plot.fleet(apart).axes) == 4  # queues, KV and its scale, transfers
    scaled = kvsim.simulate(trace, autoscaler="hpa+target=1+interval=1", cold_start=1.0)
    assert len(plot.fleet(scaled).axes) == 4  # replicas in place of transfers
    plain = kvsim.simulate(trace, data_parallel_size=2)
    assert len(plot.fleet(plain).axes) == 3
    shared = workloads.shared_prefix(num_requests=20, request_rate=4.0, seed=0)
    assert len(plot.fleet(kvsim.simulate(shared, data_parallel_size=2)).axes) == 4  # and hits
