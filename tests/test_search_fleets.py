"""Searches over fleets and sessions: what wins is what a run of it would give."""

from __future__ import annotations

import json
import shlex
from typing import Any

import numpy as np
import pytest
from refused import refused

import kvsim
import workloads
from kvsim.cli import main
from kvsim.config import RunConfig
from kvsim.results.tables import REQUESTS, FinishReason
from kvsim.study.backlog import spread_of
from kvsim.study.objective import Wish
from kvsim.study.space import candidate, gpus_by_card
from kvsim.study.trial import num_hopeless
from kvsim.trace import Trace

H100 = {"model": "llama-3.1-8b", "gpu": "h100-sxm"}
APART = {**H100, "num_prefill_workers": 1, "num_decode_workers": 2}


def answer(capsys: pytest.CaptureFixture[str], line: str) -> Any:
    main(["search", "llama-3.1-8b", "--gpu", "h100-sxm", *shlex.split(line), "--json", "-"])
    return json.loads(capsys.readouterr().out)


def test_sessions_are_spread_by_their_own_times() -> None:
    def table(times: list[float]) -> np.ndarray:
        rows = np.zeros(len(times), REQUESTS)
        rows["arrival_time"] = times
        return rows

    sessions, nobody = np.array([0, 0, 1, 1]), np.full(4, -1)
    assert spread_of(table([0, 1, 2, 3]), nobody, 9.0) is None
    told = spread_of(table([0, 1, 2, 10]), sessions, 1.0)
    assert told is not None
    assert (told.request_rate, told.reaches) == (0.4, False)
    assert told.enough_requests == 100  # 9 times the tail of six seconds, and rounded up
    dense = spread_of(table([0, 1, 2, 4]), sessions, 1.0)
    assert dense is not None
    assert dense.reaches
    unsent = table([0, 1, 2, 10])
    unsent["finish_reason"][3] = FinishReason.UNSENT
    cut = spread_of(unsent, sessions, 1.0)
    assert cut is not None
    assert cut.reaches


@pytest.mark.long
def test_a_cut_run_condemns_no_rate_of_sessions(capsys: pytest.CaptureFixture[str]) -> None:
    shape = "multi-turn+think-time=0.1+time-per-output-token=0+turns=4+output=400"
    found = answer(
        capsys,
        f"--workload {shape} --session-think-time 0.1 --num-requests 300 --max-num-seqs 8 "
        "--slo p99_ttft_ms<=300 --replications 1",
    )
    assert not found["evidence"].endswith("missed: ")
    runs = found["evaluated"][0]["runs"]
    assert not any(run["missed"] == ["first half"] for run in runs)
    assert found["request_rate"] >= 1.5


@pytest.mark.long
@pytest.mark.parametrize("think", ["", "--session-think-time 5"])
def test_a_rate_of_sessions_is_one_at_which_they_come(
    think: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = "--workload multi-turn --num-requests 100"
    found = answer(capsys, f"{shape} {think} --slo p99_ttft_ms<=300 --replications 1 -dp 2")
    main(
        shlex.split(
            f"run llama-3.1-8b --gpu h100-sxm -dp 2 {shape} {think} --json - "
            f"--request-rate {found['request_rate']}"
        )
    )
    assert json.loads(capsys.readouterr().out)["request_throughput"] > 0.7 * found["request_rate"]
    assert "sessions come at" in found["evidence"]
    assert found["change"].startswith("--num-requests ")


def test_who_is_turned_away_at_the_gate_is_left_unserved() -> None:
    reasons = {
        "prompt not below max_model_len (9)": 1,
        "prompt not below max_model_len (9) of pool prefill": 2,
        "more sequences than max_num_seqs (9)": 4,
        "needs more KV memory than there is": 8,
        "turned away by router conductor": 16,
        "shed by flow control": 32,
        "more than may wait at the gateway": 64,
    }
    assert num_hopeless({"rejections": reasons}) == 15


def test_a_prefill_pool_that_holds_no_prompt_is_out_of_question() -> None:
    trace = workloads.fixed(prompt=500, output=5, num_requests=10, request_rate=1.0)
    for blocks, hopeless in (("4", 10), ("40", 0)):
        made = candidate(APART, {"prefill.num_gpu_blocks_override": blocks}, trace, None)
        assert made.num_hopeless == hopeless


def test_every_pool_costs_what_its_cards_do() -> None:
    pools = [
        {"role": "prefill", "gpu": "a100-80gb", "tensor_parallel_size": 2},
        {"role": "decode", "replicas": 3},
    ]
    config = RunConfig.build(**H100, pool=pools)
    assert gpus_by_card(config) == {"h100-sxm": 3, "a100-80gb": 2}
    wish = Wish("cost", None, {"h100-sxm": 3.0, "a100-80gb": 1.0})
    assert wish.cost(config, 5, 2.0) == pytest.approx(1000 * 11 / 3600 / 2)
    assert wish.cost(config, 10, 2.0) == pytest.approx(1000 * 22 / 3600 / 2)


def test_reasons_are_those_of_the_pool() -> None:
    trace = Trace.from_arrays([0.0] * 3, [50, 100, 200], [5] * 3)
    pools = [{"role": "prefill", "max_model_len": 100}, {"role": "decode"}]
    result = kvsim.simulate(trace, **H100, pool=pools)
    said = "prompt not below max_model_len (100) of pool prefill"
    assert result.summary["rejections"] == {said: 2}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--autoscaler hpa", "autoscaler: search needs a fleet of constant size"),
        ("--over decode.autoscaler=hpa,wva", "autoscaler: search needs a fleet of constant size"),
        ("--over autoscaler=hpa,wva", "autoscaler: search needs a fleet of constant size"),
        (
            "--num-prefill-workers 1 --num-decode-workers 1 --over prefill.gpu=a100-80gb,h100-sxm "
            "--objective cost --gpu-price h100-sxm=3",
            "--price a100-80gb=DOLLARS",
        ),
        (
            "--over num-prefill-workers=x prefill.max-num-seqs=4",
            "num_prefill_workers is 'x': must be a whole number",
        ),
    ],
)
def test_mistakes_are_told(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "search llama-3.1-8b --gpu h100-sxm --num-requests 20 --slo p99_ttft_ms<=200"
    assert said in refused(capsys, f"{flags} {line}")
