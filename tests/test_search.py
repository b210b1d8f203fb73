"""The search for a rate: against brute force and closed forms, and its errors of one line."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import workloads
from kvsim.cli import main
from kvsim.config import Config, RunConfig
from kvsim.study.backlog import Backlog
from kvsim.study.binding import what_binds
from kvsim.study.early_stop import lower_bounds
from kvsim.study.search import Bracket, fewest, highest_rate, interval
from kvsim.study.slo import Slo, aggregates, read_predicate, read_slo
from kvsim.study.trial import Trial, Trials
from kvsim.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable

#: Steps of 0.1 s with at most four requests in them.
TINY: dict[str, Any] = {
    "model": "opt-125m",
    "gpu": "a100-40gb",
    "cost_model": "constant+seconds=0.1",
    "max_num_seqs": 4,
    "async_scheduling": False,
    "num_gpu_blocks_override": 1000,
}


def trials(slo: Slo, workload: str, num_requests: int, **options: Any) -> Trials:
    def requests(rate: float, seed: int) -> Trace:
        return workloads.generate(workload, num_requests=num_requests, request_rate=rate, seed=seed)

    return Trials(Config.build(**{**TINY, **options}), requests, slo)


def slo(*predicates: str, attain: float | None = None, **goodput: float) -> Slo:
    return read_slo(predicates, goodput, attain)


# Targets


def test_targets_are_read() -> None:
    read = slo("p99-ttft-ms <= 1e3", "output_throughput>=5", attain=0.9, ttft=1000.0)
    assert [str(one) for one in read.predicates] == ["p99_ttft_ms<=1000", "output_throughput>=5"]
    assert read.attain == 0.9
    assert slo(ttft=1.0).attain == 0.95
    assert read.needs_many
    assert not slo("mean_tpot_ms<=3").needs_many


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("p99_ttfs_ms<=3", "unknown metric 'p99_ttfs_ms'; did you mean p99_ttft_ms"),
        ("p99_ttft_ms<3", "< is neither <= nor >="),
        ("p99_ttft_ms=3", "= is neither <= nor >="),
        ("p99_ttft_ms", "must be METRIC<=NUMBER or METRIC>=NUMBER"),
        ("p99_ttft_ms<=", "'' is not a number"),
        ("p99_ttft_ms<=fast", "'fast' is not a number"),
        ("p99_ttft_ms<=inf", "must be finite"),
        ("goodput_attainment>=0.9", "goodput is per request; give --goodput"),
        ("kv_cache<=1", "unknown metric 'kv_cache'"),
    ],
)
def test_a_wrong_predicate_is_told_in_one_line(text: str, told: str) -> None:
    with pytest.raises(ValueError, match="--slo") as error:
        read_predicate(text)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_attain_belongs_to_goodput() -> None:
    with pytest.raises(ValueError, match="--attain needs --goodput"):
        read_slo(["mean_tpot_ms<=3"], None, 0.9)
    with pytest.raises(ValueError, match="above 0 and at most 1"):
        read_slo([], {"ttft": 1.0}, 95.0)
    with pytest.raises(ValueError, match="no target"):
        read_slo([], None, None)


def test_every_aggregate_is_a_number_of_the_summary() -> None:
    assert {"p99_ttft_ms", "mean_itl_ms", "request_throughput"} <= set(aggregates())
    assert not {"kv_cache", "request_goodput"} & set(aggregates())


def test_what_is_undefined_misses() -> None:
    assert read_predicate("mean_tpot_ms<=3").margin(None) == -math.inf
    assert read_predicate("mean_tpot_ms<=4").margin(3.0) == 0.25
    assert read_predicate("output_throughput>=4").margin(3.0) == -0.25


# The search


def test_a_bracket_closes_around_a_threshold() -> None:
    for threshold in np.geomspace(0.01, 1e4, 30).tolist():
        low, high = highest_rate(lambda rate, t=threshold: rate <= t, 1.0)
        assert low <= threshold < high
        assert high - low <= 0.025 * high


def test_a_search_gives_up() -> None:
    assert highest_rate(lambda rate: True, 1.0, max_doublings=3) == (8.0, math.inf)
    assert highest_rate(lambda rate: False, 1.0, max_doublings=3) == (0.0, 0.125)


def test_fewest_replicas() -> None:
    for number in range(1, 9):
        assert fewest(lambda n, number=number: n >= number, 8) == number
    assert fewest(lambda n: n >= 9, 8) is None
    asked: list[int] = []
    fewest(lambda n: bool(asked.append(n)) or n >= 6, 7)
    assert max(asked) <= 7


def test_an_interval_holds_what_every_seed_says() -> None:
    thresholds = {1: 9.0, 2: 11.0}
    found = interval(lambda rate, seed: rate <= thresholds[seed], Bracket(10.0, 10.25), 3)
    assert found.low <= 9.0
    assert found.high > 11.0
    assert interval(lambda rate, seed: False, Bracket(10.0, 10.25), 1) == (10.0, 10.25)


SLOS = (
    slo("p99_ttft_ms<=400"),
    slo("mean_tpot_ms<=101", "mean_ttft_ms<=300"),
    slo("p90_e2el_ms<=2500"),
    slo(attain=0.9, ttft=300.0),
    slo("median_ttft_ms<=900", attain=0.5, e2el=2000.0),
)


@pytest.mark.long
@pytest.mark.parametrize("target", SLOS, ids=str)
def test_a_search_finds_what_brute_force_finds(target: Slo) -> None:
    workload = "fixed+prompt=20+output=5"
    grid = np.linspace(0.2, 12.0, 40).tolist()
    every = trials(target, workload, 150)
    best = max(rate for rate in grid if every.passes(rate))
    low, high = highest_rate(trials(target, workload, 150).passes, 1.0)
    after = next((rate for rate in grid if rate > best), math.inf)
    assert low < after
    assert high > best
    assert high - low <= 0.025 * high


@pytest.mark.long
def test_a_looser_target_never_gets_a_lower_rate() -> None:
    rates = []
    for limit in (200, 250, 300, 400, 600, 900, 2000):
        tried = trials(slo(f"p99_ttft_ms<={limit}"), "sharegpt", 60, max_num_seqs=16)
        rates.append(highest_rate(tried.passes, 0.25).low)
    assert rates == sorted(rates)
    assert rates[0] < rates[-1]


@pytest.mark.long
def test_capacity_of_constant_steps_is_known() -> None:
    """Four requests of one token per step of 0.1 s: 40 requests/s, whatever the target."""
    for limit in (500, 2000):
        tried = trials(
            slo(f"p99_ttft_ms<={limit}"), "fixed+prompt=8+output=1+arrival=constant", 2000
        )
        low, high = highest_rate(tried.passes, 1.0)
        assert low <= 41.0  # 2.5 % of the bracket
        assert high >= 40.0


@pytest.mark.long
def test_an_unstable_rate_on_a_short_trace_is_not_taken() -> None:
    """100 requests at twice the capacity of 40/s are all served within 2.5 s."""
    tried = trials(slo("p99_ttft_ms<=60000"), "fixed+prompt=8+output=1+arrival=constant", 200)
    run = tried.whole(80.0)
    assert run.margins["p99_ttft_ms<=60000"] > 0.9
    assert "backlog" in run.missed
    assert highest_rate(tried.passes, 1.0).low < 50


def test_a_trace_that_cannot_fill_the_batch_proves_nothing() -> None:
    tried = trials(slo("p99_ttft_ms<=60000"), "fixed+prompt=8+output=200", 50, max_num_seqs=64)
    run = tried.whole(10.0)  # 5 s of arrivals, 20 s of stay
    assert run.missed == ("long trace",)
    assert run.backlog is not None
    assert run.backlog.enough_requests >= 400


def test_rejecting_wins_nothing() -> None:
    """Requests that the router turns away miss a bound on aggregates; hopeless ones do not."""
    few = slo("p99_ttft_ms<=60000")
    tried = trials(few, "fixed+prompt=3000+output=2", 20)  # longer than OPT's 2,048
    assert "unserved" not in tried.whole(1.0).missed
    config = Config.build(**TINY)
    cut = Trials(
        config.model_copy(update={"horizon": 1.0}),
        lambda rate, seed: workloads.generate(
            "fixed+prompt=8+output=2", num_requests=40, request_rate=rate, seed=seed
        ),
        few,
    )
    assert "unserved" in cut.whole(1.0).missed


# What can only fail


def test_lower_bounds_never_exceed_what_comes() -> None:
    from kvsim.fleet.simulate import run

    config = Config.build(**TINY)
    trace = workloads.generate("sharegpt", num_requests=60, request_rate=2.0, seed=3)
    begin = float(trace.arrival_time[0])
    whole = lower_bounds(run(config, trace).requests, trace.num_output_tokens, math.inf, 0.0)
    for cut in (2.0, 10.0, 25.0, 200.0):
        table = run(config.model_copy(update={"horizon": cut}), trace).requests
        bounds = lower_bounds(table, trace.num_output_tokens, begin + cut, 0.0)
        for name, values in bounds.items():
            known = ~np.isnan(values) & ~np.isnan(whole[name])  # at max_model_len: one token
            assert (values[np.isnan(whole[name]) & ~np.isnan(values)] == 0).all()
            assert (values[known] <= whole[name][known] + 1e-6).all(), name


@pytest.mark.long
def test_only_what_must_fail_is_stopped_early() -> None:
    for target in SLOS:
        for rate in (4.0, 8.0, 16.0):
            tried = trials(target, "fixed+prompt=20+output=5", 150)
            trace = workloads.generate(
                "fixed+prompt=20+output=5", num_requests=150, request_rate=rate, seed=0
            )
            if tried._fails_by_half(trace):
                assert not tried.whole(rate).met
    tried = trials(SLOS[0], "fixed+prompt=20+output=5", 150)
    assert tried.passes(1.0)
    assert not tried.passes(64.0)
    assert tried.runs[64.0, 0].summary is None


# What binds


def test_what_binds_is_read_off_the_failing_run() -> None:
    def binds(missed: str, **summary: Any) -> str:
        usual: dict[str, Any] = {
            "load": {"saturated": False, "binding": "arrivals"},
            "num_preemptions": 0,
            "completed": 100,
            "num_steps": 1000,
            "kv_cache": {"num_allocation_failures": summary.pop("failures", 0)},
            "kv_transfers": None,
            "mean_ttft_ms": 100.0,
            "mean_e2el_ms": 1000.0,
            "pools": None,
            "replicas": [{"peak_running": 3}],
            "total_output_tokens": 1000,
        }
        run = Trial(1.0, (missed,), {}, {}, {**usual, **summary}, None)
        return what_binds(run, 4).cause

    assert binds("p99_ttft_ms<=1") == "prefill"
    assert binds("backlog") == "prefill"
    assert binds("mean_tpot_ms<=1") == "decode"
    assert binds("p99_e2el_ms<=1") == "decode"
    assert binds("p99_e2el_ms<=1", mean_e2el_ms=120.0) == "prefill"
    assert binds("p99_ttft_ms<=1", replicas=[{"peak_running": 4}]) == "decode"
    assert binds("mean_tpot_ms<=1", num_preemptions=1) == "kv_cache"
    assert binds("p99_ttft_ms<=1", failures=10) == "kv_cache"
    assert binds("p99_ttft_ms<=1", failures=9) == "prefill"
    assert binds("p99_ttft_ms<=1", kv_transfers={"mean_ms": 60.0}) == "link"
    pools = [{"role": "decode", "mean_busy": 0.9}, {"role": "prefill", "mean_busy": 0.5}]
    assert binds("backlog", pools=pools) == "decode"
    assert binds("backlog", pools=[{**pools[0], "mean_busy": 0.1}, pools[1]]) == "prefill"
    load = {"offered_request_rate": 9.0, "served_request_rate": 3.0, "saturated": True}
    assert binds("backlog", load={**load, "binding": "max_num_seqs"}) == "max_num_seqs"


def test_a_backlog_grows_beyond_noise() -> None:
    assert Backlog(50.0, 100.0, 200, is_long=True, enough_requests=0).grows
    assert not Backlog(50.0, 70.0, 200, is_long=True, enough_requests=0).grows
    assert not Backlog(0.0, 3.0, 200, is_long=True, enough_requests=0).grows


# The command

TINY_FLAGS = [
    *("--model", "opt-125m", "--gpu", "a100-40gb", "--cost-model", "constant+seconds=0.1"),
    *("--max-num-seqs", "4", "--num-requests", "40", "--workload", "fixed+prompt=20+output=5"),
]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = 0
        try:
            main(["search", *arguments])
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.mark.long
def test_the_answer_is_what_run_would_serve(call) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = call(*TINY_FLAGS, "--slo", "mean_ttft_ms<=300", "--json", "-")
    answer = json.loads(out)
    assert code == 0
    rate = answer["request_rate"]
    low, high = answer["interval"]["low"], answer["interval"]["high"]
    assert low <= rate <= high
    assert answer["interval"]["replications"] == 3
    assert answer["command"].startswith("vllm serve facebook/opt-125m --tensor-parallel-size 1")
    assert answer["values"]["mean_ttft_ms"] <= 300
    runs = answer["evaluated"][0]["runs"]
    assert all(run["met"] is not bool(run["missed"]) for run in runs)


@pytest.mark.long
def test_run_and_search_agree_on_values(call, capsys) -> None:  # type: ignore[no-untyped-def]
    answer = json.loads(call(*TINY_FLAGS, "--slo", "mean_ttft_ms<=300", "--json", "-")[1])
    main(["run", *TINY_FLAGS, "--request-rate", str(answer["request_rate"]), "--json", "-"])
    summary = json.loads(capsys.readouterr().out)
    assert summary["mean_ttft_ms"] == answer["values"]["mean_ttft_ms"]


@pytest.mark.long
def test_the_sheet_is_a_few_lines(call) -> None:  # type: ignore[no-untyped-def]
    code, out, err = call(*TINY_FLAGS, "--slo", "p99_ttft_ms<=400", "--goodput", "ttft:400")
    assert code == 0
    lines = out.splitlines()
    assert len(lines) <= 10
    assert lines[0] == "SLO        p99_ttft_ms<=400, 95 % of requests within ttft:400 ms"
    assert lines[-1].startswith("vllm serve ")
    assert "a 99th percentile of 40 requests" in err


@pytest.mark.long
def test_a_target_that_nothing_meets_is_answered(call) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = call(*TINY_FLAGS, "--slo", "mean_ttft_ms<=1", "--json", "-")
    answer = json.loads(out)
    assert code == 0
    assert answer["request_rate"] == 0
    assert "mean_ttft_ms is 1" in answer["reason"]
    assert answer["command"] is None
    code, out, _ = call(*TINY_FLAGS, "--slo", "mean_ttft_ms<=1")
    assert "best       none: no rate meets it" in out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "no target"),
        (("--slo", "p99<=3"), "unknown metric"),
        (("--slo", "mean_tpot_ms<=30", "--over", "workload=a,b"), "all configurations"),
        (("--slo", "mean_tpot_ms<=30", "--over", "max-nums=1"), "unknown option"),
        (("--slo", "mean_tpot_ms<=30", "--over", "max-num-seqs=1,,2"), "a value is empty"),
        (("--slo", "mean_tpot_ms<=30", "--objective", "speed"), "unknown objective"),
        (("--slo", "mean_tpot_ms<=30", "--objective", "gpus"), "needs --request-rate"),
        (("--slo", "mean_tpot_ms<=30", "--objective", "cost"), "--price a100-40gb=DOLLARS"),
        (("--slo", "mean_tpot_ms<=30", "--gpu-price", "a100-40gb=x"), "must be GPU=DOLLARS"),
        (("--slo", "mean_tpot_ms<=30", "--request-rate", "inf"), "must be finite for a search"),
    ],
)
def test_mistakes_are_told_in_one_line(call, arguments, told) -> None:  # type: ignore[no-untyped-def]
    code, out, err = call(*TINY_FLAGS, *arguments)
    assert (code, out) == (2, "")
    assert told in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.long
def test_a_trace_is_scaled_and_has_no_seed(call, tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "t.csv"
    workloads.generate("fixed+prompt=20+output=5", num_requests=40, request_rate=3, seed=0).save(
        file
    )
    flags = [*TINY_FLAGS[:8], "--trace", str(file)]
    code, out, _ = call(*flags, "--slo", "mean_ttft_ms<=300", "--json", "-")
    answer = json.loads(out)
    assert code == 0
    assert answer["interval"]["replications"] == 1
    assert answer["interval"]["bracket"][0] == answer["interval"]["low"] == answer["request_rate"]
    assert any("no seed" in note for note in answer["notes"])


def test_options_of_run_are_options_of_search() -> None:
    from kvsim.cli.search import search

    missing = {"max_concurrency", "horizon", "kv_events_config"}
    missing |= {"lanes", "shuffle_sessions", "shared_prefix_tokens"}
    flags = {parameter.name for parameter in search.params}
    assert missing.isdisjoint(flags)
    assert set(RunConfig.model_fields) - flags <= missing | {"pool", "trace_digest"} | {
        "record_steps",
        "record_memory_map",
        "record_block_events",
    }


def test_requests_at_both_ends_may_be_left_out_of_the_targets() -> None:
    """Sixteen come at once and wait; those that come later, one a second, do not."""
    times = [0.0] * 16 + [10.0 + second for second in range(20)]
    trace = Trace.from_arrays(times, [16] * 36, [2] * 36)
    config = Config.build(**{**TINY, "max_num_seqs": 1})
    found = {}
    for trim in (0.0, 5.0):
        target = replace(slo("mean_ttft_ms<=250", ttft=250.0, attain=0.9), trim=trim)
        found[trim] = Trials(config, lambda rate, seed: trace, target).whole(1.0)
    whole, inner = found[0.0].summary, found[5.0].summary
    assert whole is not None
    assert inner is not None
    assert whole["mean_ttft_ms"] > 500
    assert inner["mean_ttft_ms"] == pytest.approx(100)  # a step of 0.1 s, and nobody before
    assert inner["num_counted"] == 20 - 5
    assert (whole["goodput_attainment"] < 0.9, inner["goodput_attainment"]) == (True, 1.0)
    assert inner["completed"] == whole["completed"] == 36
    assert "backlog" not in found[5.0].missed


def test_nothing_left_to_count_is_no_proof() -> None:
    trace = Trace.from_arrays([0.0, 1.0], [16] * 2, [2] * 2)
    target = replace(slo("mean_ttft_ms<=250"), trim=5.0)
    trial = Trials(Config.build(**TINY), lambda rate, seed: trace, target).whole(1.0)
    assert "mean_ttft_ms<=250" in trial.missed
