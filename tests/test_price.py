"""Dollars of a run: GPU-hours at given prices, over tokens and sessions."""

from __future__ import annotations

import json
from typing import Any

import pytest

import kvsim
import workloads
from kvsim.cli.main import main
from kvsim.pool_config import PoolConfig
from kvsim.results.cost import read_prices
from tests.test_sessions import two_sessions

#: A request of 100 steps of 10 s: 1,000 s.
SLOW = {"model": "opt-125m", "cost_model": "constant+seconds=10", "backend": "python"}
CARDS = {"a100-80gb": 3.6, "h100-sxm": 7.2}
FLAGS = (
    *("--workload", "fixed+prompt=50+output=100", "--num-requests", "1", "--request-rate", "1"),
    *("--model", "opt-125m", "--cost-model", "constant+seconds=10", "--backend", "python"),
)


def one_request() -> Any:
    return workloads.fixed(prompt=50, output=100, num_requests=1, request_rate=1.0)


def cost(**options: Any) -> dict[str, Any]:
    found = kvsim.simulate(one_request(), price=CARDS, **{**SLOW, "gpu": "a100-80gb"} | options)
    return found.summary["cost"]


def test_a_gpu_at_3_60_for_1000_seconds_is_a_dollar() -> None:
    found = cost()
    assert found["dollars"] == pytest.approx(1.0)
    assert found["dollars_per_gpu_hour"] == {"a100-80gb": 3.6}
    assert found["dollars_per_million_input_tokens"] == pytest.approx(1e6 / 50)
    assert found["dollars_per_million_output_tokens"] == pytest.approx(1e6 / 100)
    assert found["dollars_per_million_tokens"] == pytest.approx(1e6 / 150)
    assert found["dollars_per_million_cached_tokens"] is None
    assert found["dollars_per_session"] is None


@pytest.mark.long
def test_twice_the_gpus_cost_twice() -> None:
    assert cost(data_parallel_size=2)["dollars"] == pytest.approx(2.0)
    assert cost(pipeline_parallel_size=2)["dollars"] == pytest.approx(2.0)


@pytest.mark.long
def test_each_pool_has_the_price_of_its_card() -> None:
    pools = [
        PoolConfig("prefill", 1, "p", options=(("gpu", "h100-sxm"),)),
        PoolConfig("decode", 1, "d"),
    ]
    result = kvsim.simulate(one_request(), price=CARDS, gpu="a100-80gb", pool=pools, **SLOW)
    hours = {pool["name"]: pool["gpu_hours"] for pool in result.summary["pools"]}
    assert result.summary["cost"]["dollars"] == pytest.approx(7.2 * hours["p"] + 3.6 * hours["d"])
    compared = kvsim.compare(
        one_request(), ["paged"], price=CARDS, gpu="a100-80gb", pool=pools, **SLOW
    )
    assert compared["paged"].summary["cost"] == result.summary["cost"]


@pytest.mark.long
def test_an_autoscaled_fleet_costs_the_hours_of_its_replicas() -> None:
    trace = workloads.fixed(prompt=50, output=20, num_requests=40, request_rate=2.0)
    options = {**SLOW, "gpu": "a100-80gb", "cost_model": "constant+seconds=0.5"}
    result = kvsim.simulate(trace, price=CARDS, autoscaler="hpa", data_parallel_size=2, **options)
    assert result.summary["cost"]["dollars"] == pytest.approx(3.6 * result.summary["gpu_hours"])


def test_sessions_and_cached_tokens() -> None:
    options = {**SLOW, "model": "llama-3-8b", "gpu": "a100-80gb"}
    result = kvsim.simulate(two_sessions(), price="a100-80gb=3.6", **options)
    found, cached = result.summary["cost"], result.requests["num_cached_tokens"].sum()
    assert cached > 0
    assert found["dollars_per_session"] == pytest.approx(found["dollars"] / 2)
    per_million = found["dollars_per_million_cached_tokens"]
    assert per_million * cached / 1e6 == pytest.approx(found["dollars"])


@pytest.mark.long
def test_no_price_no_row() -> None:
    assert "cost" not in kvsim.simulate(one_request(), gpu="a100-80gb", **SLOW).summary


def test_prices_are_read_from_lists() -> None:
    assert read_prices(["h100-sxm=2.50,a100-80gb=1.2"]) == {"h100-sxm": 2.5, "a100-80gb": 1.2}
    own = "h200-sxm+memory=96GiB+name=h20"
    assert read_prices([f"{own}=2"]) == {"h20": 2.0}


@pytest.mark.parametrize("price", [2.5, [2.5], "", {"l4": "x"}])
def test_a_price_without_a_card_is_refused(price: Any) -> None:
    with pytest.raises(ValueError, match="must be GPU=DOLLARS"):
        read_prices(price)


@pytest.mark.parametrize("command", ["run", "compare"])
@pytest.mark.parametrize(
    ("price", "said"),
    [
        ("h100-sxm=2", "no price of a100-40gb: give --price a100-40gb=DOLLARS, per GPU-hour"),
        ("a100-40gb=0", "--price a100-40gb=0: must be GPU=DOLLARS, per GPU-hour and above 0"),
        ("a100-40gb", "--price a100-40gb: must be GPU=DOLLARS"),
        ("a100-40gb=1,a100-40gb=2", "--price a100-40gb=2: a100-40gb has a price already"),
        ("h1000=2", "unknown GPU 'h1000'"),
    ],
)
def test_mistakes_are_one_line(command: str, price: str, said: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, *FLAGS, "--price", price])
    told = capsys.readouterr().err
    assert ended.value.code == 2
    assert said in told
    assert len(told.strip().splitlines()) == 1


@pytest.mark.long
def test_commands_say_what_runs_cost(capsys: Any) -> None:
    price = ("--price", "a100-40gb=3.6", "h100-sxm=7.2")
    main(["run", *FLAGS, *price, "--replications", "2", "--json", "-"])
    assert json.loads(capsys.readouterr().out)["cost"]["dollars"] == pytest.approx(1.0)
    main(["run", *FLAGS, *price])
    out = " ".join(capsys.readouterr().out.split())
    assert "1 dollars in all: 2e+04 per million input tokens, 1e+04 per million output" in out
    assert "not shares" in out
    main(["compare", *FLAGS, *price, "--allocators", "paged", "--json", "-"])
    row = json.loads(capsys.readouterr().out)["rows"][0]
    assert row["cost"]["dollars"] == pytest.approx(1.0)
    vary = ("--vary", "gpu=a100-40gb,h100-sxm", "--replications", "2")
    main(["compare", *FLAGS, *price, *vary, "--json", "-"])
    answer = json.loads(capsys.readouterr().out)
    assert [row["cost"]["dollars"] for row in answer["rows"]] == pytest.approx([1.0, 2.0])
    assert answer["differences"][0]["metrics"]["cost.dollars"]["mean"] == pytest.approx(1.0)


@pytest.mark.long
def test_a_sweep_prices_each_cell(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Stored cells have no price: another one, later, needs no run."""
    axes = {"gpu": ["a100-80gb", "h100-sxm"]}
    options = {"price": CARDS, "num_requests": 1, **SLOW}
    found = kvsim.sweep(one_request(), axes, out=tmp_path, **options)
    assert found.table["cost.dollars"] == pytest.approx([1.0, 2.0])
    assert any("not shares" in note for note in found.notes)
    before = [path.stat().st_mtime_ns for path in sorted((tmp_path / "cells").rglob("*"))]
    twice = {name: 2 * dollars for name, dollars in CARDS.items()}
    again = kvsim.sweep(one_request(), axes, out=tmp_path, **options | {"price": twice})
    assert again.table["cost.dollars"] == pytest.approx([2.0, 4.0])
    assert before == [path.stat().st_mtime_ns for path in sorted((tmp_path / "cells").rglob("*"))]
    with pytest.raises(ValueError, match="no price of h100-sxm"):
        kvsim.sweep(one_request(), axes, **options | {"price": {"a100-80gb": 1}})
    free = kvsim.sweep(one_request(), axes, out=tmp_path, num_requests=1, **SLOW)
    assert not [name for name in free.table.dtype.names if name.startswith("cost")]
    line = ["--gpu", "a100-80gb", "--price", "a100-80gb=3.6", "--out", str(tmp_path / "line")]
    main(["sweep", *FLAGS, *line, "--json", "-"])
    (cell,) = json.loads(capsys.readouterr().out)["cells"]
    assert cell["cost.dollars"] == pytest.approx(1.0)


@pytest.mark.long
def test_a_sweep_counts_cached_tokens() -> None:
    options = {"model": "llama-3-8b", "gpu": "h100-sxm", "backend": "python"}
    whole = kvsim.simulate(two_sessions(), price=CARDS, **options).summary["cost"]
    found = kvsim.sweep(two_sessions(), {"block_size": [16]}, price=CARDS, **options).table[0]
    for name in ("dollars_per_million_cached_tokens", "dollars_per_session"):
        assert found[f"cost.{name}"] == pytest.approx(whole[name])


@pytest.mark.long
def test_a_search_prices_the_run_at_its_rate() -> None:
    found = kvsim.search(
        "fixed+prompt=100+output=10",
        **{"slo": "mean_ttft_ms<=300", "num_requests": 50, "cost_model": "constant+seconds=0.1"},
        **{"model": "opt-125m", "max_num_seqs": 4, "backend": "python", "replications": 1},
        price={"a100-40gb": 3.6},
    )
    each = found.answer["cost"]
    assert each["dollars_per_million_output_tokens"] == pytest.approx(
        each["dollars"] * 1e6 / (50 * 10)
    )
    # Arrivals at the highest rate, and some time to drain.
    least = 49 / found.request_rate * 0.5 / 1000
    assert least < each["dollars"] < 10 * least
