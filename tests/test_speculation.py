"""Speculative decoding in simulated runs: what drafts save, cost and need."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import kvsim
import workloads
from experiments import speculation
from kvsim.cli.main import cli
from kvsim.sched.acceptance import acceptance_rates
from kvsim.speculation import SpeculativeConfig
from kvsim.testing import equal_tables
from kvsim.trace import Trace

SMALL: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "max_model_len": 4096}
ONE = Trace.from_arrays([0.0], [100], [41])


def ngram(k: int, **more: Any) -> dict[str, Any]:
    return {"method": "ngram", "num_speculative_tokens": k, **more}


@pytest.mark.long
def test_drafts_gain_what_they_did_on_measured_servers() -> None:
    """The bands of the experiment, none of which anybody looks at unless it is run."""
    checks = speculation.measure(quick=True).checks
    assert sum(check.holds is not None for check in checks) == len(speculation.BATCHES) + 1
    assert not [check for check in checks if check.holds is False]


def serve(trace: Trace = ONE, **options: Any) -> dict[str, Any]:
    return kvsim.simulate(trace, **SMALL | {"backend": "python"} | options).summary


@pytest.mark.parametrize(("length", "steps"), [(1, 40), (4, 10)])
def test_steps_follow_from_what_is_accepted(length: float, steps: int) -> None:
    """The prompt's step gives a token, every other one a token and the drafts accepted."""
    found = serve(speculative_config=ngram(3, synthetic_acceptance_length=length))
    assert found["num_steps"] == 1 + steps
    assert found["mean_acceptance_length"] == length
    assert found["acceptance_rate"] == (length - 1) / 3
    assert (found["num_drafts"], found["num_draft_tokens"]) == (steps, 3 * steps)
    assert found["total_output_tokens"] == 41


def test_recorded_counts_are_accepted_one_after_another() -> None:
    trace = Trace.from_arrays([0.0], [100], [13], accepted_drafts=[[3, 0, 1]])
    found = serve(trace, speculative_config=ngram(3))
    assert found["num_steps"] == 1 + 5  # 4 + 1 + 2 + 4 + 1 tokens after the first
    assert found["num_accepted_tokens"] == 3 + 0 + 1 + 3 + 0


def test_a_request_may_have_a_rate_of_its_own() -> None:
    trace = Trace.from_arrays([0.0, 0.0], [9, 9], [401, 401], acceptance_rate=[1.0, 0.0])
    result = kvsim.simulate(trace, **SMALL, backend="python", speculative_config=ngram(3))
    done = result.requests["finish_time"] - result.requests["first_token_time"]
    assert 3.5 < done[1] / done[0] < 4.1
    assert result.summary["num_accepted_tokens"] == 300


def test_the_published_means_come_out_where_none_are_given() -> None:
    trace = workloads.fixed(prompt=50, output=400, num_requests=40, request_rate=float("inf"))
    for method, length in (("ngram", 1.40), ("eagle3", 2.25)):
        config = {"method": method, "num_speculative_tokens": 3}
        result = kvsim.simulate(trace, **SMALL, speculative_config=config)
        assert result.summary["mean_acceptance_length"] == pytest.approx(length, rel=0.02)
        assert any("published" in note for note in result.provenance["notes"])


@pytest.mark.parametrize("k", [1, 2, 3, 5, 9])
def test_rates_by_position_never_rise_and_have_the_mean_asked_for(k: int) -> None:
    for given in ({}, {"synthetic_acceptance_rate": 0.4}):
        rates = acceptance_rates(SpeculativeConfig.of(ngram(k, **given)))
        assert len(rates) == k
        assert rates == sorted(rates, reverse=True)
        assert not given or sum(rates) / k == pytest.approx(0.4)
    length = {"synthetic_acceptance_length": 1 + 0.3 * k}
    rates = acceptance_rates(SpeculativeConfig.of(ngram(k, **length)))
    assert sum(rates) == pytest.approx(0.3 * k)


@pytest.mark.long
def test_a_place_in_an_output_has_the_same_luck_under_any_configuration() -> None:
    trace = workloads.sharegpt(num_requests=60, request_rate=8.0)
    found = [
        serve(trace, speculative_config=ngram(3), **options)["num_accepted_tokens"]
        for options in ({}, {"max_num_seqs": 3}, {"block_size": 32})
    ]
    assert len(set(found)) == 1
    other = serve(trace, speculative_config=ngram(3), seed=1)["num_accepted_tokens"]
    assert other != found[0]


@pytest.mark.long
def test_verifying_drafts_reads_the_kv_once() -> None:
    """Near the memory roof, four tokens of a request take hardly longer than one."""
    long = Trace.from_arrays([0.0] * 4, [3000] * 4, [41] * 4)
    one = serve(long, async_scheduling=False)
    four = serve(long, speculative_config=ngram(3, synthetic_acceptance_length=1))
    assert 1.0 < four["mean_tpot_ms"] / one["mean_tpot_ms"] < 1.1


@pytest.mark.long
def test_drafts_of_a_model_take_its_passes() -> None:
    def tpot(k: int, **more: Any) -> float:
        config = {"method": "eagle3", "num_speculative_tokens": k, "synthetic_acceptance_length": 1}
        return float(serve(speculative_config=config | more)["mean_tpot_ms"])

    passes = [tpot(k) for k in (1, 2, 3)]
    steps = np.diff(passes)
    assert steps[0] == pytest.approx(steps[1], rel=0.1)
    assert 0.5 < steps[0] < 1.0  # ms, 2.135 ms for three of them
    assert tpot(3, parallel_drafting=True) < passes[1]


def test_without_drafts_there_is_no_acceptance() -> None:
    found = serve()
    keys = ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "acceptance_rate")
    assert all(found[key] is None for key in (*keys, "mean_acceptance_length"))


def test_a_request_needs_room_for_its_drafts() -> None:
    """Blocks for 100 + 41 tokens, and for three drafts more: 9 hold 144 slots."""
    room = {"num_gpu_blocks_override": 10, "block_size": 16}
    assert serve(speculative_config=ngram(3), **room)["completed"] == 1
    refused = serve(speculative_config=ngram(4), **room)
    assert (refused["completed"], refused["num_rejected"]) == (0, 1)
    assert "KV memory" in next(iter(refused["rejections"]))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{", "is not JSON"),
        ([3], "must be an object"),
        ({"method": "ngram"}, "num_speculative_tokens is missing"),
        ({"num_speculative_tokens": 3}, "method is missing"),
        ({"method": "nrgam", "num_speculative_tokens": 3}, "did you mean ngram"),
        (ngram(0), "1 to 64"),
        (ngram(65), "1 to 64"),
        (ngram(3, num_speculative_token=2), "unknown speculative setting"),
        (ngram(3, synthetic_acceptance_rates=[0.5]), "1 rates for 3 drafts"),
        (ngram(2, synthetic_acceptance_rates=[0.5, 0.6]), "never rise"),
        (ngram(2, synthetic_acceptance_length=3.5), "1 to 3"),
        (ngram(2, synthetic_acceptance_rate=1.5), "0 to 1"),
        (ngram(2, synthetic_acceptance_length="long"), "must be a number"),
        (ngram(2, parallel_drafting="perhaps"), "must be true or false"),
        ({"method": 3, "num_speculative_tokens": 2}, "unknown method"),
        ({"method": "ngram", "num_speculative_tokens": "x"}, "must be a whole number"),
        ({"method": "draft_model", "num_speculative_tokens": 2, "model": 3}, "must be a text"),
        (ngram(2, synthetic_acceptance_rate=1, synthetic_acceptance_length=2), "give one"),
        (ngram(2, num_speculative_tokens_per_batch_size=[[1, 2]]), "first, last, drafts"),
        (ngram(2, num_speculative_tokens_per_batch_size=[[1, 2, 3]]), "0 to 2"),
        ({"method": "draft_model", "num_speculative_tokens": 2}, "name the drafter"),
    ],
)
def test_a_wrong_configuration_is_one_line(given: object, said: str) -> None:
    with pytest.raises(ValueError, match=said) as raised:
        serve(speculative_config=given)
    assert str(raised.value).startswith(("speculative_config ", "speculative_config: "))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"scheduler": "orca"}, "has no speculative decoding"),
        ({"allocator": "tiered+host-gib=1"}, "has no slots for draft tokens"),
        ({"kv_offloading_size": 4}, "allocator 'paged' with kv_offloading_size has no slots"),
        ({"async_scheduling": True}, "drafts on the host"),
        ({"num_lookahead_tokens": 2}, "follows from speculative_config"),
        ({"allocator": "paged+spec=ngram"}, "METHOD:DRAFTS"),
        ({"allocator": "paged+spec=ngram:3:x"}, "must be a number"),
    ],
)
def test_what_cannot_draft_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        serve(**{"speculative_config": ngram(3)} | options)


def test_rows_of_a_comparison_may_draft() -> None:
    rows = kvsim.compare(ONE, ["paged", "paged+spec=ngram:3:4"], **SMALL).results
    plain, drafting = (rows[name].summary for name in rows)
    assert plain["acceptance_rate"] is None
    assert drafting["acceptance_rate"] == 1.0
    assert drafting["num_steps"] == 11
    both = kvsim.compare(ONE, ["paged+spec=none"], **SMALL, speculative_config=ngram(3)).results
    assert both["paged+spec=none"].summary["acceptance_rate"] is None


@pytest.mark.long
def test_a_pasted_line_runs_and_is_saved(tmp_path: Any) -> None:
    line = ["run", "--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--num-requests", "20"]
    given = json.dumps(ngram(3, prompt_lookup_max=4))
    line += ["--request-rate", "5", "--speculative-config", given, "--out", str(tmp_path / "run")]
    told = CliRunner().invoke(cli, line)
    assert told.exit_code == 0, told.output
    again = kvsim.load(tmp_path / "run")
    assert again.config.speculative_config == SpeculativeConfig.of(given)
    assert "acceptance" in told.output


def test_adapters_wait_for_a_place_and_share_no_blocks() -> None:
    same = [[(7, 0, 64)]] * 3
    asked = Trace.from_arrays([0.0, 0.0, 5.0], [64] * 3, [20] * 3, segments=same, lora_id=[1, 2, 2])
    result = kvsim.simulate(asked, **SMALL, backend="python", enable_lora=True, max_loras=1)
    first, second, third = result.requests
    assert second["first_scheduled_time"] >= first["finish_time"]
    assert (second["num_cached_tokens"], third["num_cached_tokens"]) == (0, 48)
    with pytest.raises(ValueError, match="enable_lora is off"):
        serve(asked)


def test_a_grammar_is_awaited_while_others_pass() -> None:
    asked = Trace.from_arrays([0.0, 0.0, 9.0], [64] * 3, [5] * 3, grammar_time=[2.0, -1, 0.5])
    rows = kvsim.simulate(asked, **SMALL, backend="python").requests
    assert rows["first_scheduled_time"].tolist() == [2.0, 0.0, 9.5]


@pytest.mark.parametrize("budget", [8, 10, 14])
def test_drafts_of_a_prompt_that_is_nearly_all_hit_may_not_fit(budget: int) -> None:
    """One token to compute, and three drafts to make the batch of one shape: it waits for room."""
    at, prompts = np.arange(40) * 0.03, np.full(40, 33)
    trace = kvsim.Trace.from_arrays(at, prompts, np.full(40, 30), segments=[[(1, 0, 33)]] * 40)
    options: dict[str, Any] = {
        "model": "llama-3-8b",
        "gpu": "l4",
        "max_model_len": 512,
        "max_num_seqs": 4,
        "max_num_batched_tokens": budget,
        "speculative_config": {"method": "eagle3", "num_speculative_tokens": 3},
        "async_scheduling": False,
        "record_steps": True,
    }
    python, compiled = (kvsim.simulate(trace, **options, backend=b) for b in ("python", "compiled"))
    assert equal_tables(python.steps, compiled.steps)
    assert python.summary == compiled.summary
    assert python.steps["num_scheduled_tokens"].max() <= budget
    assert python.summary["completed"] == 40
