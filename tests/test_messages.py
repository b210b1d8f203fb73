"""What errors say: plain words, the numbers, and what to give instead."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import kvsim
from kvsim.cases.recorded import read_case
from kvsim.cli import main
from kvsim.engine.shortage import why_none
from kvsim.speculation import SpeculativeConfig
from kvsim.study.slo import read_predicate

if TYPE_CHECKING:
    from pathlib import Path


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = 0
    try:
        main(arguments)
    except SystemExit as stop:
        code = int(stop.code or 0)
    return code, capsys.readouterr().err.strip()


SMALL = ("run", "opt-125m", "--gpu", "a100-80gb", "--num-requests", "2", "--backend", "python")


# -- requests that never fit ----


def test_what_never_fits_is_told_in_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    """50 blocks are 49 beside the null one: 784 tokens. 900 tokens of prompt are 57 blocks."""
    code, told = said(
        *(capsys, *SMALL, "--num-gpu-blocks-override", "50", "--workload", "fixed+prompt=900")
    )
    assert code == 2
    assert told == (
        "kvsim: no request can ever be served: needs more KV memory than there is: 784 tokens of a "
        "request fit, prompt and output together (49 blocks of 16), and the shortest prompt has "
        "900 (57 blocks) before its output: raise --num-gpu-blocks-override"
    )


def test_what_reserves_the_longest_request_is_told_so() -> None:
    trace = kvsim.Trace.from_arrays([0.0], [10], [10])
    result = kvsim.simulate(
        trace,
        model="opt-125m",
        gpu="a100-80gb",
        allocator="contiguous-max",
        kv_cache_memory_bytes=10_000_000,
        backend="python",
    )
    assert result.summary["rejections"] == {"needs more KV memory than there is": 1}
    assert (
        "contiguous-max fits no request of any length at max_model_len 2,048: lower "
        "--max-model-len, or raise --kv-cache-memory-bytes"
    ) in why_none(result)


def test_the_most_tokens_that_are_told_fit_and_one_more_does_not() -> None:
    options = {"model": "opt-125m", "gpu": "a100-80gb", "num_gpu_blocks_override": 50}
    ended = [
        kvsim.simulate(kvsim.Trace.from_arrays([0.0], [prompt], [84]), **options)  # type: ignore[arg-type]
        for prompt in (700, 701)
    ]
    assert [int(run.requests["finish_reason"][0]) for run in ended] == [0, 1]
    assert ": 784 tokens of a request fit" in why_none(ended[1])


# -- plain words for values that are wrong ----


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ([1], "case: must be an object with config, workload, steps"),
        ({}, "case: lacks config, workload, steps"),
        ({"workload": {"requests": []}, "steps": [{}]}, "case: lacks config"),
        (
            {"config": {"num_gpu_blocks": "x"}, "workload": {"requests": []}, "steps": [{}]},
            "config.num_gpu_blocks: must be a whole number",
        ),
    ],
)
def test_case_files_say_what_lacks_in_plain_words(
    tmp_path: Path, content: object, told: str
) -> None:
    path = tmp_path / "case.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="case") as raised:
        read_case(path)
    assert str(raised.value) == f"{path}: {told}"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"num_speculative_tokens": "x"}, "num_speculative_tokens is 'x': must be a whole number"),
        (
            {"num_speculative_tokens": 3, "disable_eagle_block_drop": "maybe"},
            "disable_eagle_block_drop is 'maybe': must be true or false",
        ),
    ],
)
def test_json_flags_are_told_in_plain_words(given: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        SpeculativeConfig.of({"method": "ngram", **given})


@pytest.mark.parametrize(
    ("workload", "told"),
    [
        (
            "random+input-len=1000,output-len=5000",
            "input-len=1000,output-len=5000: must be a whole number "
            "(+ joins keys: input-len=1000+output-len=5000)",
        ),
        (
            "random,input-len=1000",
            "unknown workload 'random,input-len=1000': + joins keys, as in random+input-len=1000",
        ),
    ],
)
def test_a_comma_between_keys_is_told(
    capsys: pytest.CaptureFixture[str], workload: str, told: str
) -> None:
    code, line = said(capsys, *SMALL, "--workload", workload)
    assert code == 2
    assert line.endswith(told)


def test_an_unknown_metric_names_near_ones_and_where_the_list_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ValueError, match="unknown metric 'p99_tft_ms'; did you mean") as raised:
        read_predicate("p99_tft_ms<=3")
    assert "p99_ttft_ms" in str(raised.value)
    assert str(raised.value).endswith("(kvsim list metrics shows all)")
    assert len(str(raised.value)) < 150
    main(["list", "metrics"])
    assert "p99_ttft_ms" in capsys.readouterr().out


# -- lists ----


@pytest.mark.parametrize(
    "kind", ["allocators", "schedulers", "eviction-policies", "routers", "workloads", "arrivals"]
)
def test_lists_show_no_markup(capsys: pytest.CaptureFixture[str], kind: str) -> None:
    main(["list", kind])
    assert "`" not in capsys.readouterr().out


def test_lists_show_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    main(["list", "workloads"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "prompt=512, output=128" in shown
    assert "turns=4" in shown
    assert "--num-requests, --request-rate and --seed are options of their own" in shown
    main(["list", "trace-formats"])
    assert "chars-per-token=4" in capsys.readouterr().out


def test_a_drawn_rate_of_sessions_is_explained(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Two sessions of five turns: the turns come long after the sessions have begun."""
    rows = "num_prefill_tokens,num_decode_tokens\n" + "".join(
        f"{100 * turn + 50},50\n" for _ in range(2) for turn in range(5)
    )
    (tmp_path / "chats.csv").write_text(rows)
    files = (str(tmp_path / "chats.csv"), str(tmp_path / "out.csv"))
    code, told = said(capsys, "trace", "convert", *files, "--request-rate", "2")
    assert code == 0
    assert "2 requests/s requested, 0." in told
    assert (
        "arrive over the whole trace: sessions begin at the requested rate, and their later" in told
    )


def test_a_file_without_its_class_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    code, line = said(capsys, *SMALL, "--scheduler", "mine.py")
    assert code == 2
    assert line.endswith("unknown scheduler 'mine.py': name its class, as in mine.py:NAME")
