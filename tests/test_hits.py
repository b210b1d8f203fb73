"""Hit rates over cache size: against plain simulators, a published tool and the engine."""

from __future__ import annotations

import csv
import json
import math
import random
import shlex
import subprocess
import sys
from collections import OrderedDict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from refused import refused

import kvsim
import workloads
from kvsim.cli.main import main
from kvsim.hits.hit_rate import HitRate, hit_rate
from kvsim.hits.policies import POLICIES

DATA = Path(__file__).parent / "data" / "traces"
MOONCAKE = DATA / "mooncake_fast25_conversation_1000.jsonl.gz"
BLOCK = 4


def random_trace(seed: int) -> kvsim.Trace:
    """Draw prompts that are paths of a small tree, mostly with a short last block."""
    draw = random.Random(seed)
    prompts: list[list[tuple[int, int, int]]] = []
    for row in range(draw.randrange(5, 20)):
        shared = draw.choice(prompts) if prompts and draw.random() < 0.8 else []
        kept = [(content, 0, BLOCK) for content, _, _ in shared[: draw.randrange(len(shared) + 1)]]
        fresh = [(100 * row + k, 0, BLOCK) for k in range(draw.randrange(1, 6))]
        prompts.append([*kept, *fresh[:-1], (fresh[-1][0], 0, draw.randrange(1, BLOCK + 1))])
    if draw.random() < 0.5:
        prompts += draw.sample(prompts, len(prompts) // 2)
    lengths = [sum(n for _, _, n in prompt) for prompt in prompts]
    return kvsim.Trace.from_arrays(
        np.arange(len(prompts)), lengths, [1] * len(prompts), segments=prompts
    )


def paths_of(trace: kvsim.Trace) -> list[list[tuple[object, ...]]]:
    """Return each prompt's blocks by name: all that the prompt holds up to its end."""
    found = []
    for row in range(len(trace)):
        pieces = [tuple(segment) for segment in trace.segments_of(row)]
        found.append([tuple(pieces[: k + 1]) for k in range(len(pieces))])
    return found


def direct_lru(trace: kvsim.Trace, size: int, measure_from: int) -> int:
    """Serve prompts by a dictionary in order of last use: leaves go before their parents."""
    cache: OrderedDict[object, None] = OrderedDict()
    total = 0
    for row, path in enumerate(paths_of(trace)):
        hits = next((k for k, block in enumerate(path) if block not in cache), len(path))
        if row >= measure_from:
            total += min(hits * BLOCK, int(trace.num_prompt_tokens[row]))
        for block in reversed(path):
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > size:
            cache.popitem(last=False)
    return total


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 200, 50))
def test_one_pass_lru_equals_direct_simulation_at_every_size(first: int) -> None:
    """200 random tries."""
    for seed in range(first, first + 50):
        trace, measure_from = random_trace(seed), seed % 3
        found = hit_rate(
            trace, policies=["lru"], block_size=BLOCK, measure_from=measure_from, backend="python"
        )
        assert found.distinct_blocks == len({block for p in paths_of(trace) for block in p})
        for size in range(1, found.distinct_blocks + 1):
            assert found.lru[size] == direct_lru(trace, size, measure_from), (seed, size)


def every_size(trace: kvsim.Trace, policies: tuple[str, ...] = POLICIES) -> HitRate:
    most = len({block for path in paths_of(trace) for block in path})
    sizes = range(1, most + 2)
    return hit_rate(trace, policies=policies, block_size=BLOCK, sizes=sizes, backend="python")


def best_hits(trace: kvsim.Trace, size: int) -> int:
    """Return the most hit tokens that any choice of what to hold can give."""
    paths = paths_of(trace)
    best = {frozenset[object](): 0}
    for row, path in enumerate(paths):
        after: dict[frozenset[object], int] = {}
        for held, before in best.items():
            hits = next((k for k, block in enumerate(path) if block not in held), len(path))
            total = before + min(hits * BLOCK, int(trace.num_prompt_tokens[row]))
            reachable = {b for b in held | set(path) if all(p in held | set(path) for p in up(b))}
            for kept in subtrees(frozenset(reachable), size):
                after[kept] = max(after.get(kept, 0), total)
        best = after
    return max(best.values())


def up(block: object) -> list[object]:
    assert isinstance(block, tuple)
    return [block[:k] for k in range(1, len(block))]


def subtrees(blocks: frozenset[object], size: int) -> set[frozenset[object]]:
    """Return the sets of at most ``size`` blocks that hold all ancestors of each."""
    found, todo = {blocks}, [blocks]
    while todo:
        one = todo.pop()
        parents = {block[:-1] for block in one if isinstance(block, tuple)}
        for leaf in one - parents:
            less = one - {leaf}
            if less not in found:
                found.add(less)
                todo.append(less)
    return {one for one in found if len(one) <= size}


@pytest.mark.long
def test_the_optimum_is_the_best_of_all_choices() -> None:
    compared = 0
    for seed in range(40):
        trace = random_trace(1000 + seed)[:5]
        found = every_size(trace, ("optimal",))
        for size, hits in zip(*found.curves["optimal"], strict=True):
            if size < 5:
                assert hits == best_hits(trace, int(size)), (seed, size)
                compared += hits > 0
    assert compared > 20


@pytest.mark.long
def test_the_optimum_bounds_every_policy_and_curves_never_fall() -> None:
    for seed in range(300, 312):
        found = every_size(random_trace(seed))
        optimal = found.curves["optimal"][1]
        for policy, (_, hits) in found.curves.items():
            assert (hits <= optimal).all(), (seed, policy)
            assert hits[-1] == found.lru[-1], (seed, policy)
            if policy in ("lru", "optimal"):
                assert (np.diff(hits) >= 0).all(), (seed, policy)


def chain(*names: str) -> kvsim.Trace:
    """Return one request per text, a block per letter; equal texts before it make equal blocks."""
    prompts = [[(ord(letter), 0, BLOCK) for letter in name] for name in names]
    lengths = [BLOCK * len(name) for name in names]
    return kvsim.Trace.from_arrays(
        np.arange(len(names)), lengths, [1] * len(names), segments=prompts
    )


@pytest.mark.parametrize(
    ("policy", "hits"),
    [
        ("lru", 1),  # a, then c, evicts b, the least recently used
        ("fifo", 0),  # a went first, though used again
        ("lfu", 1),
        ("slru", 1),
        ("arc", 1),
        ("gdsf", 1),
        ("sieve", 1),  # a is marked, so b goes
        ("s3fifo", 1),
        ("optimal", 1),
    ],
)
def test_each_policy_keeps_its_own(policy: str, hits: int) -> None:
    trace = chain("a", "b", "a", "c", "a")
    found = hit_rate(
        trace, policies=[policy], sizes=[2], block_size=BLOCK, measure_from=3, backend="python"
    )
    assert found.curves[policy][1].tolist() == [hits * BLOCK]


def test_arc_learns_from_its_ghosts_and_slru_protects() -> None:
    """One pass over new blocks evicts what LRU has, and not what was used twice."""
    found = every_size(chain(*"aabb", *"cdefgh", "a", "b"), ("lru", "slru", "arc", "gdsf"))
    at_three = {policy: int(hits[2]) // BLOCK for policy, (_, hits) in found.curves.items()}
    assert at_three == {"lru": 2, "slru": 4, "arc": 4, "gdsf": 2}


def test_lfu_keeps_what_was_used_often_and_lru_what_was_used_last() -> None:
    """SIEVE's hand takes a's mark for c, and a itself for d."""
    trace = chain("a", "a", "b", "c", "d", "a")
    found = every_size(trace)
    at_two = {policy: int(hits[1]) // BLOCK for policy, (_, hits) in found.curves.items()}
    assert at_two == {
        "slru": 2,
        "arc": 2,
        "gdsf": 1,
        "lru": 1,
        "fifo": 1,
        "lfu": 2,
        "s3fifo": 2,
        "sieve": 1,
        "optimal": 2,
    }


@pytest.mark.parametrize(
    ("policy", "names"),
    [
        ("sieve", "abcadea"),  # the hand has passed a, and evicts c for e
        ("s3fifo", "abcdaefga"),  # a returns while its ghost lives, and joins the main queue
    ],
)
def test_sieves_hand_and_s3fifos_ghosts(policy: str, names: str) -> None:
    """FIFO has lost a by its last use."""
    found = hit_rate(
        chain(*names),
        policies=[policy, "fifo"],
        sizes=[3],
        block_size=BLOCK,
        measure_from=len(names) - 1,
        backend="python",
    )
    assert found.curves[policy][1].tolist() == [BLOCK]
    assert found.curves["fifo"][1].tolist() == [0]


def test_blocks_are_equal_only_after_equal_prefixes() -> None:
    found = every_size(chain("ab", "cb", "ab"))
    assert (found.total_blocks, found.distinct_blocks) == (6, 4)
    assert found.lru.tolist() == [0, 0, 0, BLOCK, 2 * BLOCK]


def test_salts_and_cuts() -> None:
    """A salt shares nothing with another; the same tokens are equal however they are cut."""
    whole, cut = [(7, 0, 3 * BLOCK)], [(7, 0, 5), (7, 5, 3 * BLOCK - 5)]
    trace = kvsim.Trace.from_arrays(
        [0, 1, 2], [3 * BLOCK] * 3, [1] * 3, segments=[whole, cut, whole], cache_salt=[0, 0, 5]
    )
    found = hit_rate(trace, block_size=BLOCK, policies=["lru"], backend="python")
    assert found.distinct_blocks == 6
    assert found.lru[-1] == 3 * BLOCK


def test_many_nodes_grow_the_table() -> None:
    trace = workloads.shared_prefix(num_requests=300, seed=1)
    found = hit_rate(trace, block_size=8, policies=["lru"], backend="python")
    assert found.distinct_blocks > 1 << 12
    assert found.lru[-1] > 0


def test_prompts_that_share_nothing_hit_nothing() -> None:
    found = hit_rate(workloads.sharegpt(num_requests=5, seed=0), backend="python")
    assert found.ceiling == 0
    assert found.distinct_blocks == found.total_blocks > 5
    assert found.knee == 0
    found.plot()


# -- published numbers, and the engine -----------------------------------------------------


@pytest.fixture(scope="module")
def sample() -> HitRate:
    return hit_rate(workloads.load(MOONCAKE), policies=["lru"], block_size=512, backend="python")


@pytest.mark.long
def test_lru_on_mooncakes_first_requests(sample: HitRate) -> None:
    """One pass and a plain simulation, on a real trace."""
    trace = workloads.load(MOONCAKE)
    for size in (1, 100, 3000, sample.distinct_blocks):
        assert sample.lru[size] == lru_by_ids(trace, size)


def lru_by_ids(trace: kvsim.Trace, size: int) -> int:
    """Do as :func:`direct_lru` for a trace in which an id has one parent."""
    cache: OrderedDict[int, None] = OrderedDict()
    total = 0
    for row in range(len(trace)):
        path = [segment.content_id for segment in trace.segments_of(row)]
        hits = next((k for k, block in enumerate(path) if block not in cache), len(path))
        total += min(512 * hits, int(trace.num_prompt_tokens[row]))
        for block in reversed(path):
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > size:
            cache.popitem(last=False)
    return total


@pytest.mark.long
@pytest.mark.parametrize("policy", ["lru", "fifo", "optimal"])
def test_a_public_simulator_agrees_to_the_token(policy: str, whole_data: Path) -> None:
    """kvcache-simulator 0.1.3 on Mooncake's conversation trace, requests 6,015 and later."""
    trace = workloads.load(whole_data / "traces" / "mooncake_fast25_conversation.jsonl.gz")
    with (whole_data / "hit_rates" / "mooncake_conversation.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["policy"] in (policy, "ceiling")]
    want = {int(r["capacity_blocks"]): int(r["hit_tokens"]) for r in rows[:-1]}
    found = hit_rate(trace, policies=[policy], sizes=list(want), block_size=512, measure_from=6015)
    sizes, hits = found.curves[policy]
    assert dict(zip(sizes.tolist(), hits.tolist(), strict=True)) == want
    assert found.measured_tokens == int(rows[0]["measured_tokens"])
    assert found.lru[-1] == int(rows[-1]["hit_tokens"])


@pytest.mark.long
def test_both_backends_agree() -> None:
    trace = workloads.load(MOONCAKE)[:300]
    compiled, python = (
        hit_rate(trace, block_size=512, backend=backend) for backend in ("compiled", "python")
    )
    assert compiled.table.tobytes() == python.table.tobytes()
    assert (compiled.lru == python.lru).all()


@pytest.mark.long
@pytest.mark.parametrize(
    "call",
    [
        'hit_rate(trace, policies=["lru"])',
        'simulate(trace, model="llama-3-8b", gpu="a100-80gb", backend="compiled")',
    ],
)
def test_a_second_process_loads_what_the_first_compiled_without_numba(call: str) -> None:
    run = f"""
import sys, kvsim, workloads
trace = workloads.shared_prefix(num_requests=5)
kvsim.{call}
print("numba" in sys.modules)
"""
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", run], check=True, capture_output=True)
    assert (done.stdout, done.stderr) == (b"False\n", b"")


def test_an_engine_that_serves_one_request_at_a_time_hits_what_the_curve_says() -> None:
    """Outputs are cached there, too."""
    trace = workloads.multi_turn(num_requests=60, seed=3).with_request_rate(math.inf)
    options = {"model": "llama-3-8b", "gpu": "a100-80gb"}
    found = hit_rate(trace, policies=["lru"], backend="python", **options)
    rates = []
    for size in (400, 1600):
        result = kvsim.simulate(
            trace, max_concurrency=1, num_gpu_blocks_override=size + 1, **options
        )
        assert result.summary["num_rejected"] == 0
        rates.append(result.summary["prefix_cache_hit_rate"])
        assert rates[-1] == pytest.approx(found.lru_rate(size), abs=0.005)
    assert rates[0] < rates[1]


# -- the model, the answer, the command ----------------------------------------------------


def test_sizes_of_a_model() -> None:
    trace = workloads.shared_prefix(num_requests=20, seed=1)
    found = hit_rate(
        trace,
        policies=["lru"],
        model="llama-3-8b",
        gpu="h100-sxm",
        kv_offloading_size=8,
        disk_size=80.0,
        gib_price=3.0,
        backend="python",
    )
    assert found.block_size == 16
    assert found.deployment is not None
    assert found.deployment.block_bytes == 16 * 131072
    tiers = {tier.name: tier.num_blocks for tier in found.deployment.tiers}
    pools = [
        kvsim.capacity(model="llama-3-8b", gpu="h100-sxm", tensor_parallel_size=n)
        for n in (1, 2, 4)
    ]
    assert list(tiers.values())[:3] == [pool.num_gpu_blocks - 1 for pool in pools]
    assert tiers["1 GPU + host memory"] == tiers["1 GPU"] + 8 * 512
    assert tiers["1 GPU + host memory + disk"] == tiers["1 GPU + host memory"] + 80 * 512
    assert found.table["gib"] == pytest.approx(found.table["num_blocks"] / 512)
    assert found.table["dollars"] == pytest.approx(found.table["gib"] * 3)
    assert found.to_pandas().shape == (len(found.table), 6)


def test_one_deployment_where_it_is_fixed() -> None:
    trace = workloads.shared_prefix(num_requests=5, seed=1)
    options = {"model": "qwen3-next-80b-a3b", "gpu": "h200-sxm", "tensor_parallel_size": 4}
    found = hit_rate(trace, policies=["lru"], backend="python", **options)
    assert found.deployment is not None
    assert [tier.name for tier in found.deployment.tiers] == ["4 GPUs"]
    gemma = hit_rate(trace, policies=["lru"], backend="python", model="gemma-3-27b", gpu="h100-sxm")
    assert gemma.deployment is not None
    assert "estimate" in gemma.deployment.notes[0]


@pytest.mark.long
def test_the_command_writes_what_it_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, out = tmp_path / "hits.html", tmp_path / "out"
    words = ["hits", str(MOONCAKE), "--block-size", "512", "--policies", "lru"]
    main([*words, "--report", str(page), "--out", str(out), "--json", "-"])
    answer = json.loads(capsys.readouterr().out)
    assert {"total_blocks", "distinct_blocks", "ceiling", "curves"} <= set(answer)
    rates = [rate for _, rate in answer["curves"]["lru"]]
    assert len(rates) > 100
    assert all(a <= b for a, b in pairwise(rates))
    assert json.loads((out / "hits.json").read_text()) == answer
    rows = list(csv.DictReader((out / "hits.csv").read_text().splitlines()))
    assert [float(row["hit_rate"]) for row in rows] == rates
    assert (out / "hits.png").stat().st_size > 1000
    assert "different ones" in page.read_text()
    main([*words, "--sizes", "10,1000"])
    shown = capsys.readouterr().out
    assert "1,000" in shown
    assert f"{answer['knee']:,}" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpu", "h100-sxm"], "--gpu needs a model"),
        (["--policies", "lur"], "unknown policy 'lur'; did you mean lru"),
        (["--policies", ""], "unknown policy ''"),
        (["--sizes", "0"], "--sizes must be numbers of blocks"),
        (["--sizes", "a"], "--sizes a: must be whole numbers, as in 1000,10000"),
        (["--measure-from", "1000"], "--measure-from must be a request from 0 to 999, got 1000"),
        (["--disk-size", "5"], "--disk-size needs a model"),
        (["--gib-price", "5"], "--gib-price needs a model"),
        (["--model", "llama-3-8b", "--gib-price", "nan"], "--gib-price must be above 0 and finite"),
        (["--block-size", "0"], "--block-size is '0': must be"),
        (["--model", "deepseek-v3"], "does not fit"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(capsys, shlex.join(["hits", str(MOONCAKE), *words]))
