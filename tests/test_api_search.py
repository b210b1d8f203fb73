"""``kvsim.search``: the answer of the command, as an object."""

from __future__ import annotations

import csv
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvsim
import workloads
from kvsim.cli import main
from kvsim.cost.constant import ConstantCost

#: Steps of 0.1 s with at most four requests in them, which plain Python serves at once.
TINY: dict[str, Any] = {
    "model": "opt-125m",
    "gpu": "a100-40gb",
    "cost_model": "constant+seconds=0.1",
    "max_num_seqs": 4,
    "async_scheduling": False,
    "num_gpu_blocks_override": 1000,
    "backend": "python",
}
FLAGS = (
    *("--model", "opt-125m", "--gpu", "a100-40gb", "--cost-model", "constant+seconds=0.1"),
    *("--no-async-scheduling", "--num-gpu-blocks-override", "1000", "--backend", "python"),
)
WORKLOAD = "fixed+prompt=16+output=4"
SLO = "mean_ttft_ms<=300"


@pytest.fixture(scope="module")
def found() -> Any:
    options = {name: value for name, value in TINY.items() if name != "max_num_seqs"}
    return kvsim.search(
        WORKLOAD, slo=SLO, num_requests=60, over={"max_num_seqs": [2, 4]}, replications=1, **options
    )


@pytest.mark.long
def test_a_search_gives_what_the_command_gives(
    found: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--workload", WORKLOAD, "--num-requests", "60", "--slo", SLO)
    line = ["search", *FLAGS, *asked, "--over", "max-num-seqs=2,4", "--replications", "1"]
    main(line)
    assert repr(found).splitlines() == [
        text.rstrip() for text in capsys.readouterr().out.splitlines()
    ]
    main([*line, "--json", "-"])
    assert json.loads(capsys.readouterr().out) == found.to_dict() == found.answer


@pytest.mark.long
def test_the_best_is_served_and_its_tables_say_so(found: Any) -> None:
    assert found.options == {"max_num_seqs": 4}
    assert found.command.startswith("vllm serve facebook/opt-125m")
    assert found.num_gpus == 1
    best = found.table[found.table["max_num_seqs"] == 4]
    assert best["request_rate"].tolist() == [found.request_rate]
    met = found.runs[(found.runs["max_num_seqs"] == 4) & found.runs["met"]]
    assert met["request_rate"].max() == found.request_rate
    assert (met["mean_ttft"] <= 0.3).all()  # seconds
    trace = workloads.generate(WORKLOAD, num_requests=60, request_rate=found.request_rate, seed=0)
    again = kvsim.simulate(trace, **{**TINY, **found.options})
    assert again.metrics.ttft.mean == pytest.approx(
        met["mean_ttft"][met["request_rate"].argmax()], rel=1e-12
    )


def test_it_is_saved_and_drawn(found: Any, tmp_path: Path) -> None:
    found.save(tmp_path / "s")
    assert json.loads((tmp_path / "s" / "search.json").read_text()) == found.answer
    with (tmp_path / "s" / "table.csv").open() as file:
        assert [row["max_num_seqs"] for row in csv.DictReader(file)] == ["2", "4"]
    assert (tmp_path / "s" / "runs.csv").is_file()
    assert found.to_pandas()["request_rate"].max() == found.request_rate
    (axes,) = found.plot().axes
    assert [bar.get_width() for bar in axes.patches] == sorted(
        found.table["request_rate"], reverse=True
    )


@pytest.mark.long
def test_a_pareto_front_is_drawn() -> None:
    found = kvsim.search(
        WORKLOAD, slo=SLO, num_requests=40, objective="pareto", over={"block_size": [16, 32]},
        replications=1, **TINY,
    )  # fmt: skip
    (axes,) = found.plot().axes
    assert axes.get_xlabel() == "output tokens/s of a user"


@pytest.mark.long
def test_the_gaps_of_a_trace_are_scaled() -> None:
    trace = workloads.generate(WORKLOAD, num_requests=60, request_rate=5.0, seed=3)
    found = kvsim.search(trace, slo=[SLO], **TINY)
    assert found.answer["interval"]["replications"] == 1
    assert any("no seed" in note for note in found.answer["notes"])
    served = kvsim.simulate(trace.with_request_rate(found.request_rate), **TINY)
    assert served.metrics.ttft.mean <= 0.3


@pytest.mark.long
def test_no_answer_is_an_answer() -> None:
    found = kvsim.search(WORKLOAD, slo="mean_ttft_ms<=1", num_requests=20, **TINY)
    assert (found.request_rate, found.command, found.options) == (0.0, None, {})
    assert found.table["reason"][0].startswith("no rate meets it")
    assert repr(found).splitlines()[1].startswith("best       none")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"slo": "p99_ttfs_ms<=3"}, "unknown metric 'p99_ttfs_ms'; did you mean p99_ttft_ms"),
        ({}, "no target: give --slo"),
        ({"slo": SLO, "over": {"max_num_seqs": [1, 2]}}, "--max-num-seqs: conflicts with --over"),
        ({"slo": SLO, "over": {"block_sise": [1, 2]}}, "unknown option 'block_sise'"),
        ({"slo": SLO, "objective": "speed"}, "unknown objective 'speed'"),
        ({"slo": SLO, "objective": "cost"}, "no price of a100-40gb: give --price a100-40gb="),
        ({"slo": SLO, "horizon": 5.0}, "horizon: search serves whole traces"),
        ({"slo": SLO, "price": {"l4": -1}}, "--price l4=-1: must be GPU=DOLLARS"),
    ],
)
def test_mistakes_are_one_line(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told) as error:
        kvsim.search(WORKLOAD, num_requests=20, **TINY, **given)
    assert "\n" not in str(error.value)


@pytest.mark.long
def test_values_to_try_may_be_of_any_type() -> None:
    options = {name: value for name, value in TINY.items() if name != "async_scheduling"}
    found = kvsim.search(
        WORKLOAD, slo=SLO, num_requests=20, replications=1, **options,
        over={"async_scheduling": [True, False], "long_prefill_token_threshold": np.array([0])},
    )  # fmt: skip
    assert found.table["async_scheduling"].tolist() == ["true", "false"]


@pytest.mark.long
def test_a_search_takes_parts_as_objects() -> None:
    options = TINY | {"request_rate": 1.0}
    del options["cost_model"]
    over = {"cost_model": [partial(ConstantCost, seconds=0.1), "constant+seconds=0.4"]}
    found = kvsim.search(
        WORKLOAD, slo=SLO, num_requests=20, over=over, replications=1, workers=1, **options
    )
    assert found.options == {"cost_model": "constant+seconds=0.1"}
