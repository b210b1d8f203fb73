"""SGLang's radix cache and scheduler: its recorded cases, its invariants, both engines alike."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import DATA, name_of
from strategies import examples, traces

import kvsim
import workloads
from kvsim.cli import main
from kvsim.config import Config
from kvsim.engine.setup import resolve
from kvsim.engines.sglang.cases.tokens import TOKENS, pieces, token
from kvsim.engines.sglang.sched.scheduler import SglangScheduler
from kvsim.testing import check_result, equal_tables
from kvsim.trace import Trace

CASES = sorted((DATA / "sglang_cases").glob("*.json.gz"))
#: Quick ones, by number: each policy, loop, page size and kind of pressure once.
QUICK = (
    *("00", "02", "11", "14", "19", "24", "25", "27", "29", "31", "33", "36", "39"),
    *("41", "42", "43", "44", "63", "70"),
    *("c03", "c07", "c12", "hicache_h04", "hicache_h05", "hicache_h14"),
    *("s02", "s16", "s17"),
    *("radix_r01", "radix_r06", "radix_r15", "radix_r18", "radix_r25"),
)
#: Those of them that take a second each.
LONGER = (
    *("11", "19", "24", "25", "27", "29", "31", "33", "36", "39", "44", "70"),
    *("c07", "c12", "s02", "s16", "radix_r01"),
)


def has_number(path: Path, numbers: tuple[str, ...]) -> bool:
    return name_of(path).startswith(tuple(f"{number}_" for number in numbers))


def played(path: Path) -> Any:
    marks = [] if has_number(path, QUICK) else [pytest.mark.slow]
    marks += [pytest.mark.long] * has_number(path, LONGER)
    return pytest.param(path, marks=marks, id=name_of(path))


@pytest.mark.parametrize("path", [played(path) for path in CASES])
def test_recorded_cases_come_out_identical_and_keep_the_invariants(path: Path) -> None:
    assert kvsim.replay(path, check_invariants=path.stat().st_size < 5000) is None


@pytest.mark.slow
@pytest.mark.parametrize("path", CASES, ids=name_of)
def test_recorded_cases_come_out_identical_compiled(path: Path) -> None:
    assert kvsim.replay(path, backend="compiled") is None


def test_a_case_that_differs_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import gzip
    import json

    source = next(path for path in CASES if name_of(path) == "00_basic")
    content = json.loads(gzip.decompress(source.read_bytes()))
    content["steps"][7]["ntr"] += 0.25
    changed = tmp_path / "case.json"
    changed.write_text(json.dumps(content))
    with pytest.raises(SystemExit) as exit_info:
        main(["replay-case", "--backend", "python", str(changed)])
    assert exit_info.value.code == 1
    assert f"step {content['steps'][7]['s']}: ntr: expected" in capsys.readouterr().out


def test_stretches_of_segments_are_equal_where_their_tokens_are() -> None:
    """On the ring, against the tokens themselves."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        segment, start = (int(n) for n in rng.integers(0, 40_000, 2))
        numbers = [at + k for _, at, n in pieces(segment, start, 40) for k in range(n)]
        tokens = [token(segment, start + k) for k in range(40)]
        assert [10 + 7919 * number % 31990 for number in numbers] == tokens
    assert {content for content, _, _ in pieces(3, 0, 40_000)} == {TOKENS}


# -- as an engine -----------------------------------------------------------------------------


@st.composite
def settings_of_sglang(draw: st.DrawFn) -> dict[str, Any]:
    """Options of a deployment under memory pressure."""
    page_size = draw(st.sampled_from([1, 1, 4, 16]))
    chunk = draw(st.sampled_from([-1, 1, 2, 8])) * page_size
    options: dict[str, Any] = {
        "model": "llama-3-8b",
        "gpu": "h100-sxm",
        "engine": "sglang",
        "page_size": page_size,
        "num_gpu_blocks_override": draw(st.integers(2, 14)),
        "max_model_len": draw(st.sampled_from([64, 256])),
        "max_running_requests": draw(st.integers(1, 6)),
        "chunked_prefill_size": max(chunk, -1),
        "max_prefill_tokens": draw(st.sampled_from([16, 16384])),
        "prefill_max_requests": draw(st.sampled_from([None, None, 1])),
        "schedule_policy": draw(
            st.sampled_from(["fcfs", "fcfs", "lpm", "dfs-weight", "hrrn", "lof", "random"])
        ),
        "schedule_conservativeness": draw(st.sampled_from([0.05, 0.3, 1.0])),
        "radix_eviction_policy": draw(
            st.sampled_from(
                ["lru", "lfu", "fifo", "mru", "filo", "slru", "priority", "tlru", "hpt"]
            )
        ),
        "disable_overlap_schedule": draw(st.booleans()),
        "disable_radix_cache": draw(st.sampled_from([False, False, True])),
        "enable_priority_scheduling": draw(st.booleans()),
        "priority_scheduling_preemption_threshold": draw(st.sampled_from([0, 1])),
        "retraction_policy": draw(st.sampled_from(["length", "priority"])),
        "max_new_tokens": draw(st.sampled_from([None, 30])),
        "ignore_eos": draw(st.sampled_from([False, False, True])),
    }
    if options["max_new_tokens"] is not None:
        options["ignore_eos"] = False
    return options


@pytest.mark.long
@examples(60)
@given(traces(), settings_of_sglang())
def test_invariants_hold_after_every_step(trace: Trace, options: dict[str, Any]) -> None:
    """Slots, locks, rows and leaves are recounted after every step; every request ends once."""
    result = kvsim.simulate(trace, check_invariants=True, backend="python", **options)
    check_result(result)
    summary = result.summary
    assert summary["completed"] + summary["num_rejected"] == len(trace)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["python", pytest.param("compiled", marks=pytest.mark.long)])
def test_preemption_that_gives_nobody_a_token_ends(backend: str) -> None:
    """Two who share a beginning go first and are preempted, in turns, for one not admitted."""
    segments = [
        *([(2, 0, 14), (102, 0, 4)], [(103, 0, 22)], [(104, 0, 15)], [(105, 0, 26)]),
        *([(2, 0, 20), (107, 0, 20)], [(2, 0, 4), (108, 0, 25)]),
    ]
    trace = Trace.from_arrays(
        [0.0, 1.0, 1.0, 1.005, 1.015, 1.015],
        [sum(length for _, _, length in pieces) for pieces in segments],
        [7, 25, 14, 11, 25, 25],
        segments=segments,
        priority=[1, 0, 2, 2, 2, 0],
    )
    result = kvsim.simulate(
        trace,
        model="llama-3-8b",
        gpu="h100-sxm",
        engine="sglang",
        backend=backend,
        num_gpu_blocks_override=11,
        max_model_len=64,
        max_running_requests=3,
        chunked_prefill_size=8,
        prefill_max_requests=1,
        schedule_policy="hrrn",
        schedule_conservativeness=0.05,
        enable_priority_scheduling=True,
        priority_scheduling_preemption_threshold=1,
    )
    assert result.summary["completed"] == len(trace)
    assert result.summary["num_preemptions"] > 32


@pytest.mark.long
@examples(60)
@given(traces(), settings_of_sglang())
def test_both_engines_write_identical_tables(trace: Trace, options: dict[str, Any]) -> None:
    compiled, python = (
        kvsim.simulate(trace, backend=backend, record_steps=True, record_memory_map=True, **options)
        for backend in ("compiled", "python")
    )
    for table in ("requests", "memory", "steps"):
        assert equal_tables(getattr(compiled, table), getattr(python, table))
    assert compiled.summary == python.summary
    assert np.array_equal(compiled.memory_map, python.memory_map)


SMALL = {"model": "llama-3-8b", "gpu": "h100-sxm", "backend": "python"}


@pytest.mark.long
@pytest.mark.parametrize("disable", [False, True])
def test_a_map_of_a_radix_cache_shows_what_its_table_counts(disable: bool) -> None:
    """One request after another: what the last one held is cached, or free again, in the map."""
    trace = Trace.from_arrays([0.0, 5.0, 10.0], [300] * 3, [40] * 3)
    options = {**SMALL, "engine": "sglang", "max_total_tokens": 1024, "max_model_len": 512}
    result = kvsim.simulate(
        trace, record_memory_map=True, disable_radix_cache=disable, check_invariants=True, **options
    )
    total = float(result.memory["token_states"].max()) / (300 + 39) * 1024
    for cause, name in ((1, "token_states"), (5, "cached")):
        shown = (result.memory_map == cause).sum(axis=1) / 1024
        assert shown == pytest.approx(result.memory[name] / total, abs=0.01), name
    assert (result.memory["cached"].max() > 0) is not disable


def test_an_engine_takes_its_scheduler_and_its_allocator() -> None:
    trace = workloads.fixed(prompt=100, output=10, num_requests=4, request_rate=1.0)
    for asked in ({"engine": "sglang"}, {"scheduler": "sglang"}, {"allocator": "radix"}):
        result = kvsim.simulate(trace, **SMALL, **asked)
        assert result.summary["kv_cache"]["block_size"] == 1
        assert result.summary["completed"] == 4


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"scheduler": "sglang", "allocator": "paged"}, "needs allocator 'radix', not 'paged'"),
        ({"scheduler": "vllm", "allocator": "radix"}, "needs scheduler 'sglang', not 'vllm'"),
        ({"engine": "vllm", "scheduler": "sglang"}, "another engine's"),
        ({"schedule_policy": "lpm"}, "needs scheduler 'sglang', not 'vllm'"),
        ({"engine": "sglang", "pipeline_parallel_size": 2}, "must be 1 under scheduler"),
        (
            {"engine": "sglang", "model": "llama-4-scout", "tensor_parallel_size": 8},
            "has chunked layers, whose pools",
        ),
        ({"allocator": "radix+window=64"}, "only sliding layers"),
        (
            {"engine": "sglang", "model": "gpt-oss-20b", "max_total_tokens": 5000},
            "and a long request needs",
        ),
        ({"engine": "sglang", "gpu": "l4"}, "weights leave no page of KV"),
        (
            {"engine": "sglang", "data_parallel_size": 2, "router": "dynamo"},
            "needs KV cache events",
        ),
        ({"engine": "sglang", "page_size": 16, "chunked_prefill_size": 40}, "a multiple of"),
        (
            {
                "engine": "sglang",
                "disable_radix_cache": True,
                "schedule_policy": "shortest-prefill-first",
            },
            "conflicts with disable_radix_cache",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], reason: str) -> None:
    trace = workloads.fixed(prompt=100, output=10, num_requests=2, request_rate=1.0)
    with pytest.raises(ValueError, match=reason):
        kvsim.simulate(trace, **(SMALL | options))


def test_a_prompt_that_the_tree_holds_is_not_computed_again() -> None:
    """But for its last token, and what does not fill a page."""
    again = [[(5, 0, 50)], [(5, 0, 50)], [(5, 0, 30), (6, 0, 20)]]
    trace = Trace.from_arrays([0.0, 10.0, 20.0], [50] * 3, [4] * 3, segments=again)
    for page_size, hits in ((1, [0, 49, 30]), (16, [0, 48, 16])):
        result = kvsim.simulate(trace, **SMALL, engine="sglang", page_size=page_size)
        assert result.requests["num_cached_tokens"].tolist() == hits


def test_without_a_radix_cache_nothing_is_reused() -> None:
    trace = Trace.from_arrays([0.0, 10.0], [50] * 2, [4] * 2, segments=[[(5, 0, 50)]] * 2)
    result = kvsim.simulate(trace, **SMALL, engine="sglang", disable_radix_cache=True)
    assert result.requests["num_cached_tokens"].tolist() == [0, 0]
    assert result.summary["kv_cache"]["cached"] == 0


def test_waste_is_what_is_in_the_last_page_alone() -> None:
    """One request of 30 + 6 tokens in pages of 16, decodes of one second each.

    Its prompt's first page is the tree's, 14 tokens its own. 35 of 48 slots are written in the end:
    while the second page fills, the rest of it is reserved; of the third, 13 slots will never be.
    """
    trace = Trace.from_arrays([0.0], [30], [6])
    result = kvsim.simulate(
        trace,
        **SMALL,
        engine="sglang",
        page_size=16,
        cost_model="constant+seconds=1",
        disable_overlap_schedule=True,
    )
    kv = result.summary["kv_cache"]
    held = [(30, 32), (31, 32), (32, 32), (33, 48), (34, 48), (35, 48)]
    live = sum(tokens for tokens, _ in held)
    internal = 3 * 13
    total = sum(slots for _, slots in held)
    assert kv["token_states"] == pytest.approx(live / total)
    assert kv["internal_fragmentation"] == pytest.approx(internal / total)
    assert kv["reservation"] == pytest.approx((total - live - internal) / total)


def test_outputs_that_end_before_they_must_are_admitted_by_what_they_may_be() -> None:
    """Two requests that may generate 600 tokens do not fit beside each other in 1,000 slots."""
    trace = Trace.from_arrays([0.0, 0.0], [100, 100], [20, 20])
    options = SMALL | {"engine": "sglang", "num_gpu_blocks_override": 1000, "block_size": 1}
    known = kvsim.simulate(trace, **options).requests
    asked = kvsim.simulate(trace, **options, max_new_tokens=600).requests
    assert known["first_scheduled_time"][1] == known["first_scheduled_time"][0]
    assert asked["first_scheduled_time"][1] >= asked["first_token_time"][0]
    assert asked["num_output_tokens"].tolist() == [20, 20]


def test_the_pool_follows_from_the_share_of_memory() -> None:
    """Of an H100: 13,440 MiB are reserved, and weights and KV share the rest."""
    from kvsim.catalog import get_gpu
    from kvsim.engines.sglang.budget import mem_fraction_static

    gpu = get_gpu("h100-sxm")
    total = gpu.memory_bytes / 2**20
    share = mem_fraction_static(gpu, chunk=8192)
    assert share == round(1 - (512 + 12288 + 128 + 512) / total, 3)
    trace = workloads.fixed(prompt=100, output=10, num_requests=1, request_rate=1.0)
    pools = [
        kvsim.simulate(trace, **SMALL, engine="sglang", mem_fraction_static=f).summary["kv_cache"]
        for f in (share, share - 0.1)
    ]
    default = kvsim.simulate(trace, **SMALL, engine="sglang").summary["kv_cache"]
    assert pools[0] == default
    bytes_before = gpu.memory_bytes - 0.32 * 2**30
    assert pools[0]["bytes"] - pools[1]["bytes"] == pytest.approx(0.1 * bytes_before, rel=1e-4)


@pytest.mark.long
def test_smaller_tokens_make_a_larger_pool() -> None:
    trace = workloads.fixed(prompt=100, output=10, num_requests=1, request_rate=1.0)
    pools = [
        kvsim.simulate(trace, **SMALL, allocator=name).summary["kv_cache"]
        for name in ("radix", "radix+fp8")
    ]
    assert pools[1]["num_gpu_blocks"] == pytest.approx(2 * pools[0]["num_gpu_blocks"], abs=2)
    assert pools[1]["bytes"] == pytest.approx(pools[0]["bytes"], rel=1e-5)


def test_everybody_there_at_once_is_served() -> None:
    trace = workloads.sharegpt(num_requests=60, request_rate=math.inf, seed=1)
    result = kvsim.simulate(
        trace, **SMALL, engine="sglang", num_gpu_blocks_override=400, schedule_conservativeness=0.2
    )
    assert result.summary["completed"] == 60
    assert result.summary["num_preemptions"] > 0


@pytest.mark.long
def test_engines_are_compared_each_with_its_own_settings() -> None:
    trace = workloads.sharegpt(num_requests=20, request_rate=4, seed=0)
    compared = kvsim.compare(
        trace, engines=["vllm", "sglang"], **SMALL, schedule_policy="lpm", max_num_seqs=4
    )
    assert [row["engine"] for row in compared.rows] == ["vllm", "sglang"]
    assert [row["allocator"] for row in compared.rows] == ["paged", "radix"]
    assert compared["sglang"].config.schedule_policy == "lpm"
    assert compared["vllm"].config.schedule_policy == "fcfs"
    assert all(row["peak_running"] <= 4 for row in compared.rows)
    assert compared.rows[0]["kv_cache"]["bytes"] != compared.rows[1]["kv_cache"]["bytes"]
    with pytest.raises(ValueError, match="conflicts with engines"):
        kvsim.compare(trace, engines=["vllm", "sglang"], **SMALL, allocator="paged")


LINE = "python -m sglang.launch_server --model-path meta-llama/Meta-Llama-3-8B --tp 2 --port 30000"


def test_a_pasted_line_of_sglang_runs(capsys: pytest.CaptureFixture[str]) -> None:
    more = "--context-length 4096 --chunked-prefill-size 2048 --kv-cache-dtype fp8_e5m2"
    own = "--gpu h100-sxm --num-requests 5 --backend python --json -"
    main(["run", *LINE.split(), *more.split(), *own.split()])
    said = capsys.readouterr()
    assert "--port 30000" in said.err
    assert '"block_size": 1' in said.out


@pytest.mark.parametrize("flag", ["--enable-hisparse", "--enable-int8-mamba-checkpoint"])
def test_what_is_not_modelled_of_a_line_is_refused(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["run", *LINE.split(), flag])
    assert exit_info.value.code == 2
    assert f"{flag} is not modelled" in capsys.readouterr().err


def test_runs_under_sglang_are_not_recorded() -> None:
    trace = workloads.fixed(prompt=20, output=3, num_requests=2, request_rate=1.0)
    with pytest.raises(ValueError, match="record: schedules under sglang"):
        kvsim.record(trace, **SMALL, engine="sglang")


def test_the_scheduler_wants_a_tree_and_says_who_runs() -> None:
    given = {"model": "llama-3-8b", "gpu": "l40s"}
    setup = resolve(Config.build(**given, engine="sglang"))
    scheduler = setup.make_scheduler()
    assert scheduler.running == []
    paged = resolve(Config.build(**given)).make_kv()
    with pytest.raises(ValueError, match="needs allocator 'radix'"):
        SglangScheduler(paged, setup.scheduler_config)
