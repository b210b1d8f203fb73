"""Speculation under SGLang: recorded schedules, shapes of drafts, memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded import DATA, name_of, smallest

import kvsim
from kvsim.cli import main
from kvsim.config import Config
from kvsim.engines.sglang.drafting import shape_of

RECORDED = sorted((DATA / "sglang_cases2" / "spec").glob("*.json.gz"))
EAGLE: dict[str, Any] = {
    "gpu": "h100-sxm",
    "engine": "sglang",
    "speculative_algorithm": "EAGLE",
    "max_total_tokens": 4000,
    "backend": "python",
    "check_invariants": True,
}


@pytest.mark.parametrize("path", smallest(RECORDED))
def test_recorded_drafts_come_out_identical(path: Path) -> None:
    assert kvsim.replay(path, check_invariants=path.stat().st_size < 5000) is None


@pytest.mark.slow
@pytest.mark.parametrize("path", RECORDED, ids=name_of)
def test_recorded_drafts_come_out_identical_compiled(path: Path) -> None:
    assert kvsim.replay(path, backend="compiled") is None


@pytest.mark.parametrize(
    ("model", "given", "shape"),
    [
        ("llama-3-8b", {}, (5, 4, 8)),
        ("qwen3-8b", {}, (3, 1, 4)),
        ("llama-3-8b", {"speculative_num_steps": 2}, (2, 1, 3)),
        ("qwen3-8b", {"speculative_eagle_topk": 2, "speculative_num_draft_tokens": 6}, (3, 2, 6)),
        ("qwen3-8b", {"speculative_num_draft_tokens": 9}, (3, 1, 4)),  # forced by topk 1
    ],
)
def test_shapes_of_drafts(model: str, given: dict[str, int], shape: tuple[int, ...]) -> None:
    assert shape_of(Config(model=model, gpu="h100-sxm", **given)) == shape


def test_all_drafts_accepted_end_a_request_in_fewer_steps() -> None:
    """The prompt yields one token, each verification all four: 1 + 4 x 4 = 17 in five steps."""
    trace = kvsim.Trace.from_arrays([0.0], [100], [17], acceptance_rate=np.array([1.0]))
    options: dict[str, Any] = {"model": "qwen3-8b", "disable_overlap_schedule": True}
    result = kvsim.simulate(trace, **EAGLE | options)
    assert result.summary["num_drafts"] == 4
    assert result.summary["num_accepted_tokens"] == 12
    assert result.requests["num_output_tokens"].tolist() == [17]


def test_a_hit_leaves_the_last_two_tokens_to_compute() -> None:
    """Keys of EAGLE are pairs of tokens, one fewer than tokens."""
    segments = [[(1, 0, 100)]] * 2
    trace = kvsim.Trace.from_arrays([0.0, 9.0], [100] * 2, [8] * 2, segments=segments)
    hits = [
        kvsim.simulate(trace, **EAGLE | {"model": "qwen3-8b", "speculative_algorithm": name})
        .requests["num_cached_tokens"]
        .tolist()
        for name in ("EAGLE", None)
    ]
    assert hits == [[0, 98], [0, 99]]


def test_the_drafter_takes_memory() -> None:
    options: dict[str, Any] = {"model": "llama-3-8b", "gpu": "h100-sxm", "engine": "sglang"}
    plain = kvsim.capacity(**options)
    drafts = kvsim.capacity(**options, speculative_algorithm="EAGLE")
    assert drafts.bytes_per_token * 32 == plain.bytes_per_token * 33  # one layer beside 32
    assert plain.num_tokens is not None
    assert drafts.num_tokens is not None
    assert drafts.num_tokens < plain.num_tokens * 32 / 33
    assert drafts.max_concurrency["256"] == 48  # SGLang's limit under speculation


OSS = {"model": "gpt-oss-20b", "gpu": "h100-sxm", "engine": "sglang", "max_model_len": 2048}


def test_a_drafter_of_a_model_with_windows_keeps_all_tokens() -> None:
    """Of gpt-oss's 24 layers, 12 keep all tokens and 12 get 0.8 slots per token."""
    num_bytes = 2000 * 16 * 2048 * 12 * 13  # whole blocks with and without the drafter
    options: dict[str, Any] = {**OSS, "kv_cache_memory_bytes": num_bytes}
    sizes = [
        kvsim.capacity(**options, speculative_algorithm=name).num_tokens
        for name in (None, "EAGLE3")
    ]
    layer = 2 * 8 * 64 * 2  # bytes: keys and values of eight heads of 64
    expected = [int(num_bytes // (layer * (num_full + 0.8 * 12))) for num_full in (12, 13)]
    assert sizes == expected


@pytest.mark.long
@pytest.mark.parametrize(("page_size", "tokens"), [(1, [600, 599]), (16, [592, 592])])
def test_prompts_that_branch_leave_a_window_before_the_branch(
    page_size: int, tokens: list[int]
) -> None:
    """Of 600 shared tokens the third prompt finds all, or the 599 pairs of EAGLE3's keys."""
    segments = [[(1, 0, 600), (10 + k, 0, 300)] for k in range(3)]
    trace = kvsim.Trace.from_arrays([0.0, 3.0, 6.0], [900] * 3, [300] * 3, segments=segments)
    options: dict[str, Any] = {**EAGLE, **OSS, "chunked_prefill_size": 1024, "page_size": page_size}
    found = [
        kvsim.simulate(trace, **options | {"speculative_algorithm": name})
        .requests["num_cached_tokens"]
        .tolist()
        for name in (None, "EAGLE3")
    ]
    assert found == [[0, 0, number] for number in tokens]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (
            "qwen3-next-80b-a3b -tp 4 --speculative-algorithm NEXTN "
            "--mamba-radix-cache-strategy extra_buffer_lazy",
            "only with extra_buffer",
        ),
        (
            "llama-3-8b --speculative-algorithm EAGLE --enable-hierarchical-cache --kv-store file",
            "storage behind a host tier",
        ),
        (
            'llama-3-8b --speculative-config {"method":"ngram","num_speculative_tokens":3}',
            "takes speculative_algorithm",
        ),
        ("llama-3-8b --speculative-algorithm DFLASH", "EAGLE"),
    ],
)
def test_what_is_not_modelled_is_refused(
    line: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "--model", *line.split(), "--gpu", "h100-sxm", "--engine", "sglang"])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1
