"""The compiled backend is the plain-Python one to the bit: tables, summaries, schedules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvsim.engine.compiled import CompiledReplica
from strategies import traces

import kvsim
import workloads
from kvsim.cases.case import read_case
from kvsim.cases.play import make_scheduler
from kvsim.cost.constant import ConstantCost
from kvsim.engine import kernel_places as k
from kvsim.fleet.simulate import _new_requests
from kvsim.testing import check_result, equal_tables
from kvsim.trace import Trace

GOLDEN = sorted((Path(__file__).parent / "data" / "vllm_cases").glob("*.json"))


@st.composite
def supported(draw: st.DrawFn) -> dict:
    """Configurations that the kernels run, most of them short of memory."""
    max_num_seqs = draw(st.integers(1, 12))
    options = {
        "model": draw(st.sampled_from(["llama-3-8b", "mixtral-8x7b"])),
        "gpu": "b200",
        "num_gpu_blocks_override": draw(st.one_of(st.integers(1, 12), st.integers(8, 60))),
        "block_size": draw(st.sampled_from([1, 4, 16])),
        "max_model_len": draw(st.sampled_from([16, 40, 64, 256])),
        "max_num_seqs": max_num_seqs,
        "scheduling_policy": draw(st.sampled_from(["fcfs", "priority"])),
        "data_parallel_size": draw(st.sampled_from([1, 1, 2])),
        "router": draw(st.sampled_from(["round-robin", "least-outstanding"])),
        "max_concurrency": draw(st.sampled_from([None, None, 1, 4])),
        "record_memory_map": draw(st.sampled_from([False, False, False, True])),
        "horizon": draw(st.sampled_from([float("inf")] * 5 + [0.3])),
        "cost_model": draw(st.sampled_from(["roofline", "roofline", "constant+seconds=0.01"])),
    }
    if draw(st.integers(0, 3)) == 0:
        base = draw(st.sampled_from(["contiguous-max", "contiguous-pow2", "contiguous-oracle"]))
        options["allocator"] = base + draw(st.sampled_from(["", "+fit=first", "+fit=best"]))
        if draw(st.booleans()):
            options["allocator"] += "+window=9"
        return options
    if draw(st.integers(0, 3)) == 0:
        options["allocator"] = f"paged+window={draw(st.sampled_from([1, 2, 5, 9, 16, 33]))}"
        options["record_memory_map"] = False
        retained = draw(st.sampled_from([0, 0, 1, 3]))
        options["prefix_cache_retention_interval"] = retained * options["block_size"]
    options["watermark"] = draw(st.sampled_from([0.0, 0.0, 0.2]))
    options["enable_prefix_caching"] = draw(st.booleans())
    options["num_lookahead_tokens"] = draw(st.sampled_from([0, 0, 3]))
    options["long_prefill_token_threshold"] = draw(st.sampled_from([0, 0, 5]))
    options["scheduler_reserve_full_isl"] = draw(st.booleans())
    options["pipeline_parallel_size"] = draw(st.sampled_from([1, 1, 1, 2]))
    if options["pipeline_parallel_size"] == 1:
        options["async_scheduling"] = draw(st.booleans())
    budget = max(draw(st.sampled_from([max_num_seqs, 16, 300])), max_num_seqs)
    options["max_num_batched_tokens"] = budget
    if draw(st.integers(0, 5)) == 0:
        options["enable_chunked_prefill"] = False
        options["max_num_batched_tokens"] = max(budget, options["max_model_len"])
    return options


def both(trace: Trace, **options) -> list[kvsim.Result]:
    return [kvsim.simulate(trace, backend=name, **options) for name in ("python", "compiled")]


def assert_equal(plain: kvsim.Result, compiled: kvsim.Result) -> None:
    assert compiled.provenance["backend"] == "compiled"
    assert equal_tables(plain.requests, compiled.requests)
    assert equal_tables(plain.memory, compiled.memory)
    assert np.array_equal(plain.memory_map, compiled.memory_map)
    assert plain.summary == compiled.summary


@given(trace=traces(max_requests=30), options=supported())
@settings(max_examples=200)
def test_backends_agree_to_the_bit(trace, options):
    try:
        plain, compiled = both(trace, **options)
    except ValueError:
        return  # refused by both: the configuration is impossible
    assert_equal(plain, compiled)


@st.composite
def short_of_memory(draw: st.DrawFn) -> tuple[Trace, dict]:
    """Requests that each fit a pool that does not hold two or three of them."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n = int(rng.integers(4, 30))
    prompt, output = rng.integers(1, 40, n), rng.integers(8, 80, n)
    trace = Trace.from_arrays(
        np.sort(rng.uniform(0, draw(st.sampled_from([0.0, 0.1, 1.0])), n)),
        prompt,
        output,
        segments=[[(int(rng.integers(0, 3)), 0, int(length))] for length in prompt],
        priority=rng.integers(0, 3, n),
    )
    options = draw(supported())
    if options.get("allocator", "").startswith("contiguous"):
        del options["allocator"]
    options.update(max_model_len=120, max_num_seqs=int(rng.integers(2, 12)), horizon=float("inf"))
    options["max_num_batched_tokens"] = draw(st.sampled_from([120, 300]))
    largest = -(-int((prompt + output).max()) // options["block_size"])
    largest += -(-options.get("num_lookahead_tokens", 0) // options["block_size"])
    slack = draw(st.sampled_from([1.0, 1.4, 2.0]))
    watermark = options.get("watermark", 0.0)
    options["num_gpu_blocks_override"] = 2 + int(largest * slack / (1.0 - watermark))
    return trace, options


PREEMPTIONS: list[int] = []


@given(case=short_of_memory())
@settings(max_examples=150)
def test_backends_agree_when_memory_is_short(case):
    trace, options = case
    plain, compiled = both(trace, **options)
    assert_equal(plain, compiled)
    PREEMPTIONS.append(plain.summary["num_preemptions"])


def test_memory_was_short_in_the_examples():
    assert len(PREEMPTIONS) >= 150
    assert sum(n > 0 for n in PREEMPTIONS) >= len(PREEMPTIONS) / 3


def long_outputs(seed: int, num_requests: int = 40) -> Trace:
    """Long decodes in a tight pool: runs of steps that end at arrivals, blocks and finishes."""
    rng = np.random.default_rng(seed)
    return Trace.from_arrays(
        np.sort(rng.uniform(0, 5, num_requests)),
        rng.integers(1, 80, num_requests),
        rng.integers(1, 400, num_requests),
    )


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("enable_prefix_caching", [False, True])
def test_runs_of_steps_are_exact(seed, async_scheduling, enable_prefix_caching):
    options = {
        "model": "llama-3-8b",
        "gpu": "h100-sxm",
        "max_model_len": 512,
        "max_num_seqs": 4 + 7 * (seed % 3),
        "num_gpu_blocks_override": [2000, 150, 60][seed % 3],
        "scheduling_policy": ["fcfs", "priority"][seed % 2],
        "record_memory_map": seed == 0,
    }
    plain, compiled = both(
        long_outputs(seed),
        async_scheduling=async_scheduling,
        enable_prefix_caching=enable_prefix_caching,
        **options,
    )
    assert_equal(plain, compiled)
    check_result(compiled)


@pytest.mark.parametrize("allocator", ["contiguous-max", "contiguous-pow2+fit=best"])
def test_runs_of_steps_are_exact_for_contiguous_allocators(allocator):
    options = {"model": "llama-3-8b", "gpu": "h100-sxm", "max_model_len": 512}
    plain, compiled = both(
        long_outputs(1), allocator=allocator, num_gpu_blocks_override=150, **options
    )
    assert_equal(plain, compiled)


def test_more_samples_than_are_kept():
    trace = Trace.from_arrays([0.0, 0.0], [10, 10], [9000, 5000])
    options = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "max_model_len": 16000}
    assert_equal(*both(trace, **options))


@pytest.mark.parametrize(
    ("pattern", "options"),
    [
        ("azure2023_conv*", {"model": "llama-2-7b", "gpu": "a100-80gb"}),
        ("mooncake*conv*", {"model": "llama-3.1-8b", "gpu": "h200-sxm", "data_parallel_size": 2}),
    ],
)
def test_backends_agree_on_real_traces(shared_data, pattern, options):
    trace = workloads.load(next((shared_data / "traces").glob(pattern)))[:400]
    assert_equal(*both(trace, **options))


# -- recorded vLLM schedules through the kernels --------------------------------------------------


def supported_case(path: Path) -> bool:
    config = read_case(path).config
    groups = config.groups or []
    return len(groups) <= 1 and all(group.type in ("full", "sliding_window") for group in groups)


def replay_compiled(path: Path) -> int:
    """Drive the kernels step by step and compare the state after each; returns steps compared."""
    case = read_case(path)
    config = case.config
    ordered = sorted(enumerate(case.workload.requests), key=lambda pair: pair[1].arrival_step)
    given = [request for _, request in ordered]
    segments = [[(s[0], 0, s[1]) if len(s) == 2 else tuple(s) for s in r.segments] for r in given]
    salts = {}
    trace = Trace.from_arrays(
        [float(r.arrival_step) for r in given],
        [sum(s[2] for s in pieces) for pieces in segments],
        [r.max_tokens for r in given],
        segments=segments,
        output_content_id=[16000 + i if r.out_seg is None else r.out_seg for i, r in ordered],
        priority=[r.priority for r in given],
        cache_salt=[
            salts.setdefault(r.cache_salt, len(salts) + 1) if r.cache_salt else 0 for r in given
        ],
    )
    scheduler = make_scheduler(config)
    setup = SimpleNamespace(
        kv=scheduler.kv,
        cost=ConstantCost(None, seconds=1.0),
        scheduler_config=scheduler.config,
        kv_config=None,
        config=SimpleNamespace(record_memory_map=False, pipeline_parallel_size=1),
        num_steps_in_flight=config.num_steps_in_flight,
    )
    replica = CompiledReplica(0, setup, trace, _new_requests(trace), start_time=1e6)
    m, steps, arrived = replica._m, 0, 0
    for expected in case.steps:
        while arrived < len(given) and given[arrived].arrival_step <= expected["s"]:
            index, one = ordered[arrived]
            default = one.arrival_step + index * 1e-6
            time = default if one.arrival_time is None else one.arrival_time
            replica.submit(np.array([arrived]), np.array([time]))  # long before the clock
            arrived += 1
        if "sch" in expected:
            with np.errstate(over="ignore"):
                replica._kernels.advance(*replica._arrays, np.inf, False, 1)
            got = state_of(replica, [r.id for r in given], summary=config.summary)
        for field in ("r", "free2", "fq", "nh", "hc", "bt"):
            if field in expected and not (m[k.NUM_RUNNING] == 0 and "sch" not in expected):
                assert got[field] == expected[field], (expected["s"], field)
        steps += 1
    return steps


def crc(numbers) -> int:
    return zlib.crc32(",".join(map(str, numbers)).encode())


def state_of(replica: CompiledReplica, names: list, *, summary: bool) -> dict:
    m = replica._m
    base = m[k.BLOCKS]

    def block_id(handle):
        return int(handle - base) // k.BLOCK_RECORD

    stack = m[m[k.UNHASHED] :][: m[k.NUM_UNHASHED]][::-1]
    free = [block_id(handle) for handle in stack]
    at = m[k.LRU_HEAD]
    while at >= 0:
        free.append(block_id(at))
        at = m[k.LRU_NEXT + at]
    records = m[base:][: m[k.NUM_BLOCKS] * k.BLOCK_RECORD].reshape(-1, k.BLOCK_RECORD)
    hashed = np.flatnonzero(records[:, k.HASHED]).tolist()
    rows, running = [], []
    for handle in m[m[k.RUN] :][: m[k.NUM_RUNNING]]:
        name = names[int(handle - k.REQUESTS) // k.RECORD]
        slot = m[k.SLOT + handle]
        table = m[m[k.ROW + slot] :][: m[k.LENGTH + slot]]
        running.append(name)
        blocks = ",".join(str(block_id(block)) for block in table)
        rows.append(f"{name}:{m[k.COMPUTED + handle]}:{blocks}")
    return {
        "r": len(running) if summary else running,
        "free2": len(free),
        "fq": crc(free),
        "nh": len(hashed),
        "hc": crc(hashed),
        "bt": zlib.crc32(";".join(rows).encode()),
    }


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_recorded_vllm_schedules_through_the_kernels(path):
    if not supported_case(path):
        pytest.skip("chunked and hybrid groups run in plain Python")
    assert replay_compiled(path) == len(read_case(path).steps)


def test_every_supported_shared_schedule_through_the_kernels(shared_data):
    paths = [p for p in sorted((shared_data / "vllm_cases").glob("*.json")) if supported_case(p)]
    assert len(paths) >= 30
    for path in paths:
        replay_compiled(path)


# -- choosing, caching, refusing ------------------------------------------------------------------


SMALL = {"model": "llama-3-8b", "gpu": "l4", "max_model_len": 512}


def test_auto_says_which_ran():
    trace = workloads.fixed(prompt=20, output=5, num_requests=3, request_rate=1.0)
    assert kvsim.simulate(trace, **SMALL).provenance["backend"] == "compiled"
    assert kvsim.simulate(trace, check_invariants=True, **SMALL).provenance["backend"] == "python"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"record_steps": True}, "record_steps"),
        ({"allocator": "paged+eviction=lfu"}, "eviction=lfu"),
        ({"scheduler": "static"}, "static"),
        ({"model": "gpt-oss-20b"}, "several kinds"),
        ({"allocator": "paged+window=64", "record_memory_map": True}, "sliding window"),
    ],
)
def test_compiled_refuses_what_it_cannot_run(options, reason):
    trace = workloads.fixed(prompt=20, output=5, num_requests=3, request_rate=1.0)
    with pytest.raises(ValueError, match=reason):
        kvsim.simulate(trace, backend="compiled", **{**SMALL, **options})


def test_verbose_names_the_backend(capsys):
    from kvsim.cli import main

    main(["run", "-v", "--num-requests", "5", "--model", "gpt-oss-20b", "--gpu", "h100-sxm"])
    assert "python backend" in capsys.readouterr().err
    main(["compare", "-v", "--num-requests", "5", "--allocators", "paged"])
    assert "paged: compiled backend" in capsys.readouterr().err


def test_an_edited_kernel_gets_a_cache_of_its_own(tmp_path, monkeypatch):
    from kvsim.engine import kernel_cache

    monkeypatch.setenv("KVSIM_CACHE_DIR", str(tmp_path))
    before = kernel_cache.cache_folder()
    copy = tmp_path / "engine"
    copy.mkdir()
    for source in Path(kernel_cache.__file__).parent.glob("kernel*.py"):
        (copy / source.name).write_text(source.read_text() + "\n")
    monkeypatch.setattr(kernel_cache, "__file__", str(copy / "kernel_cache.py"))
    assert kernel_cache.cache_folder() != before
    assert before.is_relative_to(tmp_path)


def test_a_read_only_home_still_works(tmp_path, monkeypatch):
    from kvsim.engine import kernel_cache

    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("KVSIM_CACHE_DIR", str(blocked))
    folder = kernel_cache.cache_folder()
    assert folder.is_dir()
    assert os.access(folder, os.W_OK)


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["NUMBA_DISABLE_JIT", "NUMBA_BOUNDSCHECK"])
def test_the_kernels_without_compilation_and_with_bounds_checked(variable, tmp_path):
    """The whole of this file once more in an interpreter of its own."""
    environment = os.environ | {variable: "1", "KVSIM_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", __file__],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[1],
    )
    assert done.returncode == 0, done.stdout[-2000:]


def test_the_summary_is_json(tmp_path):
    trace = workloads.fixed(prompt=20, output=5, num_requests=3, request_rate=1.0)
    result = kvsim.simulate(trace, backend="compiled", **SMALL)
    result.save(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["completed"] == 3
