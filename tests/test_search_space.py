"""The search over configurations: what is left out, what is best, and the line it ends in."""

from __future__ import annotations

import json
import math
import shlex
import sys
from typing import TYPE_CHECKING, Any

import pytest

import workloads
from kvsim.cli import main, pasted
from kvsim.cli.main import cli
from kvsim.cli.pairs import join_pairs
from kvsim.config import Config
from kvsim.results.cost import read_prices
from kvsim.study import choose as chooser
from kvsim.study import workers
from kvsim.study.choose import choose, enough_replicas
from kvsim.study.command import FLAGS, NOT_SERVING, vllm_line
from kvsim.study.objective import Point, Wish, dominated, read_objective
from kvsim.study.slo import read_slo
from kvsim.study.space import (
    candidate,
    combinations,
    num_gpus,
    read_over,
    size_of,
    without_rejecting,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.trace import Trace

TINY: dict[str, Any] = {
    "model": "opt-125m",
    "gpu": "a100-40gb",
    "cost_model": "constant+seconds=0.1",
    "num_gpu_blocks_override": 1000,
}
SLO = read_slo(["mean_ttft_ms<=300"], None, None)


def requests(rate: float, seed: int) -> Trace:
    return workloads.generate(
        "fixed+prompt=20+output=5", num_requests=60, request_rate=rate, seed=seed
    )


def found(over: dict[str, tuple[str, ...]], wish: Wish, **more: Any) -> tuple[Any, Any]:
    return choose(TINY, over, requests, SLO, wish, guess=1.0, **more)


# The space


def test_options_to_try_are_read() -> None:
    over = read_over(["--max-num-seqs=1,2,2", 'speculative-config={"a": 1, "b": [2, 3]},none'])
    assert over["max_num_seqs"] == ("1", "2")
    assert over["speculative_config"] == ('{"a": 1, "b": [2, 3]}', "none")
    assert size_of(over) == 4


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["max-num-seqs"], "must be OPTION=VALUE,VALUE"),
        (["max-num-seq=1"], "did you mean max_num_seqs"),
        (["seed=1,2"], "all configurations share it"),
        (["block-size=16", "block-size=32"], "is given twice"),
        (["block-size="], "a value is empty"),
    ],
)
def test_options_that_cannot_be_tried_are_told(texts: list[str], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        read_over(texts)


def test_what_does_not_fit_is_left_out_with_its_reason() -> None:
    trace = requests(1.0, 0)
    large = candidate({"model": "llama-3.1-70b", "gpu": "a100-40gb"}, {}, trace, None)
    assert "does not fit" in large.reason
    many = candidate(TINY, {"tensor_parallel_size": "4"}, trace, 2)
    assert many.reason == "takes 4 GPUs of 2"
    wrong = candidate(TINY, {"block_size": "zero"}, trace, None)
    assert "block_size" in wrong.reason
    assert not candidate(TINY, {}, trace, 1).reason


def test_no_configuration_wins_by_rejecting() -> None:
    trace = requests(1.0, 0)
    small = candidate(TINY, {"num_gpu_blocks_override": "2"}, trace, None)
    large = candidate(TINY, {"num_gpu_blocks_override": "9"}, trace, None)
    assert small.num_hopeless == 60 or "fit" in small.reason
    left = without_rejecting([small, large], 60)
    assert left[0].reason
    assert not left[1].reason


def test_gpus_are_those_of_all_pools() -> None:
    from kvsim.config import RunConfig

    assert num_gpus(RunConfig.build(tensor_parallel_size=2, data_parallel_size=3)) == 6
    pools = [
        {"role": "prefill", "tensor_parallel_size": 2, "replicas": 3},
        {"role": "decode", "pipeline_parallel_size": 2},
    ]
    assert num_gpus(RunConfig.build(pool=pools)) == 8
    assert num_gpus(RunConfig.build(num_prefill_workers=1, num_decode_workers=2)) == 3


# Objectives


@pytest.mark.long
def test_more_places_carry_more() -> None:
    candidates, outcomes = found({"max_num_seqs": ("1", "2", "8")}, Wish("rate"))
    assert [o.candidate.options["max_num_seqs"] for o in outcomes] == ["8", "2", "1"]
    assert len(candidates) == 3


@pytest.mark.slow
def test_fewest_replicas_carry_a_rate() -> None:
    wish = Wish("gpus", 12.0, counts_replicas=True)
    _, outcomes = found({"max_num_seqs": ("1", "4")}, wish, max_gpus=16)
    best = outcomes[0]
    assert best.candidate.options == {"max_num_seqs": "4"}
    assert best.replicas == best.num_gpus == best.trials.config.data_parallel_size
    assert best.bracket.low >= 12.0
    one = best.candidate
    fewer = enough_replicas(one, requests, SLO, 12.0, best.num_gpus - 1)
    assert fewer.bracket.low == 0.0
    assert vllm_line(best.trials.config).command.endswith(
        f"--tensor-parallel-size 1 --data-parallel-size {best.replicas} "
        "--num-gpu-blocks-override 1000 --max-num-seqs 4"
    )


@pytest.mark.long
def test_halving_finds_what_trying_all_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    over = {"max_num_seqs": ("1", "2", "4", "6", "9")}
    monkeypatch.setattr(chooser, "FEW", 4)
    monkeypatch.setattr(chooser, "LEAST_KEPT", 2)
    _, halved = found(over, Wish("rate"))
    assert len(halved) == 2
    monkeypatch.setattr(chooser, "FEW", 100)
    _, everything = found(over, Wish("rate"))
    assert len(everything) == 5
    assert halved[0].candidate.options == everything[0].candidate.options
    assert halved[0].bracket == everything[0].bracket


@pytest.mark.long
def test_cost_prefers_the_cheaper_card() -> None:
    prices = read_prices(["a100-40gb=2", "h100-sxm=6"])
    over = {"gpu": ("a100-40gb", "h100-sxm")}
    _, outcomes = found(over, Wish("cost", None, prices))
    assert [o.candidate.options["gpu"] for o in outcomes] == ["a100-40gb", "h100-sxm"]


def test_a_dominated_point_is_no_better_anywhere() -> None:
    slow, fast, worse = Point(1.0, 100.0, 10.0), Point(2.0, 50.0, 30.0), Point(3.0, 50.0, 10.0)
    everything = [slow, fast, worse]
    assert [dominated(p, everything) for p in everything] == [False, False, True]


def test_objectives_have_names() -> None:
    assert read_objective("pareto") == "pareto"
    with pytest.raises(ValueError, match="unknown objective 'rat'; did you mean rate"):
        read_objective("rat")


def test_a_large_space_is_sampled_or_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("max_num_seqs", "block_size", "max_num_batched_tokens", "watermark", "num_samples")
    over = dict.fromkeys(names, ("1", "2")) | {"long_prefill_token_threshold": ("0", "64")}
    monkeypatch.setattr(chooser, "MOST_COMBINATIONS", 8)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ValueError, match="pip install optuna"):
        found(over, Wish("rate"))


@pytest.mark.long
def test_a_large_space_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    monkeypatch.setattr(chooser, "MOST_COMBINATIONS", 8)
    monkeypatch.setattr(chooser, "MOST_OPTIONS", 1)
    monkeypatch.setattr(chooser, "SAMPLES", 12)
    over = {"max_num_seqs": ("1", "2", "4", "8"), "block_size": ("8", "16", "32")}
    candidates, outcomes = found(over, Wish("rate"))
    assert len(candidates) <= 12
    assert outcomes[0].bracket.low > 0


# The line


def test_a_line_has_only_flags_that_vllm_has() -> None:
    given = {
        "model": "llama-3.1-8b",
        "tensor_parallel_size": 2,
        "kv_cache_dtype": "bf16",
        "enable_prefix_caching": False,
        "enforce_eager": True,
        "async_scheduling": True,
        "gpu_memory_utilization": 0.9,
        "speculative_config": '{"method": "ngram", "num_speculative_tokens": 3}',
        "router": "random",
        "allocator": "paged",
        "gpu": "h100-sxm",
        "seed": 3,
    }
    line = vllm_line(Config.build(**given))
    assert line.command == (
        "vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size 2 --gpu-memory-utilization 0.9 "
        "--kv-cache-dtype bfloat16 --no-enable-prefix-caching --speculative-config "
        '\'{"method": "ngram", "num_speculative_tokens": 3}\' --async-scheduling --enforce-eager'
    )
    assert len(line.notes) == 1
    assert "--allocator paged; --router random" in line.notes[0]


def test_what_vllm_does_not_have_is_named() -> None:
    line = vllm_line(Config.build(kv_cache_dtype="int8", scheduling_policy="vtc"))
    assert line.command == "vllm serve facebook/opt-13b --tensor-parallel-size 1"
    assert "--kv-cache-dtype int8; --scheduling-policy vtc" in line.notes[0]
    apart = vllm_line(Config.build(num_prefill_workers=1, num_decode_workers=1))
    assert "is a separate server" in apart.notes[-1]


def test_a_model_keeps_the_name_it_was_given() -> None:
    fine_tune = Config.build(model="Qwen/Qwen3-32B-FP8")
    assert vllm_line(fine_tune).command.startswith("vllm serve Qwen/Qwen3-32B-FP8 ")
    file = Config.build(model="/models/mine/config.json")
    assert vllm_line(file).command.startswith("vllm serve /models/mine ")


def test_kvsim_takes_its_own_line() -> None:
    config = Config.build(model="opt-125m", max_num_seqs=8, async_scheduling=False)
    words = shlex.split(vllm_line(config).command)
    line = pasted.translate(join_pairs(["run", *words]), cli)
    assert line.notes() == []
    assert line.words[1] == "facebook/opt-125m"
    assert set(FLAGS) <= set(Config.model_fields)
    assert not set(FLAGS) & NOT_SERVING


# The command

FLAGS_OF_TINY = [
    *("--model", "opt-125m", "--gpu", "a100-40gb", "--cost-model", "constant+seconds=0.1"),
    *("--num-gpu-blocks-override", "1000", "--num-requests", "40"),
    *("--workload", "fixed+prompt=20+output=5", "--slo", "mean_ttft_ms<=300"),
]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = 0
        try:
            main(["search", *FLAGS_OF_TINY, *arguments])
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_an_option_is_not_given_a_value_beside_several(call) -> None:  # type: ignore[no-untyped-def]
    code, _, err = call("--over", "gpu=l4,l40s")
    assert (code, err) == (2, "kvsim: --gpu: conflicts with --over gpu: give one of them\n")


@pytest.mark.long
def test_the_best_and_its_runner_up_are_told(call) -> None:  # type: ignore[no-untyped-def]
    over = ("--over", "max-num-seqs=1,4", "tensor-parallel-size=1,8", "--max-gpus", "4")
    code, out, _ = call(*over, "--json", "-")
    answer = json.loads(out)
    assert code == 0
    assert answer["options"] == {"max_num_seqs": "4", "tensor_parallel_size": "1"}
    assert answer["runner_up"]["options"]["max_num_seqs"] == "1"
    assert answer["lead"] > 50
    assert [one.get("reason") for one in answer["evaluated"]].count("takes 8 GPUs of 4") == 2
    assert "--max-num-seqs 4" in answer["command"]
    _, out, _ = call(*over)
    assert "runner-up" in out
    assert "2 of 4: takes 8 GPUs of 4" in out


@pytest.mark.slow
@pytest.mark.parametrize(
    "objective",
    [
        ("rate",),
        pytest.param(("pareto",), marks=pytest.mark.slow),
        pytest.param(("gpus", "--request-rate", "20", "--max-gpus", "4"), marks=pytest.mark.slow),
    ],
)
def test_any_number_of_workers_gives_the_same_answer(  # type: ignore[no-untyped-def]
    call, objective: tuple[str, ...]
) -> None:
    pytest.importorskip("joblib")
    over = ("--over", "max-num-seqs=1,2,4,8", "block-size=16,32,64", "--objective", *objective)
    answers = [call(*over, "--workers", number, "--json", "-") for number in ("1", "2", "3")]
    assert answers[0][0] == 0, answers[0][2]
    assert answers[1] == answers[2] == answers[0]
    assert len(json.loads(answers[0][1])["evaluated"]) == 12


@pytest.mark.long
def test_several_workers_need_joblib(call, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(workers, "find_spec", lambda name: None)
    over = ("--over", "max-num-seqs=1,4", "--objective", "rate")
    code, _, err = call(*over, "--workers", "2")
    assert code == 2
    assert "--workers 2 needs joblib" in err
    assert call(*over)[0] == 0


@pytest.mark.long
def test_a_front_has_no_dominated_point(call) -> None:  # type: ignore[no-untyped-def]
    arguments = ("--over", "max-num-seqs=1,4", "--objective", "pareto")
    answer = json.loads(call(*arguments, "--json", "-")[1])
    runs = [run for one in answer["evaluated"] for run in one["runs"]]
    assert any(run.get("dominated") is False for run in runs)
    assert any(run.get("dominated") for run in runs)
    assert "tokens/s/user" in call(*arguments)[1]


def test_nothing_that_runs_is_a_mistake(call) -> None:  # type: ignore[no-untyped-def]
    code, out, err = call("--over", "tensor-parallel-size=2,4", "--max-gpus", "1")
    assert (code, out) == (2, "")
    assert "no configuration can run: takes 2 GPUs of 1; takes 4 GPUs of 1" in err


def test_too_few_gpus_is_an_answer(call) -> None:  # type: ignore[no-untyped-def]
    gpus = ("--objective", "gpus", "--request-rate", "100", "--max-gpus", "2", "--json", "-")
    answer = json.loads(call(*gpus)[1])
    assert answer["request_rate"] == 0
    assert answer["reason"].startswith(
        "no configuration serves 100 requests/s: 2 replicas miss it: at 100/s mean_ttft_ms is 241"
    )


def test_options_of_roles_become_pools() -> None:
    over = read_over(["prefill.tensor-parallel-size=1,2", "num-prefill-workers=1,2"])
    assert over["prefill.tensor_parallel_size"] == ("1", "2")
    made = [
        candidate({**TINY, "num_decode_workers": "3"}, options, requests(1.0, 0), None)
        for options in combinations(over)
    ]
    assert [one.num_gpus for one in made] == [1 + 3, 2 + 3, 2 + 3, 4 + 3]
    assert not any(one.reason for one in made)
    line = vllm_line(made[-1].config)  # type: ignore[arg-type]
    prefill, decode = line.command.splitlines()
    assert "--tensor-parallel-size 2" in prefill
    assert "--tensor-parallel-size 1" in decode
    assert len(line.notes) == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("draft.block-size=8,16", "unknown role 'draft'"),
        ("prefill.blocksize=8", "did you mean block_size"),
        ("prefill.seed=1,2", "--over prefill.seed: cannot vary, as all configurations share it"),
        ("decode.num-decode-workers=1,2", "all configurations share it"),
    ],
)
def test_mistakes_in_options_of_roles_are_told(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=r"role|option|--over") as raised:
        read_over([text])
    assert told in str(raised.value)


PRICED = (
    *("search", "--model", "llama-3.1-8b", "--workload", "fixed+prompt=200+output=50"),
    *("--num-requests", "200", "--slo", "mean_tpot_ms<=30"),
    *("--over", "gpu=h100-sxm,a100-80gb,l4", "--max-model-len", "8192", "--replications", "1"),
    *("--objective", "cost", "--gpu-price", "h100-sxm=4", "a100-80gb=2", "l4=0.7"),
)


@pytest.mark.long
def test_cost_is_shown_and_every_configuration_has_a_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An L4 never decodes a token of this model in 30 ms."""
    main([*PRICED, "--json", "-"])
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["evaluated"]) == 3
    for one in answer["evaluated"]:
        if one["request_rate"]:
            price = {"h100-sxm": 4.0, "a100-80gb": 2.0}[one["options"]["gpu"]]
            assert one["cost_per_hour"] == price
            each = 1000 * price / 3600 / one["request_rate"]
            assert one["cost_per_1000_requests"] == pytest.approx(each)
        else:
            assert one["options"]["gpu"] == "l4"
            assert "mean_tpot_ms is" in one["reason"]
    best = min(one.get("cost_per_1000_requests", math.inf) for one in answer["evaluated"])
    assert answer["cost_per_1000_requests"] == best
    main([*PRICED])
    printed = capsys.readouterr().out
    assert f"cost       {best:.4g} per 1,000 requests, " in printed
    for gpu in ("h100-sxm", "a100-80gb", "l4: no rate meets it: at "):
        assert f"gpu={gpu}" in printed[printed.index("tried ") :]


@pytest.mark.long
def test_the_cheapest_for_a_load_need_not_be_the_cheapest_per_request(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """At a low rate the smaller card is enough, and is paid by the hour whether it idles or not."""
    main([*PRICED, "--request-rate", "2", "--json", "-"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["options"] == {"gpu": "a100-80gb"}
    assert answer["asked_rate"] == 2.0
    assert answer["cost_per_hour"] == 2.0
    assert answer["cost_per_1000_requests"] == pytest.approx(1000 * 2.0 / 3600 / 2.0)
    by_card = {one["options"]["gpu"]: one for one in answer["evaluated"]}
    assert by_card["h100-sxm"]["cost_per_hour"] == 4.0
    assert "replicas miss it: at 2/s" in by_card["l4"]["reason"]
    fixed = ("--data-parallel-size", "1", "--request-rate", "100000", "--json", "-")
    main([*PRICED, *fixed])
    none = json.loads(capsys.readouterr().out)
    assert none["request_rate"] == 0
    assert "of 100000 requests/s" in none["reason"]
