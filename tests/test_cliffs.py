"""Jumps of hits and first tokens between two values of an option."""

from __future__ import annotations

import csv
import json
import math
import re
from functools import partial

import pytest

import kvsim
from experiments.validation import cliffs as published
from kvsim.api.requests import REQUESTS
from kvsim.cli.main import main
from kvsim.cliffs.cliffs import read_range
from kvsim.cliffs.finder import Point, find_jumps

STAIRS = (1_237, 5_001, 5_002)


def stairs(value: float, *, steps: tuple[int, ...] = (9_409,), height: float = 0.9) -> Point:
    """Return hits that rise by a part of ``height`` from each step on."""
    return Point(value, height * sum(value >= one for one in steps) / len(steps), 1.0, 1.0)


@pytest.mark.parametrize("step", [9_409, 2_001, 15_999, 7_750])
def test_a_jump_is_found_to_the_unit_in_few_runs(step: int) -> None:
    found = find_jumps(partial(stairs, steps=(step,)), 2_000, 16_000, step=1)
    ((below, above, is_narrow),) = found.jumps
    assert (below.value, above.value, is_narrow) == (step - 1, step, True)
    assert len(found.points) <= 21


def test_two_jumps_far_apart_and_two_that_touch_are_found() -> None:
    found = find_jumps(partial(stairs, steps=STAIRS), 1_000, 9_000, step=1)
    assert [one.above.value for one in found.jumps] == list(STAIRS)


def test_a_jump_of_first_tokens_alone_is_found() -> None:
    found = find_jumps(lambda x: Point(x, 0.5, 0.1, 0.1 if x < 70 else 0.21), 1, 200, step=1)
    assert [one.above.value for one in found.jumps] == [70]


@pytest.mark.parametrize(
    "hits",
    [
        lambda x: 0.0,
        lambda x: x / 1000,  # a straight line
        lambda x: 0.09 * (x > 500),  # too small
        lambda x: 1 / (1 + math.exp((500 - x) / 40)),  # steep, but wide
    ],
)
def test_no_jump_is_found_where_none_is(hits) -> None:  # type: ignore[no-untyped-def]
    assert not find_jumps(lambda x: Point(x, hits(x), 1.0, 1.0), 0, 1000, step=1).jumps


def test_a_steep_rise_inside_an_interval_is_a_slope() -> None:
    found = find_jumps(lambda x: Point(x, min(max(x - 500, 0) / 100, 1), 1.0, 1.0), 0, 1000, step=1)
    assert not found.jumps
    assert found.slopes


def test_the_search_ends_at_its_runs_and_says_so() -> None:
    found = find_jumps(stairs, 0, 1 << 30, step=1, most=12)
    assert [one.is_narrow for one in found.jumps] == [False]
    assert len(found.points) == 12


def test_real_numbers_end_at_half_a_per_cent() -> None:
    ((below, above, _),) = find_jumps(partial(stairs, steps=(7,)), 1.0, 12.0, step=None).jumps
    assert below.value < 7 <= above.value <= below.value * 1.005


@pytest.mark.parametrize(
    ("text", "given", "told"),
    [
        ("block-size", {}, "must be OPTION=LO:HI"),
        ("block-size=1:2:3:4", {}, "must be OPTION=LO:HI"),
        ("block-size=2:x", {}, "must be numbers"),
        ("block-size=2:1", {}, "LO must be less than HI"),
        ("block-size=1:2:0", {}, "STEP more than 0"),
        ("block-size=1:2", {"block_size": 16}, "conflicts with --vary"),
        ("blocksize=1:2", {}, "unknown option 'blocksize'"),
        ("workload.prefix=1:2", {}, "needs --workload"),
        ("model.size=1:2", {}, "must be an option, or workload.PARAMETER"),
    ],
)
def test_a_wrong_range_is_one_line(text: str, given: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        read_range(text, given)


def test_a_parameter_of_a_workload_takes_the_value() -> None:
    given = {"workload": "shared-prefix+prefix=3+suffix=9"}
    asked = read_range("workload.prefix=1:20", given)
    assert asked.options(7.0, given) == {"workload": "shared-prefix+suffix=9+prefix=7"}


def cliffs(capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, object]:
    alone = ("--max-concurrency", "1", "--request-rate", "inf", "--num-requests", "64")
    main(["cliffs", *alone, *more, "--json", "-"])
    answer: dict[str, object] = json.loads(capsys.readouterr().out)
    return answer


@pytest.mark.long
def test_a_prefix_below_a_block_of_a_hybrid_model_hits_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The prefixes of vLLM issues 45238 and 53749; 48 of 64 requests hit from 1,056 tokens on."""
    asked = ("--model", "qwen3.5-35b-a3b", "--gpu", "h200-sxm", "--max-model-len", "32768")
    load = "shared-prefix+num-prefixes=8+suffix=1400+output=8"
    more = ("--num-gpu-blocks-override", "2000", "--max-num-seqs", "32", "--workload", load)
    answer = cliffs(capsys, *asked, *more, "--vary", "workload.prefix=900:1200")
    (one,) = answer["cliffs"]  # type: ignore[misc]
    assert (one["below"], one["above"], one["mechanism"]) == (1055, 1056, "below a block")
    assert one["hits"] == [0, pytest.approx(0.32, abs=0.05)]


@pytest.mark.long
@pytest.mark.parametrize(
    "workload",
    ["random", "shared-prefix+num-prefixes=2+prefix=2048+suffix=16+output=1"],
)
def test_full_attention_loses_hits_block_by_block(
    capsys: pytest.CaptureFixture[str], workload: str
) -> None:
    asked = ("--model", "llama-3-8b", "--gpu", "h100-sxm", "--max-model-len", "2100")
    vary = ("--vary", "num-gpu-blocks-override=140:400:4")
    assert cliffs(capsys, *asked, "--workload", workload, *vary)["cliffs"] == []


@pytest.mark.long
def test_a_place_too_few_in_the_batch_delays_first_tokens(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ("--model", "llama-3-8b", "--gpu", "h100-sxm", "--workload", "fixed+prompt=16")
    at_once = ("--max-concurrency", "11", "--num-requests", "11")
    answer = cliffs(capsys, *asked, *at_once, "--vary", "max-num-seqs=6:12")
    (one,) = answer["cliffs"]  # type: ignore[misc]
    assert (one["below"], one["above"], one["mechanism"]) == (9, 10, "queue")


@pytest.mark.long
def test_a_rising_load_is_not_a_cliff(capsys: pytest.CaptureFixture[str]) -> None:
    """First tokens wait longer and longer past the knee, at no rate all at once."""
    asked = ("--model", "llama-3-8b", "--gpu", "h100-sxm", "--max-num-seqs", "16")
    load = ("--workload", "fixed+prompt=512+output=64", "--num-requests", "400")
    main(["cliffs", *asked, *load, "--vary", "request-rate=5.0:60.0", "--json", "-"])
    answer = json.loads(capsys.readouterr().out)
    first, last = answer["points"][0], answer["points"][-1]
    assert last["p50_ttft"] > 10 * first["p50_ttft"]
    assert answer["cliffs"] == []


@pytest.mark.parametrize(
    ("reported", "steps", "verdict"),
    [
        ("528", [(527, 528)], "inside"),
        ("528", [(528, 529)], "outside: 0.2 % higher"),
        ("1,500 to 1,600", [(1583, 1584)], "inside"),
        ("34,000 to 38,000", [(32700, 33000)], "outside: 2.9 % lower"),
        ("34,000 to 38,000", [(30000, 30100), (41800, 42000)], "outside: 11.5 % lower"),
        ("34,000 to 38,000", [(30000, 30100), (35000, 35100)], "inside"),
        ("48 or more", [(50, 51)], "inside"),
        ("48 or more", [(40, 41)], "outside: 14.6 % lower"),
        ("4 to 8", [(17, 18)], "outside: 125.0 % higher"),
        ("1 to 2", [], "not served"),
    ],
)
def test_a_collapse_is_inside_or_outside_what_was_reported(reported, steps, verdict) -> None:  # type: ignore[no-untyped-def]
    made = [published.Step(*values, (0.9, 0.1)) for values in steps]
    assert published.verdict(reported, made) == verdict


def test_several_jumps_of_a_search_are_shown_one_by_one() -> None:
    report = published.REPORTS[0]._replace(reported="15 to 20", note="as logged")
    steps = [published.Step(10, 11, (0.9, 0.5)), published.Step(18, 19, (0.4, 0.0))]
    assert published.row_of(report, steps * 2)[4] == "4 steps from 10 to 19"
    assert published.row_of(report, steps)[4:] == [
        *("10 / 11; 18 / 19", "inside", "90 / 50 %; 40 / 0 % hits; as logged")
    ]


def test_the_record_has_the_verdict_of_each_row() -> None:
    with (published.RECORDS / published.FILE).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["report"] for row in rows] == [one.name for one in published.REPORTS]
    for row in rows:
        found = re.sub(r"\d+ steps from (.*) to ", r"\1 / ", row["found"])
        pairs = [pair.split(" / ") for pair in found.split("; ") if pair]
        steps = [published.Step(*(int(n.replace(",", "")) for n in p), (0, 0)) for p in pairs]
        assert row["verdict"] == published.verdict(row["reported"], steps)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("vllm#45238", (1583, 1584)),
        ("sglang#38000", (47, 48)),
        ("vllm#42948, #43302, #43447", (17, 18)),
    ],
)
def test_a_published_collapse_is_found(name: str, values: tuple[int, int]) -> None:
    (report,) = [one for one in published.REPORTS if one.name == name]
    (step,) = published.steps_of(report)
    assert (step.below, step.above) == values
    assert abs(step.hits[1] - step.hits[0]) > 0.25


@pytest.mark.slow
@pytest.mark.parametrize(("prefix", "hits"), [(1583, 40), (1584, 52)])
def test_as_many_requests_hit_as_published(prefix: int, hits: int) -> None:
    (report,) = [one for one in published.REPORTS if one.name == "vllm#45238"]
    sent = published.in_turn(
        num_requests=64, request_rate=math.inf, sessions=12, prefix=prefix, suffix=600, output=8
    )
    given = {key: value for key, value in report.options.items() if key not in REQUESTS}
    requests = kvsim.simulate(sent, model=report.model, **given).requests
    assert (requests["num_cached_tokens"] > 0).sum() == hits
