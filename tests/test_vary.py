"""Values of an option on the same requests: the difference and its interval."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import kvsim
from kvsim.cli import main
from kvsim.report.paired import caption, signed
from kvsim.study.paired import differences

if TYPE_CHECKING:
    from pathlib import Path

TINY = ("--model", "opt-125m", "--gpu", "a100-40gb", "--num-requests", "40", "--request-rate", "20")


def pairs(gaps: list[float], bases: list[float]) -> Any:
    first = [{"x": base} for base in bases]
    other = [{"x": base + gap} for base, gap in zip(bases, gaps, strict=True)]
    return differences(first, other)["x"]


def test_an_interval_is_students_over_the_pairs() -> None:
    found = pairs([1.0, 2.0, 3.0], [0.0, 0.0, 0.0])
    half = 4.303 * 1.0 / math.sqrt(3)  # two degrees of freedom, standard deviation 1
    assert found.mean == 2.0
    assert found.low == pytest.approx(2.0 - half)
    assert found.high == pytest.approx(2.0 + half)
    assert not found.is_certain
    assert pairs([1.0, 1.1, 0.9], [0.0, 0.0, 0.0]).is_certain


def test_what_both_of_a_pair_share_drops_out() -> None:
    narrow = pairs([1.0, 1.1, 0.9, 1.0], [0.0, 0.0, 0.0, 0.0])
    noisy = pairs([1.0, 1.1, 0.9, 1.0], [100.0, 3000.0, 7.0, 50000.0])
    assert noisy.low == pytest.approx(narrow.low)


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(2000):
        found = pairs(list(rng.normal(3.0, 2.0, 5)), list(rng.normal(0.0, 50.0, 5)))
        hits += found.low <= 3.0 <= found.high
    assert 0.93 < hits / 2000 < 0.97


def test_a_single_pair_has_no_interval_and_odd_metrics_none_at_all() -> None:
    found = differences([{"x": 1.0, "y": None, "z": "a"}], [{"x": 2.0, "y": 1.0, "z": "b"}])
    assert list(found) == ["x"]
    assert (found["x"].mean, found["x"].low, found["x"].percent) == (1.0, None, 100.0)
    assert not found["x"].is_certain


@pytest.mark.slow
def test_compare_varies_any_option_on_the_same_requests(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("compare", *TINY, "--vary", "max-num-seqs=1,8", "--replications", "3", "--json", "-")
    main([*asked, "--backend", "python"])
    answer = json.loads(capsys.readouterr().out)
    assert [row["options"] for row in answer["rows"]] == [
        {"max_num_seqs": "1"},
        {"max_num_seqs": "8"},
    ]
    (found,) = answer["differences"]
    assert found["against"] == {"max_num_seqs": "1"}
    gap = found["metrics"]["mean_ttft_ms"]
    assert gap["high"] < 0  # a server of eight places makes nobody wait longer
    means = [row["mean_ttft_ms"] for row in answer["rows"]]
    assert gap["mean"] == pytest.approx(means[1] - means[0])
    assert answer["rows"][0]["total_input_tokens"] == answer["rows"][1]["total_input_tokens"]


@pytest.mark.slow
def test_options_of_a_file_are_varied_and_flags_win_over_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "served.toml"
    file.write_text('model = "opt-125m"\ngpu = "a100-40gb"\nmax_num_seqs = 3\nnum_requests = 20\n')
    more = ("--replications", "2", "--backend", "python", "--json", "-")
    answers = []
    for asked in (
        (str(file), "--vary", "max-num-seqs=1,8"),
        ("opt-125m", *TINY[2:4], "--num-requests", "20", "--vary", "max-num-seqs=1,8"),
        (str(file), "--num-requests", "10", "--vary", "block-size=16,32"),
    ):
        main(["compare", *asked, *more])
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0] == answers[1]
    assert answers[2]["workload"]["num_requests"] == 10
    assert answers[2]["rows"][0]["peak_running"] <= 3
    main(["compare", str(file), "--allocators", "paged", "--json", "-", "--backend", "python"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert rows[0]["peak_running"] <= 3


@pytest.mark.slow
def test_a_page_shows_the_differences_and_one_run_of_each(tmp_path: Path) -> None:
    page = tmp_path / "v.html"
    asked = ("compare", *TINY, "--vary", "max-num-seqs=1,8", "--replications", "3")
    main([*asked, "--json", str(tmp_path / "v.json"), "--report", str(page)])
    answer = json.loads((tmp_path / "v.json").read_text())
    text = page.read_text()
    assert "Against max-num-seqs=1. max-num-seqs=8: mean TTFT -" in text
    assert text.count('"name":"max-num-seqs=') == 2  # runs of the explorer
    found = answer["differences"][0]["metrics"]["output_throughput"]
    assert signed(found["mean"]) in text
    assert "includes zero" in caption(answer)
    # What is shown is what runs without a page say.
    main([*asked, "--json", str(tmp_path / "plain.json")])
    assert json.loads((tmp_path / "plain.json").read_text()) == answer


@pytest.mark.long
def test_policies_are_bounded_by_those_that_know_the_future(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sizes = "turns=6+first=600+growth=100+max-prompt=2000+system=100+output=30+hints=true"
    asked = ["compare", *TINY[:4], "--workload", f"agentic+{sizes}", "--num-requests", "60"]
    asked += ["--request-rate", "20", "--num-gpu-blocks-override", "400", "--replications", "2"]
    asked += ["--backend", "python"]
    main([*asked, "--policies", "lru,hints,belady", "--json", "-"])
    answer = json.loads(capsys.readouterr().out)
    hits = {row["options"]["policy"]: row["prefix_cache_hit_rate"] for row in answer["rows"]}
    bounds = answer["bounds"]
    assert list(hits) == ["lru", "hints", "belady"]
    assert hits["lru"] < hits["belady"] == max(hits.values()) < bounds["infinite_hit_rate"]
    assert hits["lru"] < bounds["optimal_hit_rate"] < bounds["infinite_hit_rate"]
    gaps = answer["differences"][-1]["metrics"]
    assert gaps["sessions.hit_rate"]["mean"] > 0.0
    assert {"sessions.p50_turn_ttft_ms", "sessions.mean_duration"} <= set(gaps)


@pytest.mark.long
def test_the_table_says_what_served_and_shows_what_the_option_moves(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ("compare", "--model", "opt-125m", "--gpu", "a100-40gb", "--num-requests", "20")
    main([*asked, "--vary", "block-size=16,128", "--replications", "1", "--backend", "python"])
    printed = capsys.readouterr()
    assert "opt-125m on a100-40gb, " in printed.out
    assert "20 requests at " in printed.out
    assert "one run per configuration" in printed.out
    headings = printed.out[printed.out.index("TTFT") :]
    assert "waste" in headings
    assert "preempted" not in headings
    assert "note: one run per configuration, without an interval" in printed.err
    main([*asked, "--vary", "max-num-seqs=8,16", "--replications", "1", "--backend", "python"])
    assert "waste" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_varied_comparison_is_written_and_its_folder_makes_the_page(tmp_path: Path) -> None:
    asked = ("compare", "--model", "opt-125m", "--gpu", "a100-40gb", "--num-requests", "10")
    more = ("--vary", "block-size=16,128", "--replications", "2", "--backend", "python")
    folder, json_file, page = tmp_path / "out", tmp_path / "a.json", tmp_path / "page.html"
    main([*asked, *more, "--out", str(folder), "--json", str(json_file)])
    answer = json.loads((folder / "comparison.json").read_text())
    assert answer == json.loads(json_file.read_text())
    gap = answer["differences"][0]["metrics"]["kv_cache.token_states"]
    states = [row["kv_cache"]["token_states"] for row in answer["rows"]]
    assert gap["mean"] == pytest.approx(states[1] - states[0])
    for size in ("16", "128"):
        assert kvsim.load(folder / f"block-size={size}").config.block_size == int(size)
        assert (folder / f"block-size={size}" / "memory.png").is_file()
    main(["report", str(folder), "-o", str(page)])
    said = "kvsim compare CONFIG.toml --vary block-size=16,128 --replications 2 runs them again"
    assert said in page.read_text()
    told = json.loads((folder / "comparison.json").read_text())
    for broken in ({**told, "differences": []}, {**told, "rows": [{}]}):
        (folder / "comparison.json").write_text(json.dumps(broken))
        with pytest.raises(SystemExit) as stopped:
            main(["report", str(folder), "-o", str(page)])
        assert stopped.value.code == 2


@pytest.mark.parametrize(
    ("value", "told"),
    [(-368_912.0, "-369,000"), (4.0512, "+4.05"), (0.5, "+0.5"), (0.0, "+0"), (2e-5, "+2e-05")],
)
def test_differences_are_written_to_three_digits(value: float, told: str) -> None:
    assert signed(value) == told


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["--vary", "max-num-seqs=1"], "--vary: give two values or more"),
        (["--policies", "lru"], "--policies: give two or more, A,B"),
        (["--policies", "lru,arc2"], "unknown policy 'arc2'"),
        (["--policies", "lru,ttl=0"], "is 'ttl=0': must be none, ttl=SECONDS"),
        (["--policies", "lru,fifo", "--engines", "vllm,sglang"], "--policies: conflicts with"),
        (["--vary", "seed=1,2"], "--vary seed: cannot vary, as all configurations share it"),
        (["--vary", "max-num-seq=1,2"], "did you mean max_num_seqs"),
        (
            ["--vary", "block-size=8,16", "--allocators", "paged"],
            "--allocators: conflicts with --vary",
        ),
        (
            ["--vary", "num-requests=8,16"],
            "--vary num-requests: cannot vary, as all configurations share it",
        ),
        (["--vary", "gpu=l4,l40s"], "--gpu: conflicts with --vary gpu: give one of them"),
        (["llama-3-8b", "--vary", "block-size=8,16"], "llama-3-8b: conflicts with --model"),
        (["none.toml"], "none.toml: cannot be read"),
        (["--vary", "block-size=8,16", "--report", "no/x.html"], "--report no/x.html: cannot be"),
    ],
)
def test_mistakes_are_told_in_one_line(
    asked: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["compare", *TINY, *asked])
    assert stopped.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert told in lines[0]
