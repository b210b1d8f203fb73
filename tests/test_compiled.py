"""The compiled engine runs the very rules of the Python one, and must agree with it to the bit.

Under ``HYPOTHESIS_PROFILE=nightly`` every family is drawn 400 times. ``KVSIM_BOUNDSCHECK=1``
compiles the rules with every access to a list checked; a test runs this file that way:
``pytest -m slow tests/test_compiled.py``.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples, traces, with_items, with_seldom

import kvsim
import workloads
from kvsim.catalog import get_model
from kvsim.config import Config
from kvsim.engine.contents import Contents
from kvsim.engine.refusal import refusal
from kvsim.engine.replica import Replica
from kvsim.engine.setup import Setup, resolve
from kvsim.engines.policies import VLLM
from kvsim.fleet.admission.admissibility import admissible_requests, new_requests
from kvsim.fleet.routing.router import ROUTERS
from kvsim.kv.eviction import EVICTION_POLICIES
from kvsim.kv.manager import ALLOCATORS
from kvsim.records.engine import Replica as State
from kvsim.records.memory import Numbers, Room, Views, Zeros
from kvsim.records.record import NONE, Record, is_record, item_of, strip_width
from kvsim.records.request import Request
from kvsim.registry import parse_spec
from kvsim.rules import engine as rules
from kvsim.rules import runs
from kvsim.sched.scheduler import SCHEDULERS
from kvsim.testing import check_result, equal_tables
from kvsim.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterator

GOLDEN = sorted((Path(__file__).parent / "data" / "vllm_cases").glob("*.json.gz"))
CHECKED = os.environ.get("KVSIM_BOUNDSCHECK") == "1"
WINDOWS = (1, 2, 5, 9, 16, 33)


def like(name: str, **changes: Any) -> kvsim.ModelSpec:
    """A model of the catalogue with a window that short requests leave."""
    return replace(get_model(name), name=f"{name} {changes}", **changes)


def family(**choices: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Draw one of each choice."""
    return st.fixed_dictionaries({name: st.sampled_from(v) for name, v in choices.items()})


#: Families that often hit a prefix.
HITTING = ("full", "sliding", "hybrid", "eviction", "tiered")
#: Families that take memory as requests grow, and find none.
PREEMPTING = (
    *("full", "sliding", "hybrid", "unequal", "chunked", "eviction", "tiered", "vllm-v0"),
    "speculation",
)
RETENTION = (0, 0, None, 16, 48)
RESERVES = ("max", "pow2", "oracle")
RULED_POLICIES = [
    name for name in EVICTION_POLICIES.names() if EVICTION_POLICIES.create(name).runs_by_rules
]
#: Ways to draft.
SPECULATIVE: list[tuple[str, dict[str, Any]]] = [
    ("ngram", {"num_speculative_tokens": 3}),
    ("ngram", {"num_speculative_tokens": 1, "synthetic_acceptance_rate": 0.9}),
    ("eagle3", {"num_speculative_tokens": 2}),
    ("eagle", {"num_speculative_tokens": 4, "disable_lookahead_block_hashes": True}),
    ("mtp", {"num_speculative_tokens": 2, "mtp_modules": 2, "synthetic_acceptance_length": 2.5}),
    ("draft_model", {"num_speculative_tokens": 3, "model": "llama-3.2-1b"}),
    ("dflash", {"num_speculative_tokens": 5}),
    (
        "eagle3",
        {
            "num_speculative_tokens": 3,
            "num_speculative_tokens_per_batch_size": [[1, 2, 3], [3, 6, 1], [7, 64, 0]],
        },
    ),
]
#: Parts that both engines run; each family is drawn as often as any other. A new one is one line.
FAMILIES = {
    "full": family(model=["llama-3-8b"]),
    "sliding": family(
        model=["llama-3-8b"],
        allocator=[f"paged+window={window}" for window in WINDOWS],
        prefix_cache_retention_interval=RETENTION,
    ),
    "hybrid": family(
        model=[like(m, window=w) for m in ("gemma-3-27b", "gpt-oss-20b") for w in WINDOWS],
        prefix_cache_retention_interval=RETENTION,
        kv_cache_layout=["LBNHC", "BLNHC"],
        disable_hybrid_kv_cache_manager=[False, False, False, True],
    ),
    "unequal": family(  # blocks of two sizes
        model=[like("gemma-4-26b-a4b", window=w) for w in WINDOWS],
        prefix_cache_retention_interval=RETENTION,
    ),
    "chunked": family(  # one that keeps all KV, and one that forgets whole chunks
        model=[
            like("llama-4-scout", window=w, layer_pattern=p) for p in ("CCCF", "C") for w in WINDOWS
        ],
        prefix_cache_retention_interval=RETENTION,
    ),
    "eviction": family(
        model=["llama-3-8b"],
        allocator=[f"paged+eviction={policy}" for policy in RULED_POLICIES],
    ),
    "tiered": family(
        model=["llama-3-8b"], allocator=[f"tiered+host-gib={gib}" for gib in (0.001, 0.01, 1)]
    ),
    "contiguous": family(
        model=["llama-3-8b"],
        allocator=[f"contiguous-{r}+fit={f}" for r in RESERVES for f in ("buddy", "first", "best")],
        scheduler=["orca", "orca", "static", "vllm", "vllm-v0"],
    ),
    "orca, static": family(
        model=["llama-3-8b", like("gpt-oss-20b", window=9)], scheduler=["orca", "static"]
    ),
    "vllm-v0": family(
        model=["llama-3-8b", like("gpt-oss-20b", window=9)],
        scheduler=["vllm-v0"],
        preemption_mode=["recompute", "swap", "swap"],
        swap_space=[0.0, 0.002, 4.0],
    ),
    "samples": family(
        model=["llama-3-8b"],
        scheduler=["vllm-v0"],
        num_samples=[2, 3],
        swap_space=[0.0, 0.002, 4.0],
    ),
    "beams": family(
        model=["llama-3-8b"],
        scheduler=["vllm-v0"],
        num_samples=[2, 3],
        use_beam_search=[True],
        beam_switch=[0.1, 0.5],
        swap_space=[0.0, 4.0],
    ),
    "virtual": family(
        model=["llama-3-8b", like("gpt-oss-20b", window=9)],
        allocator=["virtual+page-size=64KiB", "virtual"],
        scheduler=["vllm", "vllm", "orca", "static", "vllm-v0"],
    ),
    "speculation": family(
        model=["llama-3-8b", "llama-3-8b", like("gpt-oss-20b", window=9)],
        speculative_config=[{"method": m, **rest} for m, rest in SPECULATIVE],
        num_lookahead_tokens=[0],
        prefill_schedule_interval=[0, 0, 2],
    ),
    "offloading": family(
        model=["llama-3-8b", like("gpt-oss-20b", window=9)],
        kv_offloading_size=[0.005, 0.03],
        kv_offloading_backend=["native"],
        kv_transfer_config=[
            {"kv_connector_extra_config": {"eviction_policy": p, **extra}}
            for p in ("lru", "arc")
            for extra in ({}, {"offload_prompt_only": False}, {"sync_load_budget_bytes": 10**8})
        ],
    ),
    "adapters": family(
        model=["llama-3-8b"],
        enable_lora=[True],
        max_loras=[1, 2],
        prefill_schedule_interval=[0, 3],
        max_num_scheduled_tokens=[None, 5],
    ),
    "images": family(
        model=[
            like("llama-3-8b", num_tower_params=10**8),
            *(like("gemma-3-4b", window=w) for w in WINDOWS),
        ],
        encoder_cache_size=[0, 8, 40],
        speculative_config=[None, None, {"method": "eagle3", "num_speculative_tokens": 2}],
        num_lookahead_tokens=[0],
    ),
}
#: Families whose requests have adapters, grammars and an acceptance of their own.
SELDOM = ("speculation", "adapters")


def of_family(trace: Trace, name: str) -> Trace:
    """Give requests what only those of a family have."""
    if name == "images":
        return with_items(trace)
    return with_seldom(trace, adapters=name == "adapters") if name in SELDOM else trace


@st.composite
def configured(draw: st.DrawFn, name: str) -> dict[str, Any]:
    """Options of a family, most of them short of memory."""
    given = draw(FAMILIES[name])
    max_num_seqs = draw(st.integers(1, 12))
    options: dict[str, Any] = {
        "gpu": "b200",
        "block_size": draw(st.sampled_from([1, 4, 16])),
        "max_model_len": draw(st.sampled_from([16, 64, 64, 256])),
        "max_num_seqs": max_num_seqs,
        "max_num_active_seqs": draw(st.sampled_from([None, None, None, 2])),
        "scheduling_policy": draw(st.sampled_from(["fcfs", "priority"])),
        "watermark": draw(st.sampled_from([0.0, 0.0, 0.2])),
        "num_lookahead_tokens": draw(st.sampled_from([0, 0, 3])),
        "data_parallel_size": draw(st.sampled_from([1, 1, 2])),
        "router": draw(st.sampled_from(ROUTERS.names())),
        "max_concurrency": draw(st.sampled_from([None, None, 1, 4])),
        "record_steps": draw(st.booleans()),
        "record_memory_map": draw(st.sampled_from([False, False, False, True])),
        "horizon": draw(st.sampled_from([math.inf] * 5 + [0.3])),
        "cost_model": draw(st.sampled_from(["roofline", "roofline", "constant+seconds=0.01"])),
    }
    # What a scheduler can do, its class says.
    base = parse_spec(given.get("allocator", "paged"))[0]
    default = getattr(ALLOCATORS.get(base), "default_scheduler", "vllm")
    kind: Any = SCHEDULERS.get(given.get("scheduler", default))
    if kind.looks_up_prefix:
        options["enable_prefix_caching"] = draw(st.sampled_from([True, True, False]))
    if not kind.can_swap:
        options["pipeline_parallel_size"] = draw(st.sampled_from([1, 1, 1, 2]))
    if kind.supports_async:
        options["long_prefill_token_threshold"] = draw(st.sampled_from([0, 0, 5]))
        options["scheduler_reserve_full_isl"] = draw(st.booleans())
        if options["pipeline_parallel_size"] == 1:
            options["async_scheduling"] = draw(st.booleans())
    if kind.rules_of == VLLM:
        policies = ["fcfs", "priority", "vtc", "vtc", "dlpm", "dlpm"]
        options["scheduling_policy"] = draw(st.sampled_from(policies))
        options["dlpm_quantum"] = draw(st.sampled_from([1, 30, 4096]))
    if not kind.whole_prompts:
        budget = max(draw(st.sampled_from([max_num_seqs, 16, 300])), max_num_seqs)
        options["max_num_batched_tokens"] = budget
        if draw(st.integers(0, 5)) == 0:
            options["enable_chunked_prefill"] = False
            options["max_num_batched_tokens"] = max(budget, options["max_model_len"])
    options |= given
    if given.get("speculative_config"):
        if given["speculative_config"]["method"] == "ngram":
            options["async_scheduling"] = False
        options["max_num_batched_tokens"] = max(options["max_num_batched_tokens"], 8)
    if "enable_lora" in given and options["max_num_scheduled_tokens"] is not None:
        limit = min(options["max_num_scheduled_tokens"], options["max_num_batched_tokens"])
        options["max_num_scheduled_tokens"] = limit
        options["enable_chunked_prefill"] = True
    if "num_samples" in given:  # sequences count
        options |= {"max_num_seqs": max_num_seqs + 2, "num_lookahead_tokens": 0}
        options["max_num_active_seqs"] = None
    # A request takes blocks in every group.
    setup = resolve(Config.build(**options | {"num_gpu_blocks_override": 2}))
    blocks = draw(st.one_of(st.integers(1, 12), st.integers(8, 60), st.integers(60, 400)))
    options["num_gpu_blocks_override"] = blocks * len(getattr(setup.kv, "groups", (None,)))
    return options


def both(trace: Trace, **options: Any) -> list[kvsim.Result]:
    return [kvsim.simulate(trace, backend=name, **options) for name in ("python", "compiled")]


def assert_equal(python: kvsim.Result, compiled: kvsim.Result) -> None:
    assert compiled.provenance["engine"] == "compiled"
    for table in ("requests", "memory", "steps"):
        assert equal_tables(getattr(python, table), getattr(compiled, table)), table
    assert np.array_equal(python.memory_map, compiled.memory_map)
    assert python.summary == compiled.summary


@pytest.mark.long  # compiles the variant of all kinds
@pytest.mark.parametrize("name", FAMILIES)
def test_both_engines_agree_to_the_bit(name: str) -> None:
    seen: Counter[str] = Counter()

    @examples(40)
    @given(trace=traces(max_requests=30), options=configured(name))
    def agree(trace: Trace, options: dict[str, Any]) -> None:
        trace = of_family(trace, name)
        python, compiled = both(trace, **options)
        assert_equal(python, compiled)
        seen["runs"] += 1
        seen["served"] += python.summary["completed"] > 0
        seen["preempted"] += python.summary["num_preemptions"] > 0
        seen["hits"] += (python.summary["prefix_cache_hit_rate"] or 0) > 0

    agree()
    assert seen["served"] > 0.1 * seen["runs"] or seen["runs"] < 20  # eight may all be refused
    assert seen["hits"] > 0 or name not in HITTING or seen["runs"] < 50


@st.composite
def short_of_memory(draw: st.DrawFn, name: str) -> tuple[Trace, dict[str, Any]]:
    """Requests that each fit a memory that does not hold two or three of them."""
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
    options = draw(configured(name))
    options |= {"max_model_len": 120, "max_num_seqs": int(rng.integers(3, 12))}
    options |= {"horizon": math.inf, "max_num_active_seqs": None}
    if "max_num_batched_tokens" in options:
        options["max_num_batched_tokens"] = draw(st.sampled_from([120, 300]))
    setup = resolve(Config.build(**options | {"num_gpu_blocks_override": 2}))
    block, longest = setup.kv_config.num_bytes // 2, int((prompt + output).max())
    one = Request(0, 0.0, 1, longest - 1, num_samples=options.get("num_samples", 1))
    least, most = 1, 2000
    while least < most:  # the fewest blocks that hold the longest request
        middle = (least + most) // 2
        config = replace(setup.kv_config, num_bytes=middle * block, max_num_samples=one.num_samples)
        kv = replace(setup, kv_config=config).make_kv()
        least, most = (least, middle) if kv.fits(one) else (middle + 1, most)
    slack = draw(st.sampled_from([1.0, 1.4, 2.0]))
    options["num_gpu_blocks_override"] = int(least * slack / (1.0 - options["watermark"])) + 1
    return trace, options


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_both_engines_agree_when_memory_is_short(name: str) -> None:
    seen: Counter[str] = Counter()

    @examples(10)
    @given(case=short_of_memory(name))
    def agree(case: tuple[Trace, dict[str, Any]]) -> None:
        trace, options = case
        trace = of_family(trace, name)
        python, compiled = both(trace, **options)
        assert_equal(python, compiled)
        check_result(compiled)
        assert compiled.summary["completed"] == len(trace) or name not in PREEMPTING
        seen["runs"] += 1
        seen["preempted"] += python.summary["num_preemptions"] > 0

    agree()
    few = seen["runs"] < 50 or name not in PREEMPTING
    assert seen["preempted"] >= seen["runs"] / 5 or few


# -- the whole state, field by field ---------------------------------------------------------------


class Interpreted(Replica):
    """The rules in plain Python over the memory of compiled code."""

    def _call(self, command: int, max_steps: int) -> int:
        return rules.serve(self.state, command, max_steps)


SMALL: dict[str, Any] = {"model": "llama-3-8b", "gpu": "l4", "max_model_len": 512}
FEW = workloads.fixed(prompt=20, output=5, num_requests=3, request_rate=1.0)


def replicas(setup: Setup, trace: Trace) -> dict[str, Replica]:
    """Make a replica on Python objects, one on flat memory, and a compiled one."""
    contents = Contents.of(trace)
    options: dict[str, Any] = {"start_time": float(trace.arrival_time[0])}
    options["end_time"] = options["start_time"] + setup.config.horizon
    return {
        "python": Replica(0, setup, contents, new_requests(trace), **options),
        "flat": Interpreted(
            0, setup, Contents.of(trace), new_requests(trace), compiled=True, **options
        ),
        "compiled": Replica(
            0, setup, Contents.of(trace), new_requests(trace), compiled=True, **options
        ),
    }


#: Fields of a user's part that only compiled rules read.
OF_PARTS = (".part.address", ".part.calls", ".order.address", ".order.calls", "].address")


def differences(a: Any, b: Any, record: type[Record], name: str = "state") -> Iterator[str]:
    """Name the fields in which two records differ, ``b`` one in flat memory."""
    if record is Request and a.request_id == b.request_id == NONE:
        return  # never used
    for field, annotation in record.kinds().items():
        kind, path, x, y = (
            strip_width(annotation),
            f"{name}.{field}",
            getattr(a, field),
            getattr(b, field),
        )
        item = item_of(kind)
        # Where a trace's contents, a user's part and its machine code lie.
        if field == "segments" or path.endswith(OF_PARTS):
            continue
        if is_record(kind):
            yield from differences(x, y, kind, path)
        elif item is None:
            if x != y and not (math.isnan(x) and math.isnan(y)):
                yield f"{path}: {x}, {y}"
        elif isinstance(x, Views) and isinstance(y, Views):  # tables
            if not equal_tables(x.array, y.array):
                yield path
        elif isinstance(x, Numbers) and isinstance(y, Numbers):
            if not np.array_equal(x.array, y.array):
                yield path
        elif not isinstance(x, Zeros | Room) and len(x) != len(y):
            yield f"{path} has {len(x)} entries, {len(y)}"
        elif is_record(item):
            for place in range(len(y)):
                yield from differences(x[place], y[place], item, f"{path}[{place}]")
        elif [x[place] for place in range(len(y))] != list(y):
            yield f"{path}: {[x[place] for place in range(len(y))]}, {list(y)}"


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_both_engines_leave_the_same_state_at_every_horizon(name: str) -> None:
    seen: Counter[str] = Counter()

    @examples(10)
    @given(trace=traces(max_requests=8), options=configured(name), data=st.data())
    def agree(trace: Trace, options: dict[str, Any], data: st.DataObject) -> None:
        options["data_parallel_size"] = 1
        setup = resolve(Config.build(**options))
        arrival = trace.arrival_time
        found = replicas(setup, trace)
        waits = st.sampled_from([0.0, 0.01, 0.1, math.inf])
        until_finish = data.draw(st.booleans())
        for k in np.flatnonzero(admissible_requests(setup, trace)).tolist():
            # Whatever may still arrive, arrives later than where a replica has gone.
            horizon = max(arrival[k], found["python"].clock)
            time = np.array([horizon])
            for replica in found.values():
                replica.submit(np.array([k]), time)
            later = arrival[arrival > horizon]
            until = min(horizon + data.draw(waits), later[0] if len(later) else math.inf)
            ended = [r.advance(until, until_finish=until_finish) for r in found.values()]
            assert len(set(ended)) == 1
            _compare(found, seen)
        while sum(r.advance(math.inf, until_finish=until_finish) for r in found.values()):
            _compare(found, seen)
        totals = [r.settle(found["python"].clock) for r in found.values()]
        assert totals[0] == totals[1] == totals[2]
        _compare(found, seen)

    agree()
    assert seen["running"] > seen["compared"] / 10 or name not in HITTING or seen["compared"] < 100


def _compare(found: dict[str, Replica], seen: Counter[str]) -> None:
    python, *others = found.values()
    times = [replica.next_event_time() for replica in found.values()]
    assert times[0] == times[1] == times[2]
    for other in others:
        assert list(differences(python.state, other.state, State)) == []
    seen["compared"] += 1
    seen["running"] += python.state.num_running > 0


# -- long outputs, real traces ------------------------------------------------------------------


def long_outputs(seed: int, num_requests: int = 25) -> Trace:
    """Long decodes in a tight memory: runs of steps that end at arrivals, blocks and finishes."""
    rng = np.random.default_rng(seed)
    return Trace.from_arrays(
        np.sort(rng.uniform(0, 5, num_requests)),
        rng.integers(1, 80, num_requests),
        rng.integers(1, 400, num_requests),
        tenant=np.arange(num_requests) * 7 % 5 % 3,
    )


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("enable_prefix_caching", [False, True])
def test_runs_of_steps_are_exact(
    seed: int, async_scheduling: bool, enable_prefix_caching: bool
) -> None:
    """Step by step, as when steps are recorded, comes to the same as in runs; in both engines."""
    options = {
        "model": "llama-3-8b",
        "gpu": "h100-sxm",
        "max_model_len": 512,
        "max_num_seqs": 4 + 7 * (seed % 3),
        "num_gpu_blocks_override": [2000, 150, 60][seed % 3],
        "scheduling_policy": ["fcfs", "priority", "vtc", "dlpm", "vtc", "fcfs"][seed],
        "record_memory_map": seed == 0 and enable_prefix_caching,  # painting takes its time
        "async_scheduling": async_scheduling,
        "enable_prefix_caching": enable_prefix_caching,
    }
    python, compiled = both(long_outputs(seed), **options)
    assert_equal(python, compiled)
    check_result(compiled)
    stepped = kvsim.simulate(long_outputs(seed), record_steps=True, **options)
    assert equal_tables(stepped.requests, compiled.requests)
    assert equal_tables(stepped.memory, compiled.memory)
    assert np.array_equal(stepped.memory_map, compiled.memory_map)
    assert stepped.summary == compiled.summary


#: States so small that their blocks have 16 tokens.
STATES = like(
    "qwen3-next-80b-a3b", state_num_heads=4, state_head_dim=32, state_num_groups=2, state_size=16
)
#: Models with several tables per request, or with windows; and blocks for all, for most, for few.
GROUPS = {
    "windows": (like("gemma-3-27b", window=33), (3000, 300, 90)),
    "short windows": (like("gpt-oss-20b", window=16), (1000, 120, 50)),
    "chunks in one table": (like("llama-4-scout", window=50, layer_pattern="CCCF"), (1500, 90, 50)),
    "chunks alone": (like("llama-4-scout", window=50, layer_pattern="C"), (1000, 30, 15)),
    "blocks of two sizes": (like("gemma-4-26b-a4b", window=33), (3000, 250, 80)),
    "states": (STATES, (3000, 150, 60)),
}


def sharing(trace: Trace) -> Trace:
    """Put one prefix before all prompts, and let them come together."""
    given = zip(range(len(trace)), trace.num_prompt_tokens.tolist(), strict=True)
    return Trace.from_arrays(
        trace.arrival_time / 50,
        trace.num_prompt_tokens + 64,
        trace.num_output_tokens,
        segments=[[(99, 0, 64), (k, 0, own)] for k, own in given],
    )


@pytest.mark.long
@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("enable_prefix_caching", [False, True])
def test_runs_of_groups_are_exact(
    monkeypatch: pytest.MonkeyPatch, name: str, async_scheduling: bool, enable_prefix_caching: bool
) -> None:
    """Likewise where requests have several tables, windows or states."""
    model, pools = GROUPS[name]
    lengths: Counter[int] = Counter()

    def end_run(state: Any, steps: int, last_token_time: float) -> None:
        lengths[steps] += 1
        ends(state, steps, last_token_time)

    ends = runs.end_run
    monkeypatch.setattr(runs, "end_run", end_run)
    for seed, blocks in enumerate(pools):
        options = {
            "model": model,
            "gpu": "b200",
            "tensor_parallel_size": 8 if model.name.startswith("llama-4") else 1,
            "max_model_len": 512,
            "max_num_seqs": (8, 16, 5)[seed],
            "num_gpu_blocks_override": blocks,
            "async_scheduling": async_scheduling,
            "enable_prefix_caching": enable_prefix_caching,
            "scheduling_policy": ("fcfs", "priority", "vtc")[seed],
        }
        trace = sharing(long_outputs(seed)) if seed == 0 else long_outputs(seed)
        python, compiled = both(trace, **options)
        assert_equal(python, compiled)
        stepped = kvsim.simulate(trace, record_steps=True, **options)
        assert equal_tables(stepped.requests, compiled.requests)
        assert equal_tables(stepped.memory, compiled.memory)
        assert stepped.summary == compiled.summary
    assert sum(lengths.values()) > 50
    assert max(lengths) > 16


@pytest.mark.long
@pytest.mark.parametrize("name", ["windows", "short windows", "blocks of two sizes"])
def test_no_run_while_windows_share_blocks(name: str) -> None:
    """What is dead of a shared block is asked of every request at every step."""
    trace = Trace.from_arrays(
        [0.0] + [0.5] * 4,
        [66] * 5,
        [200] * 5,
        segments=[[(99, 0, 64), (k, 0, 2)] for k in range(5)],
    )
    options = {"model": GROUPS[name][0], "gpu": "b200", "max_model_len": 512}
    python, compiled = both(trace, num_gpu_blocks_override=2000, **options)
    assert_equal(python, compiled)
    stepped = kvsim.simulate(
        trace, num_gpu_blocks_override=2000, record_steps=True, backend="python", **options
    )
    assert equal_tables(stepped.memory, compiled.memory)
    assert stepped.summary == compiled.summary


#: What else is worth long outputs, and is none of the families above alone.
LONG = (
    {"model": like("gpt-oss-20b", window=33), "gpu": "h200-sxm"},
    {"allocator": "paged+window=100"},
    {"pipeline_parallel_size": 2},
    {"num_lookahead_tokens": 3},
)


@pytest.mark.parametrize("options", LONG, ids=str)
def test_long_outputs_are_exact(options: dict[str, Any]) -> None:
    given = {"model": "llama-3-8b", "gpu": "h100-sxm", "max_model_len": 512} | options
    assert_equal(*both(long_outputs(1), num_gpu_blocks_override=150, **given))


@pytest.mark.long
def test_more_samples_than_are_kept() -> None:
    trace = Trace.from_arrays([0.0, 0.0], [10, 10], [9000, 5000])
    options = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "max_model_len": 16000}
    assert_equal(*both(trace, **options))


@pytest.mark.long
def test_more_requests_and_steps_than_fit_at_first() -> None:
    """Records of requests double, and full tables of steps are put away."""
    trace = Trace.from_arrays([0.0] * 300, [3] * 300, [20] * 300)
    options = {"model": "llama-3-8b", "gpu": "h100-sxm", "max_model_len": 64, "max_num_seqs": 1}
    for policy in ("fcfs", "priority"):
        python, compiled = both(trace, record_steps=True, scheduling_policy=policy, **options)
        assert_equal(python, compiled)
        assert len(compiled.steps) > 4096


@pytest.mark.long
@pytest.mark.parametrize(
    ("pattern", "options"),
    [
        ("azure2023_conv*", {"model": "llama-2-7b", "gpu": "a100-80gb"}),
        ("mooncake*conv*", {"model": "llama-3.1-8b", "gpu": "h200-sxm", "data_parallel_size": 2}),
        ("mooncake*conv*", {"model": "gpt-oss-20b", "gpu": "h200-sxm"}),
    ],
)
def test_both_engines_agree_on_real_traces(
    sample_data: Path, pattern: str, options: dict[str, Any]
) -> None:
    trace = workloads.load(next((sample_data / "traces").glob(pattern)))[:60]
    assert_equal(*both(trace, **options))


# -- recorded vLLM schedules through the compiled engine -------------------------------------------


def played(path: Path) -> Any:
    """Mark the long ones: comparing every step's state in flat memory takes its time."""
    size = path.stat().st_size
    marks = [pytest.mark.slow if size > 8_000 else pytest.mark.long] * (size > 4000)
    return pytest.param(path, marks=marks, id=path.name.partition(".")[0])


@pytest.mark.long
@pytest.mark.parametrize("backend", [pytest.param("python", marks=pytest.mark.long), "compiled"])
@pytest.mark.parametrize(
    "own",
    [
        {},
        {"num_gpu_blocks_override": 120},
        {"horizon": 4.0},
        {"scheduler": "static"},
        {"allocator": "contiguous-max"},
        {"prefill_schedule_interval": 3, "max_num_seqs": 2},
    ],
    ids=str,
)
def test_the_tail_of_a_long_queue_needs_no_records(
    own: dict[str, Any], backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits behind a queue's first ones is served, counted and cut off like everybody."""
    trace = workloads.sharegpt(num_requests=120, request_rate=100.0, seed=2)
    options = {"model": "llama-3-8b", "gpu": "l4", "max_model_len": 1024, "max_num_seqs": 8, **own}
    found = []
    for longest in (0, 10**6):
        monkeypatch.setattr("kvsim.sched.backlog.LONGEST_QUEUE", longest)
        found.append(kvsim.simulate(trace, **options, backend=backend))
    short, whole = found
    assert short.summary == whole.summary
    assert short.summary["mean_waiting"] > 16 + options["max_num_seqs"]  # longer than the queue
    for table in ("requests", "memory", "token_gaps"):
        assert equal_tables(getattr(short, table), getattr(whole, table))


@pytest.mark.parametrize("path", [played(path) for path in GOLDEN])
def test_recorded_vllm_schedules_come_out_identical(path: Path) -> None:
    assert kvsim.replay(path, backend="compiled") is None


# -- refusing, checking ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_compiled_whatever_is_recorded(name: str) -> None:
    @examples(10)
    @given(options=configured(name))
    def chosen(options: dict[str, Any]) -> None:
        options |= {"record_steps": True, "record_memory_map": True, "data_parallel_size": 2}
        assert refusal(resolve(Config.build(**options))) is None

    chosen()


@pytest.mark.skipif(not CHECKED, reason="KVSIM_BOUNDSCHECK=1 is not set")
@pytest.mark.parametrize("place", [-2, 64, 2**40])
def test_a_place_beyond_its_list_is_found(place: int) -> None:
    """Where compiled code is checked, a wrong place is an error and not another's memory."""
    replica = replicas(resolve(Config.build(**SMALL)), FEW)["compiled"]
    replica.submit(np.array([0]), np.array([0.0]))
    replica.state.free_requests[replica.state.num_free_requests - 1] = place
    with pytest.raises(IndexError, match="index is out of range"):
        replica.advance(math.inf)


@pytest.mark.slow
def test_with_every_access_checked(tmp_path: Path) -> None:
    """The whole of this file once more in an interpreter of its own."""
    environment = os.environ | {"KVSIM_BOUNDSCHECK": "1", "KVSIM_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", __file__],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[1],
    )
    assert done.returncode == 0, done.stdout[-2000:]
