"""Eviction policies over the same pool: orders worked by hand, bounds, a published curve."""

from __future__ import annotations

import random
from pkgutil import iter_modules
from typing import Any

import pytest
from driving import kv_config
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples, traces

import kvsim
import workloads
from kvsim.attention.full import FullAttention
from kvsim.hits.hit_rate import hit_rate
from kvsim.kv import policies
from kvsim.kv.eviction import EVICTION_POLICIES, Alone, EvictionPolicy, Sieve
from kvsim.kv.paged import PagedManager
from kvsim.records.eviction import PYTHON_POLICY
from kvsim.records.request import Request
from kvsim.testing import check_eviction

POLICIES = EVICTION_POLICIES.names()


def test_the_registry_holds_vllms_order_the_classics_and_the_bound():
    classics = {"lru", "fifo", "lfu", "s3fifo", "sieve", "slru", "arc", "gdsf", "hpt"}
    assert classics | {"belady"} <= set(POLICIES)


def test_a_file_in_the_folder_is_a_policy():
    names = {module.name.replace("_", "-") for module in iter_modules(policies.__path__)}
    assert names <= set(POLICIES)


def manager(num_blocks: int, policy: str, block_size: int = 4) -> PagedManager:
    memory = kv_config(num_blocks + 1, FullAttention(block_size), max_model_len=10**7)
    return PagedManager(memory, eviction=policy)


def request(index: int, contents: list[int], block_size: int = 4) -> Request:
    """A prompt of whole blocks of known content and one token of its own."""
    segments = [(content, 0, block_size) for content in contents] + [(10**9 + index, 0, 1)]
    length = block_size * len(contents) + 1
    return Request(index, 0.0, length, 1, segments, 2 * 10**9 + index)


def num_hits(prompts: list[list[int]], num_blocks: int, policy: str, block_size: int = 4) -> int:
    """Blocks hit when each prompt is served alone; too long ones are passed over."""
    kv = manager(num_blocks, policy, block_size)
    kv.foresee(request(i, prompt, block_size) for i, prompt in enumerate(prompts))
    hits = 0
    for i, prompt in enumerate(prompts):
        one = request(i, prompt, block_size)
        hit = kv.lookup(one)
        if kv.allocate_slots(one, one.num_tokens - hit.num_tokens, hit):
            hits += hit.num_tokens // block_size
            kv.free(one)
        kv.check_integrity()
    return hits


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        # Room for three cached blocks. 1 is used oftest, 2 is oldest unused, 4 comes last.
        ("lru", {1: True, 2: False, 3: True}),
        ("fifo", {1: False, 2: True, 3: True}),
        ("lfu", {1: True, 2: False, 3: True}),
    ],
)
def test_the_victim_is_the_one_the_policy_names(policy, expected):
    prompts = [[1], [2], [3], [1], [1], [3], [4]]
    for probe, kept in expected.items():
        base = num_hits(prompts, 4, policy)
        assert (num_hits([*prompts, [probe]], 4, policy) > base) == kept


def test_s3fifo_lets_a_scan_pass_by():
    """Content hit twice while it was new survives a scan that flushes LRU."""
    popular = [[1], [1], [1], [2], [2], [2]]
    scan = [[100 + i] for i in range(60)]
    prompts = [*popular, *scan, [1], [2]]
    assert num_hits(prompts, 12, "s3fifo") == 4 + 2
    assert num_hits(prompts, 12, "lru") == 4


class Contents:
    """A cache of single blocks under SIEVE or another policy: contents by name."""

    def __init__(self, size: int, policy: EvictionPolicy | None = None) -> None:
        self.policy, self.size = Sieve() if policy is None else policy, size
        self.block_of: dict[str, int] = {}
        self.unused = list(range(size))

    def use(self, names: str) -> str:
        """Read contents one by one; returns those evicted."""
        evicted = ""
        for name in names:
            if name in self.block_of:
                self.policy.hit(self.block_of[name])
                if not isinstance(self.policy, Sieve):
                    self.take(name)
                    self.release(name)
                continue
            if not self.unused:
                block = self.policy.evict()
                gone = next(n for n, b in self.block_of.items() if b == block)
                self.unused.append(self.block_of.pop(gone))
                evicted += gone
            block = self.block_of[name] = self.unused.pop()
            self.policy.cached(block, ord(name))
            self.policy.insert(block)
        return evicted

    def take(self, name: str) -> None:
        """Begin to use a content."""
        self.policy.remove(self.block_of[name])

    def release(self, name: str) -> None:
        """Stop using a content."""
        self.policy.insert(self.block_of[name])


def test_sieve_without_hits_is_fifo():
    assert Contents(3).use("ABCDEFG") == "ABCD"


def test_sieve_passes_over_what_was_hit_and_takes_its_mark():
    """Seven contents of which A, B and G were hit; then the requests H A D I B J."""
    cache = Contents(7)
    assert cache.use("ABCDEFG" + "ABG") == ""
    assert cache.use("H") == "C"  # A and B lose their marks
    assert cache.use("ADI") == "E"  # so does D, which was hit ahead of the hand
    assert cache.use("BJ") == "F"  # the hits of A and B, behind it, count in the next round
    assert cache.use("KLM") == "HIJ"  # G loses its mark; the hand never turns back to D


def test_sieve_hand_stays_where_it_was():
    """It does not begin at the oldest block each time, as CLOCK and FIFO-reinsertion do."""
    cache = Contents(3)
    assert cache.use("ABC" + "A") == ""
    assert cache.use("D") == "B"  # A has lost its mark, and keeps its place
    assert cache.use("E") == "C"
    assert cache.use("F") == "D"  # newer than A: the hand goes on towards the newest
    assert cache.use("G") == "E"


def test_sieve_begins_at_the_oldest_once_the_newest_is_gone():
    """Algorithm 1, line "hand = o.prev": behind the newest there is nobody, whoever comes then."""
    cache = Contents(3)
    assert cache.use("ABC" + "AB") == ""
    assert cache.use("D") == "C"  # the newest of all
    assert cache.use("E") == "A"  # not D, which came after


def test_sieve_goes_round_when_all_are_marked():
    cache = Contents(3)
    assert cache.use("ABC" + "CBA") == ""
    assert cache.use("DE") == "AB"


def test_sieve_leaves_blocks_in_use_their_place_and_their_mark():
    cache = Contents(3)
    cache.use("ABC")
    cache.take("A")
    assert cache.use("D") == "B"
    cache.release("A")  # the hand has passed it
    assert cache.use("EFG") == "CDE"
    cache = Contents(3)
    cache.use("ABCA")
    cache.take("A")
    assert cache.use("D") == "B"
    assert cache.use("E") == "C"
    assert list(cache.policy)[:1] == [cache.block_of["D"]]
    cache.release("A")
    assert len(cache.policy) == 3


@pytest.mark.parametrize(
    ("policy", "size", "names", "evicted"),
    [
        ("slru", 5, "abcdeafghijk", "bcdefg"),  # a was hit, and is protected from the scan
        ("slru", 6, "abcdefabcdegh", "fa"),  # of five that were hit the oldest is on probation
        ("arc", 3, "abcabcdef", "ade"),  # all were hit; then new contents pass T1 one by one
        ("arc", 3, "abcadbef", "bcad"),  # b returns from B1: T1 may keep one block, so T2 loses a
        (
            "gdsf",
            2,
            "aaabcde",
            "bca",
        ),  # counts begin at the last victim's: d equals a
        ("hpt", 2, "aaabcde", "bcd"),
        ("lfu", 2, "aaabcde", "bcd"),
    ],
)
def test_policies_of_the_literature_evict_by_hand(policy, size, names, evicted):
    made = EVICTION_POLICIES.make(policy)
    if made.rules_of == PYTHON_POLICY:
        made = Alone(made)
    assert Contents(size, made).use(names) == evicted


def random_prompts(seed: int, number: int = 150) -> list[list[int]]:
    """Paths in a random tree of prefixes."""
    rng = random.Random(seed)
    prompts = []
    for _ in range(number):
        path, node = [], 0
        for _ in range(rng.randint(1, 4)):
            node = node * 3 + rng.choice([1, 1, 2, 3])
            path.append(node)
        prompts.append(path)
    return prompts


@pytest.mark.long
@pytest.mark.parametrize(
    ("policy", "name", "most"),
    [("hpt", "lfu", 0), ("slru", "slru", 0), ("gdsf", "gdsf", 4), ("arc", "arc", 6)],
)
def test_a_pool_hits_what_the_cache_without_time_does(policy, name, most):
    """ARC's pool evicts before it knows the key; GDSF's may evict a block before its leaf."""
    for seed in range(3):
        prompts = random_prompts(seed)
        trace = kvsim.Trace.from_arrays(
            range(len(prompts)),
            [4 * len(prompt) for prompt in prompts],
            [1] * len(prompts),
            segments=[[(content, 0, 4) for content in prompt] for prompt in prompts],
        )
        curve = hit_rate(trace, policies=[name], sizes=[20], block_size=4, backend="python")
        assert abs(num_hits(prompts, 21, policy) - int(curve.curves[name][1][0]) // 4) <= most


@pytest.mark.long
def test_both_engines_agree_under_policies_of_the_literature():
    trace = workloads.multi_turn(num_requests=80, request_rate=8, seed=1, turns=3)
    options = {"model": "llama-3-8b", "gpu": "l4", "max_model_len": 4096}
    seen = set()
    for policy in ("lru", "slru", "arc", "gdsf"):
        python, compiled = (
            str(
                kvsim.simulate(
                    trace, backend=backend, eviction=policy, num_gpu_blocks_override=300, **options
                ).requests.tolist()
            )
            for backend in ("python", "compiled")
        )
        assert python == compiled
        seen.add(python)
    assert len(seen) >= 3


def test_belady_keeps_what_comes_back_soonest():
    prompts = [[1], [2], [3], [4], [1], [2], [3]]
    assert num_hits(prompts, 4, "lru") == 0
    assert num_hits(prompts, 4, "belady") == 2


def hits_by_hand(prompts: list[list[int]], num_blocks: int) -> int:
    """As :func:`num_hits` under Belady: the blocks of a prompt and of its last token are in use."""
    cached: dict[tuple[int, ...], int] = {}  # prefix -> request that cached it last
    hits = 0
    for i, prompt in enumerate(prompts):
        if len(prompt) >= num_blocks:
            continue
        prefixes = [tuple(prompt[: n + 1]) for n in range(len(prompt))]
        num_found = next((n for n, p in enumerate(prefixes) if p not in cached), len(prefixes))
        hits += num_found
        for prefix in prefixes[:num_found]:
            del cached[prefix]

        def next_use(prefix: tuple[int, ...], after: int = i) -> int:
            later = (j for j in range(after + 1, len(prompts)) if _starts(prompts[j], prefix))
            return next(later, len(prompts))

        while len(cached) + len(prompt) + 1 > num_blocks:
            del cached[max(cached, key=lambda p: (next_use(p), len(p)))]
        cached |= dict.fromkeys(prefixes, i)
    return hits


def _starts(prompt: list[int], prefix: tuple[int, ...]) -> bool:
    return tuple(prompt[: len(prefix)]) == prefix


def belady_of(prompts: list[list[int]], blocks: dict[int, int]) -> Any:
    """Return the policy after the first two prompts, with free blocks of these contents."""
    policy = EVICTION_POLICIES.make("belady")
    policy.foresee(prompts)
    for keys in prompts[:2]:
        policy.arrived(keys)
    for block, key in blocks.items():
        policy.cached(block, key)
        policy.insert(block)
    return policy


def test_belady_evicts_second_copies_first():
    policy = belady_of([[7], [8], [7], [8]], {1: 7, 2: 7, 3: 8})
    assert list(policy) == [2, 3, 1]  # the next use of 7 comes before that of 8
    assert [policy.evict() for _ in range(3)] == [2, 3, 1]


def test_belady_ranks_again_what_an_admission_does_not_hit():
    policy = belady_of([[7], [8], [7], [9], [8]], {1: 7, 2: 8})
    assert list(policy) == [2, 1]
    policy.arrived([7])  # its last use, without a hit
    assert list(policy) == [1, 2]


def test_belady_keeps_few_entries_of_a_block_that_is_hit_again():
    policy = belady_of([[7], [8], [7]], {1: 7})
    policy.pool.num_usable = 1
    for _ in range(20):
        policy.remove(1)
        policy.insert(1)
    assert policy.pool.rankings[0].length <= 4
    assert policy.evict() == 1


@given(
    prompts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=30),
    num_blocks=st.integers(3, 12),
)
@examples(60)
def test_belady_evicts_as_its_definition(prompts: list[list[int]], num_blocks: int) -> None:
    assert num_hits(prompts, num_blocks, "belady") == hits_by_hand(prompts, num_blocks)


BELADY = {"gpu": "h100-sxm", "max_model_len": 8192, "max_num_seqs": 64}
EAGLE = {"method": "eagle", "num_speculative_tokens": 3}


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "gain"),
    [
        ({"model": "llama-3-8b", "num_gpu_blocks_override": 520}, 0.15),
        ({"model": "gemma-3-27b", "num_gpu_blocks_override": 1100}, 0.03),  # groups, preemptions
        (  # a drafter's keys cover a token after the block
            {"model": "llama-3-8b", "num_gpu_blocks_override": 520, "speculative_config": EAGLE},
            0.15,
        ),
    ],
)
def test_belady_beats_lru_in_both_engines(options: dict[str, Any], gain: float) -> None:
    trace = workloads.multi_turn(num_requests=60, request_rate=20, seed=1)
    lru, python, compiled = (
        kvsim.simulate(trace, **BELADY, **options, allocator=allocator, backend=backend)
        for allocator, backend in (
            ("paged", "compiled"),
            ("paged+eviction=belady", "python"),
            ("paged+eviction=belady", "compiled"),
        )
    )
    assert str(python.requests.tolist()) == str(compiled.requests.tolist())  # NaN
    rates = [one.summary["prefix_cache_hit_rate"] for one in (lru, compiled)]
    assert rates[0] + gain < rates[1]


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
@given(data=st.data())
@examples(60)
def test_no_policy_passes_belady(policy, data):
    """Prompts are paths in a random tree, as prefixes are."""
    seed = data.draw(st.integers(0, 10**6))
    rng = random.Random(seed)
    prompts = []
    for _ in range(rng.randint(1, 40)):
        path, node = [], 0
        for _ in range(rng.randint(1, 6)):
            node = node * 3 + rng.choice([1, 1, 2, 3])
            path.append(node)
        prompts.append(path)
    num_blocks = rng.randint(7, 30)
    assert num_hits(prompts, num_blocks, policy) <= num_hits(prompts, num_blocks, "belady")


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
@given(trace=traces())
@examples(15)
def test_every_policy_keeps_the_invariants_of_a_run(policy, trace):
    kvsim.simulate(
        trace,
        model="gpt-oss-20b" if policy != "belady" else "llama-3-8b",
        gpu="h100-sxm",
        allocator=f"paged+block-size=4+eviction={policy}",
        num_gpu_blocks_override=40,
        max_model_len=64,
        max_num_seqs=3,
        check_invariants=True,
    )


@pytest.mark.long
def test_policies_agree_while_nothing_must_go():
    trace = workloads.multi_turn(num_requests=60, request_rate=5, seed=3)
    rates = {
        policy: kvsim.simulate(
            trace, model="llama-3-8b", gpu="h100-sxm", allocator=f"paged+eviction={policy}"
        ).summary["prefix_cache_hit_rate"]
        for policy in POLICIES
    }
    assert len(set(rates.values())) == 1
    assert rates["lru"] > 0.1


def test_belady_needs_to_know_who_gets_what():
    with pytest.raises(ValueError, match="belady"):
        kvsim.simulate(
            workloads.fixed(prompt=10, output=2, num_requests=2, request_rate=1.0),
            model="llama-3-8b",
            gpu="l4",
            allocator="paged+eviction=belady",
            data_parallel_size=2,
        )


#: Shares of the Mooncake conversation trace's 182,790 unique blocks, and numbers of blocks, with
#: the block LRU hit rate measured on it (FAST'25 trace, 512-token blocks).
LRU_CURVE = {1827: 0.052, 9139: 0.195, 18279: 0.278, 45697: 0.353, 91395: 0.363, 400_000: 0.3664}
LRU_CURVE |= {1000: 0.0445, 10_000: 0.2112, 30_000: 0.3257, 50_000: 0.3546, 100_000: 0.3637}


def mooncake_prompts(data) -> list[list[int]]:
    trace = workloads.load(next((data / "traces").glob("mooncake*conv*")))
    return [[piece[0] for piece in trace.segments_of(i)] for i in range(len(trace))]


@pytest.mark.slow
def test_lru_hit_rates_on_the_mooncake_trace(whole_data):
    """Each request alone: its blocks, one more for its last token; the curve is within .001."""
    prompts = mooncake_prompts(whole_data)
    total = sum(map(len, prompts))
    for num_blocks, expected in LRU_CURVE.items():
        rate = rate_of(prompts, num_blocks, "lru", total)
        assert rate == pytest.approx(expected, abs=0.001)


def rate_of(prompts, num_blocks, policy, total):
    kv = manager(num_blocks + 1, policy, 512)
    kv.foresee(request(i, prompt, 512) for i, prompt in enumerate(prompts))
    hits = 0
    for i, prompt in enumerate(prompts):
        one = request(i, prompt, 512)
        hit = kv.lookup(one)
        hits += hit.num_tokens // 512
        assert kv.allocate_slots(one, one.num_tokens - hit.num_tokens, hit)
        kv.free(one)
    return hits / total


@pytest.mark.long
def test_one_point_of_the_mooncake_curve_and_its_bound(sample_data):
    prompts = mooncake_prompts(sample_data)
    total = sum(map(len, prompts))
    rates = {policy: rate_of(prompts, 2000, policy, total) for policy in ("lru", "belady")}
    assert rates["lru"] < rates["belady"]


# -- a policy of one's own that asks for the time ------------------------------------------------


class HitsStay(EvictionPolicy):
    """Blocks that were hit stay for ``ttl`` seconds; else the one freed first goes first."""

    def __init__(self, *, ttl: float = 10.0) -> None:
        self.ttl, self.until, self.order = ttl, {}, []

    def cached(self, block_id, key):
        self.until.pop(block_id, None)

    def hit(self, block_id):
        self.until[block_id] = self.now + self.ttl

    def insert(self, block_id):
        self.order.append(block_id)

    def remove(self, block_id):
        self.order.remove(block_id)

    def evict(self):
        block_id = next(iter(self))
        self.order.remove(block_id)
        return block_id

    def __len__(self):
        return len(self.order)

    def __iter__(self):
        return iter(sorted(self.order, key=lambda b: self.until.get(b, 0.0) > self.now))


@pytest.mark.parametrize(
    ("policy", "third", "hits"),
    [
        ("lru", 3.0, 0),  # the prompt was freed before that of 2 s
        ("test_eviction:HitsStay:ttl=10", 3.0, 8),  # hit at 1 s, it stays until 11 s
        ("test_eviction:HitsStay:ttl=10", 12.0, 0),
        ("test_eviction:HitsStay:ttl=30", 12.0, 8),
    ],
)
def test_a_policy_of_ones_own_has_a_clock(policy, third, hits):
    """Five blocks: a prompt of two, hit again; another of two; a third one needs two of them."""
    contents = [1, 1, 2, 3, 1]
    trace = kvsim.Trace.from_arrays(
        [0.0, 1.0, 2.0, third, third + 1],
        [9] * 5,
        [1] * 5,
        segments=[[(content, 0, 9)] for content in contents],
    )
    result = kvsim.simulate(
        trace,
        model="opt-125m",
        gpu="a100-80gb",
        allocator=f"paged+eviction={policy}",
        block_size=4,
        num_gpu_blocks_override=6,
        max_model_len=16,
        cost_model="constant+seconds=0.1",
        check_invariants=True,
    )
    assert result.requests["num_cached_tokens"].tolist() == [0, 8, 0, 0, hits]


def test_a_policy_with_a_clock_passes_the_check():
    check_eviction(HitsStay, num_runs=5)


def test_a_policy_by_itself_is_at_time_zero():
    assert HitsStay().now == 0.0
