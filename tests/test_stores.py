"""KV that replicas find beyond their own: times in closed form, rounds of a plain LRU, faults."""

from __future__ import annotations

import re
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples, traces

import kvsim
import workloads
from kvsim.engine.setup import resolve
from kvsim.fleet.fabric import fabric_of
from kvsim.fleet.kv_store.lru_store import LruStore
from kvsim.fleet.kv_store.store import make_store
from kvsim.fleet.prefix_index.index import PrefixIndex
from kvsim.fleet.simulate import serve as serve_setup
from kvsim.results.tables import FinishReason
from kvsim.testing import equal_tables
from kvsim.trace import Trace

H100 = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "data_parallel_size": 2}
TOKEN = 131_072  # bytes of KV of Llama-3.1-8B
STORES = ["peer", "mooncake+gib=2"]
PRIVATE = ["lmcache+gib=0.005+server-gib=0.01+chunk=16", "kvbm+gib=0.005+disk-gib=0.01+decay=1"]


def same(times: list[float], prompt: int = 8000) -> Trace:
    """Requests with one prompt, dealt to replicas 0, 1, 0, ..."""
    count = len(times)
    return Trace.from_arrays(
        times, [prompt] * count, [4] * count, segments=[[(1, 0, prompt)]] * count
    )


@pytest.mark.long
@pytest.mark.parametrize("store", STORES)
def test_what_another_replica_has_computed_comes_over_the_link(store: str) -> None:
    """TTFT is the transfer's time and that of a step for the last token."""
    result = kvsim.simulate(same([0.0, 5.0]), **H100, kv_store=store)
    second, link = result.requests[1], fabric_of("400g-ib")
    assert second["replica"] == 1
    assert second["num_cached_tokens"] == 7999
    assert second["transfer_time"] == pytest.approx(link.time(8000 * TOKEN))
    gap = (second["finish_time"] - second["first_token_time"]) / 3
    ttft = second["first_token_time"] - second["arrival_time"]
    assert ttft == pytest.approx(second["transfer_time"] + gap, rel=0.02)
    told = result.summary["kv_store"]
    assert (told["num_found"], told["num_fetches"], told["num_gone"]) == (1, 1, 0)
    assert told["num_tokens"] == 8000
    assert sum(told["bytes"].values()) == 8000 * TOKEN
    assert told["mean_ms"] == pytest.approx(1e3 * second["transfer_time"])


@pytest.mark.long
@pytest.mark.parametrize("store", [*STORES, "lmcache+server-gib=2"])
def test_prefill_replicas_read_what_another_one_has_computed(store: str) -> None:
    """The prompt comes from the store, its last token is computed, and all goes to the decoder."""
    apart = {"num_prefill_workers": 2, "num_decode_workers": 1, "data_parallel_size": 1}
    result = kvsim.simulate(same([0.0, 5.0]), **{**H100, **apart}, kv_store=store)
    alone = kvsim.simulate(same([0.0, 5.0]), **{**H100, **apart})
    told = result.summary["kv_store"]
    assert (told["num_found"], told["num_fetches"], told["num_gone"]) == (1, 1, 0)
    chunked = 7936 if store.startswith("lmcache") else 8000
    assert sum(told["bytes"].values()) == chunked * TOKEN
    second, before = result.requests[1], alone.requests[1]
    assert second["prefill_replica"] == before["prefill_replica"] == 2
    assert second["num_cached_tokens"] == min(chunked, 7999)
    assert before["num_cached_tokens"] == 0
    # The decoder holds the first one's prompt, so all but its last block is there.
    link = fabric_of("400g-ib").time(16 * TOKEN)
    assert second["transfer_time"] == before["transfer_time"] == pytest.approx(link)
    ttft, long = (row["first_token_time"] - row["arrival_time"] for row in (second, before))
    assert 1e-3 * told["mean_ms"] < ttft < 0.3 * long
    assert kvsim.simulate(
        same([0.0, 5.0]), **{**H100, **apart, "num_prefill_workers": 1}, kv_store="peer"
    ).provenance["notes"]


@pytest.mark.long
def test_what_comes_from_disk_comes_at_the_disks_pace() -> None:
    """The memory has no room for a block; the disks have."""
    result = kvsim.simulate(same([0.0, 5.0]), **H100, kv_store="mooncake+gib=0.001+disk-gib=10")
    assert result.summary["kv_store"]["bytes"] == {"disk": 8000 * TOKEN}
    expected = fabric_of("nvme-raid5x").time(8000 * TOKEN)
    assert result.requests["transfer_time"][1] == pytest.approx(expected)


def evicting(store: str, prompts: list[int], tokens: int = 8000) -> kvsim.Result:
    """Serve prompts one after another on one replica whose own cache holds one of them."""
    count = len(prompts)
    trace = Trace.from_arrays(
        [5.0 * k for k in range(count)],
        [tokens] * count,
        [4] * count,
        segments=[[(number, 0, tokens)] for number in prompts],
    )
    options = H100 | {"data_parallel_size": 1, "num_gpu_blocks_override": 502}
    return kvsim.simulate(trace, **options, max_model_len=8032, kv_store=f"{store}+pull=always")


def test_lmcache_keeps_whole_chunks_of_prompts() -> None:
    """31 chunks of 256 tokens come back; the 64 tokens behind them and the output do not."""
    result = evicting("lmcache", [1, 2, 1])
    assert result.requests["num_cached_tokens"].tolist() == [0, 0, 31 * 256]
    assert result.summary["kv_store"]["bytes"] == {"host": 31 * 256 * TOKEN}
    link = fabric_of("lmcache").time(31 * 256 * TOKEN)
    assert result.requests["transfer_time"][2] == pytest.approx(link)
    coarse = evicting("lmcache+chunk=4096", [1, 2, 1])
    assert coarse.requests["num_cached_tokens"][2] == 4096


def test_lmcache_is_each_replicas_own_but_for_the_server() -> None:
    alone = kvsim.simulate(same([0.0, 5.0]), **H100, kv_store="lmcache")
    assert alone.summary["kv_store"]["num_found"] == 0
    shared = kvsim.simulate(same([0.0, 5.0]), **H100, kv_store="lmcache+server-gib=10")
    assert shared.summary["kv_store"]["bytes"] == {"server": 31 * 256 * TOKEN}
    link = fabric_of("400g-ib").time(31 * 256 * TOKEN)
    assert shared.requests["transfer_time"][1] == pytest.approx(link)


def test_lmcache_lets_go_of_the_least_recently_used() -> None:
    """Room for two prompts' chunks; the third drops the first, from its front."""
    room = 62 * 256 * TOKEN / (1 << 30)
    hits = evicting(f"lmcache+gib={room}", [1, 2, 3, 2, 3, 1]).requests["num_cached_tokens"]
    assert hits.tolist() == [0, 0, 0, 31 * 256, 31 * 256, 0]
    disks = f"lmcache+gib={room}+disk-gib=10"
    back = evicting(disks, [1, 2, 3, 1])
    assert back.summary["kv_store"]["bytes"] == {"disk": 31 * 256 * TOKEN}


def test_kvbm_puts_on_disks_what_is_used_twice() -> None:
    """Memory for one prompt; the first is found once, and is on disks from then on."""
    room = 500 * 16 * TOKEN / (1 << 30)
    store = f"kvbm+gib={room}+disk-gib=10"
    once = evicting(store, [1, 2, 1]).summary["kv_store"]
    assert once["num_found"] == 0
    twice = evicting(f"kvbm+gib={2 * room}+disk-gib=10", [1, 2, 1, 3, 4, 1])
    assert twice.requests["num_cached_tokens"].tolist() == [0, 0, 7999, 0, 0, 7999]
    assert twice.summary["kv_store"]["bytes"] == {"host": 8000 * TOKEN, "disk": 8000 * TOKEN}
    times = twice.requests["transfer_time"][[2, 5]]
    assert times[0] == pytest.approx(8000 * TOKEN / 14e9)
    assert times[1] == pytest.approx(8000 * TOKEN * (1 / 14e9 + 1 / 7e9), rel=1e-3)


def test_frequencies_of_kvbm_double_and_decay() -> None:
    store = make_store("kvbm+gib=1+disk-gib=1+decay=10")
    feed = SimpleNamespace(listeners=[], entry_tokens=16)
    store.start(feed, 1 << 20)
    (tell,) = feed.listeners
    tell(0.0, 0, [7, 8])
    assert store.look_up([7, 8, 9], 0, 1.0) == [("host", "host 0", 2)]
    assert store.look_up([7], 1, 1.0) == []
    store.read([7], 0, 1.0)  # two
    store.read([8], 0, 11.0)  # none left of its one: two again
    assert [store._frequency(0, key, 12.0) for key in (7, 8)] == [1, 2]
    assert [store._frequency(0, key, 45.0) for key in (7, 8)] == [0, 0]


@pytest.mark.parametrize(("store", "sharers"), [("peer", 2), ("mooncake", 1)])
def test_replicas_share_the_link_of_whom_they_read(store: str, sharers: int) -> None:
    """Two replicas read a third; the store's memory is many hosts', so nobody shares it."""
    options = {**H100, "data_parallel_size": 3, "kv_store": store}
    rows = kvsim.simulate(same([0.0, 5.0, 5.0]), **options).requests
    expected = sharers * fabric_of("400g-ib").time(8000 * TOKEN)
    assert rows["transfer_time"][1:] == pytest.approx([expected, expected])


def test_a_fetch_that_is_slower_than_computing_is_left_alone() -> None:
    slow = {**H100, "kv_transfer_fabric": "tcp-ucx", "kv_store": "peer"}
    declined = kvsim.simulate(same([0.0, 5.0]), **slow)
    assert declined.summary["kv_store"]["num_declined"] == 1
    plain = kvsim.simulate(same([0.0, 5.0]), **H100)
    assert equal_tables(declined.requests, plain.requests)
    slow["kv_store"] = "peer+pull=always"
    pulled = kvsim.simulate(same([0.0, 5.0]), **slow)
    assert pulled.requests["transfer_time"][1] > 1.9  # 1.05 GB at 0.55 GB/s
    assert pulled.summary["mean_ttft_ms"] > plain.summary["mean_ttft_ms"]


@pytest.mark.long
def test_a_store_that_knows_late_finds_nothing_yet() -> None:
    """The first prompt is computed after 0.2 s; the second one asks 0.3 s after that."""
    for delay, found in ((0.2, 1), (0.4, 0)):
        for store in (f"peer+delay={delay}", f"mooncake+delay={delay}"):
            result = kvsim.simulate(same([0.0, 0.5]), **H100, kv_store=store)
            assert result.summary["kv_store"]["num_found"] == found, store


@pytest.mark.long
def test_what_is_gone_when_there_is_room_is_computed() -> None:
    """Replica 1 is busy until its second request, which would read replica 0.

    That one has meanwhile computed another prompt, for which it gave up the first one.
    """
    prompts = [[(1, 0, 800)], [(2, 0, 800)], [(3, 0, 800)], [(1, 0, 800)]]
    trace = Trace.from_arrays(
        [0.0, 0.0, 0.2, 0.2 + 1e-3], [800] * 4, [2, 400, 40, 2], segments=prompts
    )
    options = {**H100, "num_gpu_blocks_override": 80, "max_model_len": 1256}
    result = kvsim.simulate(
        trace, **options, kv_store="peer+pull=always", check_invariants=True, backend="python"
    )
    told, row = result.summary["kv_store"], result.requests[3]
    assert (told["num_found"], told["num_fetches"], told["num_gone"]) == (1, 0, 1)
    assert row["finish_reason"] == FinishReason.FINISHED
    assert (row["transfer_time"], row["num_cached_tokens"]) == (0, 0)
    assert result.summary["completed"] == 4


def texts(*rows: tuple[float, int, int], outputs: int = 4) -> Trace:
    """Requests of (time, content, tokens), dealt to replicas 0, 1, 0, ..."""
    return Trace.from_arrays(
        [time for time, _, _ in rows],
        [tokens for _, _, tokens in rows],
        [outputs] * len(rows),
        segments=[[(content, 0, tokens)] for _, content, tokens in rows],
    )


@pytest.mark.parametrize("store", STORES)
def test_what_a_replica_holds_itself_is_not_read(store: str) -> None:
    """Replica 1 has the first half of a prompt that replica 0 has as a whole."""
    trace = texts((0.0, 1, 8000), (0.0, 1, 4000), (5.0, 2, 16), (5.0, 1, 8000))
    result = kvsim.simulate(trace, **H100, kv_store=store)
    assert result.requests["replica"][3] == 1
    assert sum(result.summary["kv_store"]["bytes"].values()) == 4000 * TOKEN
    expected = fabric_of("400g-ib").time(4000 * TOKEN)
    assert result.requests["transfer_time"][3] == pytest.approx(expected)


def test_only_what_was_offered_is_read() -> None:
    """Request 3 waits for request 1; when it may read, replica 0 has the whole of its prompt."""
    trace = texts((0.0, 1, 4000), (0.5, 2, 16), (1.5, 1, 8000), (1.51, 1, 8000), outputs=200)
    result = kvsim.simulate(trace, **H100, kv_store="peer+pull=always", max_num_seqs=1)
    assert sum(result.summary["kv_store"]["bytes"].values()) == 4000 * TOKEN
    assert result.requests["num_cached_tokens"][3] == 4000


def test_a_link_in_use_makes_computing_faster() -> None:
    """One prompt takes 87 ms alone and 200 ms to compute; three at once would take 260 ms."""
    trace = texts(
        *((0.0, 1, 8000), (0.0, 11, 16), (0.5, 2, 8000), (0.5, 12, 16), (1.0, 3, 8000)),
        *((5.0, 1, 8000), (5.0, 13, 16), (5.003, 2, 8000), (5.003, 14, 16), (5.006, 3, 8000)),
    )
    options = {**H100, "kv_transfer_fabric": "100g-roce", "kv_store": "peer"}
    result = kvsim.simulate(trace, **options)
    assert result.requests["replica"][5:].tolist() == [1, 0, 1, 0, 1]
    told = result.summary["kv_store"]
    assert (told["num_found"], told["num_fetches"], told["num_declined"]) == (3, 2, 1)


def test_what_lies_in_two_tiers_is_there_when_both_have_come() -> None:
    """The memory has room for 250 of 500 blocks, and has lost those of the prompt's front."""
    room = 250 * 16 * TOKEN / (1 << 30)
    store = f"mooncake+gib={room}+disk-gib=10+mark=1+batch=0"
    result = kvsim.simulate(same([0.0, 5.0]), **H100, kv_store=store)
    assert result.summary["kv_store"]["bytes"] == {"disk": 4000 * TOKEN, "memory": 4000 * TOKEN}
    expected = fabric_of("nvme-raid5x").time(4000 * TOKEN)
    assert result.requests["transfer_time"][1] == pytest.approx(expected)


SLOW = {**H100, "kv_transfer_fabric": "tcp-ucx", "kv_store": "peer+pull=always", "cold_start": 1.0}


@pytest.mark.long
@pytest.mark.parametrize(("time", "begins"), [(4.0, 5.0), (6.0, 6.9)])
def test_a_replica_that_is_lost_is_not_read(time: float, begins: float) -> None:
    """It fails before the request comes, which nobody knows yet, or while it is read.

    That no more comes is noticed when all should have come.
    """
    failure = f"at+time={time}+replica=0+detection=30"
    result = kvsim.simulate(same([0.0, 5.0]), **SLOW, failures=failure, check_invariants=True)
    row, told = result.requests[1], result.summary["kv_store"]
    assert (told["num_found"], told["num_fetches"], told["num_gone"]) == (1, 0, 1)
    assert (row["finish_reason"], row["num_cached_tokens"], row["transfer_time"]) == (0, 0, 0)
    assert row["first_token_time"] == pytest.approx(begins + 0.2, abs=0.02)
    assert (told["mean_ms"], told["num_tokens"]) == (None, 0)


@pytest.mark.long
@pytest.mark.parametrize("detection", [0.5, 3.0])
def test_a_request_whose_replica_is_lost_while_it_reads_begins_anew(detection: float) -> None:
    """It reads from 5 to 6.9; its replica fails at 6, and the other one has its prompt."""
    failure = f"at+time=6+replica=1+detection={detection}"
    result = kvsim.simulate(same([0.0, 5.0]), **SLOW, failures=failure, check_invariants=True)
    row, told = result.requests[1], result.summary["kv_store"]
    assert result.summary["completed"] == 2
    assert row["replica"] == 0
    assert row["first_token_time"] == pytest.approx(6 + detection, abs=0.02)
    assert row["transfer_time"] == 0
    assert told["num_fetches"] == 0


class Feed:
    """What stores ask of replicas' events."""

    def __init__(self, index: PrefixIndex) -> None:
        self.index = index
        self.listeners: list[Any] = []


def test_a_replica_does_not_read_itself() -> None:
    index = PrefixIndex(3)
    index.insert(0, [1, 2, 3])
    index.insert(2, [1, 2])
    store = make_store("peer")
    store.start(Feed(index), 1.0)  # type: ignore[arg-type]
    assert store.look_up([1, 2, 3, 4], 1, 0.0) == [("peer", 0, 3)]
    assert store.look_up([1, 2, 3, 4], 0, 0.0) == [("peer", 2, 2)]
    assert store.look_up([5], 0, 0.0) == []


def test_a_store_keeps_what_was_asked_for_and_takes_in_by_time() -> None:
    feed, store = Feed(PrefixIndex(2)), make_store(f"mooncake+gib={3 / (1 << 30)}+mark=1+batch=0")
    store.start(feed, 1.0)  # type: ignore[arg-type]
    tell = feed.listeners[0]
    tell(2.0, 0, [3])  # the second replica is heard of later, and computed before
    tell(1.0, 1, [1, 2])
    assert store.look_up([1], 0, 1.5) == [("memory", None, 1)]
    assert store.look_up([3], 0, 1.5) == []
    tell(3.0, 0, [4])  # one too many: 2 leaves, since 1 was asked for
    assert store.look_up([2], 0, 3.0) == []
    assert [len(store.look_up([key], 0, 3.0)) for key in (1, 3, 4)] == [1, 1, 1]
    assert store.num_evicted == 1
    feed, store = Feed(PrefixIndex(2)), make_store(f"mooncake+gib={2 / (1 << 30)}+mark=1+batch=0")
    store.start(feed, 1.0)  # type: ignore[arg-type]
    for time, key in ((3.0, 3), (2.0, 2), (1.0, 1)):
        feed.listeners[0](time, 0, [key])
    assert [len(store.look_up([key], 0, 4.0)) for key in (1, 2, 3)] == [0, 1, 1]


def test_a_store_without_room_changes_nothing() -> None:
    trace = workloads.sharegpt(num_requests=60, request_rate=30, seed=2)
    plain = kvsim.simulate(trace, **H100)
    stored = kvsim.simulate(trace, **H100, kv_store="mooncake+gib=0.0001")
    assert equal_tables(plain.requests, stored.requests)
    assert stored.summary["kv_store"]["num_found"] == 0


def test_eviction_takes_what_was_used_longest_ago() -> None:
    store = LruStore(4)
    store.put("abcd")
    store.touch("a")
    store.put("c")  # is there, and used
    store.put("e")
    assert [key in store for key in "abcde"] == [True, False, True, True, True]
    assert (len(store), store.num_evicted) == (4, 1)
    store.put("f")
    assert [key in store for key in "acdef"] == [True, True, False, True, True]
    marked = LruStore(20, mark=0.5, batch=0.25)
    marked.put(range(11))  # more than ten: five leave
    assert [key in marked for key in (4, 5)] == [False, True]
    assert len(marked) == 6


def rounds(order: list[tuple[int, int]], most: int, unit: int = 4) -> list[float]:
    """Return the hits of each visit under a plain LRU over blocks, in the order of the prompt."""
    held: OrderedDict[tuple[int, int], None] = OrderedDict()
    hits = []
    for count, client in order:
        blocks = [(client, place) for place in range(unit * count)]
        found = 0
        while found < len(blocks) and blocks[found] in held:
            found += 1
        hits.append(found)
        for block in blocks:
            held[block] = None
            held.move_to_end(block)
            if len(held) > most:
                held.popitem(last=False)
    return hits


@pytest.mark.parametrize("seed", [1, 2])
def test_rounds_of_chats_hit_what_a_plain_lru_would_hold(seed: int) -> None:
    """Six clients, each turn four blocks longer; the store holds some 90 of up to 144 blocks."""
    rng, size = np.random.default_rng(seed), 16
    order = [(count, int(c)) for count in range(1, 7) for c in rng.permutation(6)]
    trace = Trace.from_arrays(
        [10.0 * place for place in range(len(order))],
        [4 * size * count for count, _ in order],
        [1] * len(order),
        segments=[[(client, 0, 4 * size * count)] for count, client in order],
    )
    room = 90 * size * TOKEN / (1 << 30)
    rows = kvsim.simulate(
        trace,
        model="llama-3.1-8b",
        gpu="h100-sxm",
        kv_store=f"mooncake+gib={room}+mark=1+batch=0+pull=always",
        num_gpu_blocks_override=26,  # of which the longest prompt needs 24
        max_model_len=400,
        max_num_seqs=1,
    ).requests
    expected = [size * found for found in rounds(order, 90)]
    full = rows["num_prompt_tokens"] == expected  # its last token is computed again
    assert (rows["num_cached_tokens"] + full).tolist() == expected
    assert 0 < sum(expected) < rows["num_prompt_tokens"].sum() / 2


@pytest.mark.long
@examples(40)
@given(trace=traces(max_requests=30), data=st.data())
def test_every_request_ends_once_and_both_engines_agree(trace: Trace, data: st.DataObject) -> None:
    draw = data.draw
    names = ["peer", "mooncake+gib=0.02", "mooncake+gib=0.01+disk-gib=1", *PRIVATE]
    store = draw(st.sampled_from(names))
    options: dict[str, Any] = {
        **H100,
        "data_parallel_size": draw(st.integers(1, 4)),
        "kv_store": store + draw(st.sampled_from(["", "+pull=always"])),
        "num_gpu_blocks_override": draw(st.integers(8, 60)),
        "max_model_len": draw(st.sampled_from([60, 200, 500])),
        "max_num_seqs": draw(st.integers(1, 8)),
        "max_num_batched_tokens": draw(st.sampled_from([16, 64, 512])),
        "async_scheduling": draw(st.booleans()),
        "router": draw(st.sampled_from(["round-robin", "least-outstanding", "llm-d", "dynamo"])),
        "kv_transfer_fabric": draw(st.sampled_from(["tcp-ucx", "400g-ib", "nixl-vllm"])),
        "max_concurrency": draw(st.sampled_from([None, 3])),
        "failures": draw(
            st.sampled_from([None, "at+time=0.05+replica=0+detection=0.02", "rate+gpu-hours=0.001"])
        ),
        "cold_start": 0.05,
    }
    trace = trace.with_num_samples(1)
    setup = resolve(kvsim.Config.build(**options, backend="python", check_invariants=True))
    python = serve_setup(setup, trace)
    compiled = kvsim.simulate(trace, **options, backend="compiled")
    assert equal_tables(python.requests, compiled.requests)
    assert equal_tables(python.memory, compiled.memory)
    assert python.summary == compiled.summary
    reasons = set(python.requests["finish_reason"].tolist())
    assert reasons <= {FinishReason.FINISHED, FinishReason.REJECTED}
    told = python.summary["kv_store"]
    assert told["num_fetches"] + told["num_gone"] <= told["num_found"] - told["num_declined"]
    moved = python.requests["transfer_time"] > 0
    assert moved.sum() <= told["num_fetches"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kv_store": "cellar"}, "unknown KV store 'cellar'"),
        ({"kv_store": "peer+gib=3"}, "has no parameter 'gib'"),
        ({"kv_store": "mooncake+gib=much"}, "gib"),
        ({"kv_store": "mooncake+mark=0"}, "mark=0: must be above 0"),
        ({"kv_store": "peer+pull=never"}, "pull=never: must be one of cheaper, always"),
        ({"kv_store": "peer", "enable_prefix_caching": False}, "needs enable_prefix_caching"),
        (
            {"kv_store": "peer", "allocator": "contiguous-max"},
            "cannot transfer KV; vllm with paged can",
        ),
        ({"kv_store": "peer", "scheduler": "vllm-v0"}, "cannot transfer KV; vllm with paged can"),
        ({"kv_store": "peer", "model": "nemotron-h-8b"}, "only the KV of these two is transferred"),
        (
            {"kv_store": "peer", "kv_offloading_size": 4, "kv_offloading_backend": "native"},
            "kv_transfer_config: conflicts with a KV store",
        ),
    ],
)
def test_a_wrong_store_is_refused_in_one_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as error:
        kvsim.simulate(same([0.0]), **{**H100, **options})
    assert "\n" not in str(error.value)


def test_parameters_of_all_stores_come_first() -> None:
    assert make_store("peer").pull == "cheaper"
    assert make_store("mooncake+pull=always+gib=2").pull == "always"
