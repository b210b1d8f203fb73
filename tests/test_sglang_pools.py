"""SGLang's pools of sliding windows and its host tier: random schedules, both engines, runs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples

import kvsim
import workloads
from kvsim.budget.layout import KVLayout, LayerKV, kv_dtype
from kvsim.cases.replay import play_case
from kvsim.cli import main
from kvsim.config import Config
from kvsim.cost.hierarchy import COPY_SECONDS
from kvsim.engine.setup import resolve
from kvsim.engines.sglang.budget import split_pool
from kvsim.engines.sglang.cases.case import SglangCase
from kvsim.engines.sglang.setup import check_layers
from kvsim.trace import Trace


@st.composite
def schedules(draw: st.DrawFn, page_sizes: tuple[int, ...] = (1, 1, 4, 16)) -> dict[str, Any]:
    """A schedule under memory pressure, with full attention: configuration and requests.

    Prompts begin alike and name earlier outputs, some outputs are several windows long.
    """
    size = draw(st.sampled_from(page_sizes))
    pool = draw(st.integers(18, 60)) * max(size, 8)
    config: dict[str, Any] = {
        "page_size": size,
        "max_total_num_tokens": pool // size * size,
        "max_running_requests": draw(st.integers(1, 6)),
        "chunked_prefill_size": draw(st.sampled_from([None, 2, 4])),
        "max_prefill_tokens": draw(st.sampled_from([64, 16384])),
        "schedule_policy": draw(st.sampled_from(["fcfs", "fcfs", "lpm", "dfs-weight", "hrrn"])),
        "schedule_conservativeness": draw(st.sampled_from([0.05, 0.3, 1.0])),
        "enable_mixed_chunk": draw(st.booleans()),
        "overlap": draw(st.booleans()),
        "radix_eviction_policy": draw(st.sampled_from(["lru", "lru", "lfu", "fifo", "slru"])),
        "disable_radix_cache": draw(st.sampled_from([False, False, False, True])),
        "enable_priority_scheduling": draw(st.booleans()),
        "schedule_low_priority_values_first": False,
        "priority_scheduling_preemption_threshold": draw(st.sampled_from([0, 2])),
        "disable_priority_preemption": False,
        "retraction_policy": "length",
        "context_length": 4096,
    }
    if config["chunked_prefill_size"]:
        config["chunked_prefill_size"] *= 16
    requests = []
    for row in range(draw(st.integers(2, 8))):
        first = draw(st.integers(0, 2))
        segments = [[first, 0, draw(st.integers(1, 60))]]
        if draw(st.booleans()):
            segments.append([20 + row, 0, draw(st.integers(1, 30))])
        if row and draw(st.booleans()):
            segments = [*requests[-1]["segments"], [16000 + row - 1, 0, draw(st.integers(1, 20))]]
        longest = pool - sum(segment[2] for segment in segments) - 40
        if longest < 8:
            segments = [[first, 0, 30]]
        request = {
            "id": f"r{row:02d}",
            "arrival": draw(st.integers(0, 40)),
            "segments": segments,
            "max_new": draw(st.sampled_from([1, 5, 20, 60, 200])),
            "priority": draw(st.integers(0, 3)),
            "ignore_eos": draw(st.sampled_from([False, False, True])),
        }
        if draw(st.booleans()):
            request["stop_at"] = draw(st.integers(1, 20))
        requests.append(request)
    return {"config": config, "workload": {"requests": requests}}


@st.composite
def windowed(draw: st.DrawFn) -> SglangCase:
    """The same with a pool of sliding windows that holds a chunk, and little more; half draft."""
    drawn = draw(schedules())
    config, size = drawn["config"], drawn["config"]["page_size"]
    window = draw(st.integers(1, 40))
    chunk = config["chunked_prefill_size"] or 160
    # Without a tree two chunks lie before the window while they are under way.
    least = (1 + config["disable_radix_cache"]) * chunk + 2 * window + 3 * size
    if draw(st.booleans()):
        config["spec"] = {"algorithm": "EAGLE", "steps": 3, "topk": 1, "draft_tokens": 4}
        config["enable_mixed_chunk"] = config["enable_mixed_chunk"] and not config["overlap"]
        for request in drawn["workload"]["requests"]:
            request["acc"] = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
        least += 2 * 4 + size
    config["swa"] = {
        "window": window,
        "size": -(-(least + draw(st.integers(0, 120))) // size) * size,
    }
    return SglangCase(sglang="", steps=[{}], **drawn)


def played(case: SglangCase, *, compiled: bool) -> list[dict[str, Any]]:
    """Play a case, checking every pass in Python; a scheduler that dies says so."""
    found: list[dict[str, Any]] = []
    try:
        found.extend(play_case(case, check=not compiled, compiled=compiled))
    except RuntimeError as error:
        if "runs out of memory" not in str(error):
            raise
        found.append({"died": str(error)})
    return found


CONFIG: dict[str, Any] = {
    **{"page_size": 1, "max_total_num_tokens": 200, "max_running_requests": 4},
    **{"chunked_prefill_size": None, "max_prefill_tokens": 16384, "context_length": 4096},
    **{"schedule_policy": "fcfs", "schedule_conservativeness": 1.0, "overlap": False},
    **{"enable_mixed_chunk": False, "radix_eviction_policy": "lru"},
    **{"disable_radix_cache": False, "enable_priority_scheduling": False},
    **{"schedule_low_priority_values_first": False, "disable_priority_preemption": False},
    **{"priority_scheduling_preemption_threshold": 10, "retraction_policy": "length"},
}


@pytest.mark.slow
@examples(40)
@given(windowed())
def test_slots_and_locks_of_both_pools_add_up_after_every_pass(case: SglangCase) -> None:
    """And the compiled engine leaves the same in the log."""
    assert played(case, compiled=False) == played(case, compiled=True)


OSS: dict[str, Any] = {
    "model": "gpt-oss-20b",
    "gpu": "h100-sxm",
    "engine": "sglang",
    "max_model_len": 2048,
    "chunked_prefill_size": 256,
}


@pytest.mark.slow
@pytest.mark.parametrize("page_size", [1, 16])
def test_a_model_with_sliding_windows_runs_alike_in_both_engines(page_size: int) -> None:
    """Under pressure in both pools, with prompts that are used again; the maps, too."""
    segments = [[(k % 3, 0, 200 + 10 * k), (50 + k, 0, 30)] for k in range(24)]
    trace = Trace.from_arrays(
        [0.05 * k for k in range(24)],
        [sum(n for _, _, n in one) for one in segments],
        [40 + 17 * k for k in range(24)],
        segments=segments,
    )
    options = OSS | {"page_size": page_size, "max_total_tokens": 3200}
    compiled, python = (
        kvsim.simulate(
            trace, backend=backend, record_memory_map=True, check_invariants=True, **options
        )
        for backend in ("compiled", "python")
    )
    assert compiled.summary == python.summary
    assert (compiled.memory_map == python.memory_map).all()
    assert (compiled.requests == python.requests).all()
    assert python.summary["completed"] == 24
    assert python.requests["num_cached_tokens"].max() >= 192
    shown = (python.memory_map == 5).mean(axis=1)
    total = python.summary["kv_cache"]["bytes"]
    assert shown == pytest.approx(python.memory["cached"] / total, abs=0.03)


def test_windows_leave_room_for_more_tokens() -> None:
    """Of 24 layers half see 128 tokens: 1 / (1 + 0.8) of the bytes against 1 / 2."""
    trace = workloads.fixed(prompt=100, output=10, num_requests=2, request_rate=1.0)
    pools = [
        kvsim.simulate(trace, **OSS, **more, backend="python").summary["kv_cache"]["num_gpu_blocks"]
        for more in ({}, {"disable_hybrid_kv_cache_manager": True}, {"swa_full_tokens_ratio": 0.1})
    ]
    assert pools[0] / pools[1] == pytest.approx(2 / 1.8, rel=1e-4)
    assert pools[2] / pools[1] == pytest.approx(2 / 1.1, rel=1e-4)


def test_memory_is_shared_out_in_whole_pages() -> None:
    shared = split_pool(10_000, token_bytes=10, window_bytes=5, ratio=0.5, page_size=16)
    assert shared == (800, 400)
    assert split_pool(
        10_000, token_bytes=10, window_bytes=5, ratio=0.5, page_size=16, max_tokens=100
    ) == (96, 48)


def test_windows_of_several_lengths_are_refused() -> None:
    memory = resolve(Config.build(model="llama-3-8b", gpu="h100-sxm")).memory
    layers = LayerKV("full", None, 8), LayerKV("sliding", 64, 8), LayerKV("sliding", 128, 8)
    layout = KVLayout(layers, kv_dtype("bf16"), 0)
    with pytest.raises(ValueError, match=r"windows of \[64, 128\] tokens"):
        check_layers(Config.build(model="llama-3-8b", gpu="h100-sxm"), memory, layout)


@st.composite
def tiered(draw: st.DrawFn) -> SglangCase:
    """A schedule with a host tier, some of them smaller than the pool."""
    drawn = draw(schedules())
    drawn["config"] |= {
        "disable_radix_cache": False,
        "hicache": {
            "write_policy": draw(
                st.sampled_from(["write_through", "write_through_selective", "write_back"])
            ),
            "ratio": draw(st.sampled_from([0.3, 0.8, 2.0])),
        },
    }
    return SglangCase(sglang="", steps=[{}], **drawn)


@pytest.mark.slow
@examples(40)
@given(tiered())
def test_slots_and_locks_of_both_tiers_add_up_after_every_pass(case: SglangCase) -> None:
    """And the compiled engine leaves the same in the log."""
    assert played(case, compiled=False) == played(case, compiled=True)


def reused() -> Trace:
    """Six prompts in turns, each again after the pool has lost it."""
    segments = [[(k % 6, 0, 300 + 20 * (k % 3)), (50 + k, 0, 30)] for k in range(30)]
    lengths = [sum(n for _, _, n in one) for one in segments]
    times = [0.2 * k for k in range(30)]
    return Trace.from_arrays(times, lengths, [40] * 30, segments=segments)


TIERED: dict[str, Any] = {
    "model": "llama-3-8b",
    "gpu": "h100-sxm",
    "engine": "sglang",
    "max_total_tokens": 1600,
    "max_model_len": 1024,
    "check_invariants": True,
}


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["write_through", "write_through_selective", "write_back"])
def test_prefixes_come_back_from_the_host(policy: str) -> None:
    """With copies that take the link's time, in both engines; none without the host."""
    options = TIERED | {"enable_hierarchical_cache": True, "hicache_write_policy": policy}
    python, compiled = (
        kvsim.simulate(reused(), backend=backend, record_memory_map=True, **options)
        for backend in ("python", "compiled")
    )
    assert python.summary == compiled.summary
    assert (python.requests == compiled.requests).all()
    assert (python.memory_map == compiled.memory_map).all()
    alone = kvsim.simulate(reused(), backend="python", **TIERED)
    assert alone.requests["num_cached_tokens"].sum() == 0
    assert (python.requests["num_cached_tokens"].sum() > 0) == (policy != "write_through_selective")


@pytest.mark.long
@pytest.mark.parametrize("backend", ["python", "compiled"])
def test_a_copy_that_goes_while_its_node_is_loaded_is_not_dropped_twice(backend: str) -> None:
    """Under write_back a node that left the GPU keeps its place in the queue of copies.

    It loses its copy by that while it is being loaded; once it is there it has none to lose.
    """
    arrivals = [0.01, 0.02, 0.33, 0.63, 0.73, 0.83, 0.93, 0.94, 1.05, 1.06, 1.36, 1.46, 1.46, 1.56]
    arrivals += [1.57, 1.87, 1.87, 1.97, 1.97, 1.97, 1.97]
    firsts = [1, 3, 2, 2, 1, 2, 2, 0, 2, 1, 3, 3, 3, 1, 3, 0, 0, 2, 3, 2, 0]
    prompts = [50, 150, 150, 80, 100, 7, 16, 150, 150, 16, 1, 50, 33, 50, 80, 80, 100, 80, 150]
    prompts += [50, 150]
    outputs = [1, 12, 22, 23, 22, 31, 31, 1, 1, 37, 13, 28, 33, 1, 33, 36, 39, 1, 1, 1, 1]
    segments = [
        [(first, 0, min(32, prompt)), *([(100 + row, 0, prompt - 32)] if prompt > 32 else [])]
        for row, (first, prompt) in enumerate(zip(firsts, prompts, strict=True))
    ]
    options = TIERED | {
        **{"max_total_tokens": 491, "max_model_len": 200, "page_size": 16, "max_num_seqs": 5},
        **{"chunked_prefill_size": 64, "enable_hierarchical_cache": True},
        **{"hicache_write_policy": "write_back", "cost_model": "constant+seconds=0.02"},
    }
    trace = Trace.from_arrays(arrivals, prompts, outputs, segments=segments)
    result = kvsim.simulate(trace, **options, backend=backend)
    assert result.summary["completed"] == len(trace)
    assert result.summary["num_kv_loads"] > 0


def test_all_but_the_last_token_of_a_prompt_is_loaded() -> None:
    """The second prompt takes its room; the third finds it on the host."""
    segments = [[(k % 2, 0, 900)] for k in range(3)]
    trace = Trace.from_arrays([0.0, 5.0, 10.0], [900] * 3, [2] * 3, segments=segments)
    result = kvsim.simulate(trace, **TIERED, enable_hierarchical_cache=True, backend="python")
    assert result.requests["num_cached_tokens"].tolist() == [0, 0, 899]


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 16])
@pytest.mark.parametrize("policy", ["write_through", "write_back"])
def test_a_map_shows_nothing_of_what_the_host_alone_has(policy: str, size: int) -> None:
    """Pages that it left are others' by now: as much is cached in the map as in the table."""
    options = TIERED | {"enable_hierarchical_cache": True, "page_size": size, "backend": "python"}
    result = kvsim.simulate(
        reused(), record_memory_map=True, hicache_write_policy=policy, **options
    )
    assert result.summary["num_kv_loads"] > 0
    shown = (result.memory_map == 5).mean(axis=1)
    cached = result.memory["cached"] / result.summary["kv_cache"]["bytes"]
    assert shown == pytest.approx(cached, abs=0.02)
    assert cached.max() > 0.5


@pytest.mark.parametrize("backend", ["python", pytest.param("compiled", marks=pytest.mark.long)])
def test_the_summary_says_what_came_from_the_host_and_went_there(backend: str) -> None:
    """Of three prompts the third finds 899 of its 900 tokens there, and loads them at 63 GB/s.

    Two whole prompts are copied to it, and of each request the one output whose KV is computed.
    """
    segments = [[(k % 2, 0, 900)] for k in range(3)]
    trace = Trace.from_arrays([0.0, 5.0, 10.0], [900] * 3, [2] * 3, segments=segments)
    options = TIERED | {"enable_hierarchical_cache": True, "backend": backend}
    summary = kvsim.simulate(trace, **options).summary
    num_tensors, token = 2 * 32, 2 * 32 * 8 * 128 * 2
    assert summary["external_prefix_cache_hit_rate"] == 899 / 2700  # none was on the GPU
    assert summary["prefix_cache_hit_rate"] == 899 / 2700
    assert summary["num_kv_loads"] == 1
    seconds = num_tensors * COPY_SECONDS + 899 * token / 63e9
    assert summary["mean_kv_load_ms"] == pytest.approx(1000 * seconds)
    assert summary["kv_cache"]["fetched_bytes"] == 899 * token
    assert summary["kv_cache"]["stored_bytes"] == (2 * 900 + 3) * token
    without = kvsim.simulate(trace, **TIERED, backend=backend).summary
    assert without["external_prefix_cache_hit_rate"] is without["num_kv_loads"] is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"disable_radix_cache": True}, "which is disabled"),
        ({"model": "gpt-oss-20b", "max_total_tokens": 60000}, "not modelled with pools"),
    ],
)
def test_a_host_tier_is_refused_where_it_does_not_go(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        kvsim.simulate(reused(), **TIERED | {"enable_hierarchical_cache": True} | options)


def test_a_pasted_line_with_a_host_tier_runs(capsys: pytest.CaptureFixture[str]) -> None:
    line = "python -m sglang.launch_server --model-path meta-llama/Meta-Llama-3-8B"
    tier = "--enable-hierarchical-cache --hicache-size 20 --hicache-write-policy write_back"
    main(["run", *line.split(), *tier.split(), "--num-requests", "3", "--backend", "python"])
    assert "completed 3" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize(("arrival", "num_decodes"), [(29, 5), (60, 4)])
def test_a_parked_chunk_counts_for_every_prefill_built_meanwhile(
    arrival: int, num_decodes: int
) -> None:
    """And so many of its own later prefills give no token, the last one among them.

    The windows of "a" grow by its decodes until the 240 tokens of "c" find no more room and wait,
    in pass 29. Who arrives then, takes the place of "a", and is prefilled: one prefill too many of
    "c" counts as cut, its last, and all five outputs come from decodes. Else one comes from there.
    """
    config = CONFIG | {
        **{"max_total_num_tokens": 1000, "max_running_requests": 2, "chunked_prefill_size": 8},
        **{"enable_mixed_chunk": True, "enable_priority_scheduling": True},
        **{"priority_scheduling_preemption_threshold": 0, "swa": {"window": 4, "size": 40}},
    }
    names = ("id", "arrival", "segments", "max_new", "priority")
    rows = ("a", 0, [[0, 0, 10]], 100, 0), ("c", 3, [[1, 0, 240]], 5, 1)
    rows += (("h", arrival, [[2, 0, 5]], 3, 5),)
    requests = [dict(zip(names, row, strict=True)) for row in rows]
    given = {"config": config, "workload": {"requests": requests}}
    log = played(SglangCase(sglang="", steps=[{}], **given), compiled=False)
    prefills = [entry for entry in log if entry.get("ck") == "c"]
    assert any("c" not in [row[0] for row in e.get("ext", [])] for e in prefills)
    assert sum("c" in entry.get("dec", []) for entry in log) == num_decodes


@pytest.mark.parametrize(("shared", "hit"), [(20, 20), (19, 0)])
def test_a_prompt_goes_on_only_behind_a_whole_window(shared: int, hit: int) -> None:
    """Of 20 tokens the last 4, a window, keep their slots when 24 others need room.

    Who shares all 20 goes on there; who shares 19 has 3 tokens of a window, and begins anew.
    """
    config = CONFIG | {"swa": {"window": 4, "size": 36}}
    prompts = [[0, 0, 20]], [[1, 0, 24]], [[0, 0, shared], [2, 0, 5]]
    requests = [
        {"id": f"r{k}", "arrival": 4 * k, "segments": list(one), "max_new": 1}
        for k, one in enumerate(prompts)
    ]
    given = {"config": config, "workload": {"requests": requests}}
    log = played(SglangCase(sglang="", steps=[{}], **given), compiled=False)
    assert [entry["ext"] for entry in log if "ext" in entry][-1] == [["r2", hit, shared + 5 - hit]]
