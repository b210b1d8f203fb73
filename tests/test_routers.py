"""Every router's rule, by hand-made fleets on which another rule would choose otherwise."""

from __future__ import annotations

import math
import statistics
from collections import Counter, deque
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fleets import BLOCK, cache, requests, started, views

from kvsim.fleet.kv_store.store import Portion
from kvsim.fleet.routers.dynamo import softmax_weights
from kvsim.fleet.routers.preble import lay_out_values
from kvsim.fleet.routing.affinity import lead, sticky
from kvsim.fleet.routing.hash_ring import HashRing
from kvsim.fleet.routing.no_hit_lru import NoHitLru
from kvsim.fleet.routing.router import REJECT, make_router
from kvsim.fleet.routing.view import Scraped
from kvsim.fleet.scaling.headroom import Headroom, can_be_shed, latency_scores
from kvsim.records.memory import Objects
from kvsim.records.routing import LastValues, RecentMisses
from kvsim.rules.routing.dynamo import dynamo_decode_cost
from kvsim.rules.routing.llm_d import (
    active_requests,
    among_holders,
    least_is_best,
    load_aware,
    token_load,
)
from kvsim.rules.routing.preble import add_value, balanced, eviction_seconds, share_out

LONG = [(1, 160)]  # ten blocks
(ONE,) = requests(LONG)


# -- load only -------------------------------------------------------------------------------------


def test_random_reaches_everybody() -> None:
    router = started("random")
    counts = Counter(router.choose(ONE, views()) for _ in range(300))
    assert set(counts) == {0, 1, 2}
    assert min(counts.values()) > 70


def test_power_of_two_never_takes_the_worst_of_three_and_takes_the_second() -> None:
    router = started("power-of-two")
    counts = Counter(router.choose(ONE, views([5, 1, 9])) for _ in range(300))
    # Pairs (0, 1) and (1, 2) go to 1, (0, 2) to 0: the busiest is never chosen.
    assert set(counts) == {0, 1}
    assert 60 < counts[0] < 140


def test_vllm_dp_weighs_waiting_four_times_and_counts_what_it_sent() -> None:
    router = started("vllm-dp")
    seen = views(waiting=[1, 0, 0], running=[0, 5, 4])
    assert router.choose(ONE, seen) == 0  # 4 against 5 and 4: the first of equals
    assert router.choose(ONE, seen) == 2  # 8, 5, 4
    assert router.choose(ONE, seen) == 1  # 8, 5, 8
    assert router.choose(ONE, views(waiting=[1, 0, 0], running=[0, 5, 4], as_of=0.1)) == 0
    stale = started("vllm-dp+count-sent=false")
    assert [stale.choose(ONE, seen) for _ in range(3)] == [0, 0, 0]


def test_least_kv_takes_the_emptiest_cache_whatever_the_queues() -> None:
    router = started("least-kv")
    assert router.choose(ONE, views([0, 9, 0], usage=[0.3, 0.1, 0.2])) == 1
    equal = Counter(router.choose(ONE, views(usage=[0.1, 0.1, 0.2])) for _ in range(100))
    assert set(equal) == {0, 1}


def test_aibrix_throughput_takes_who_has_done_least_since_the_last_look() -> None:
    def seen(time: float, *counted: tuple[int, int]) -> list[Any]:
        found = views(running=[9, 0, 0])
        for view, (prompts, outputs) in zip(found, counted, strict=True):
            view.scraped = Scraped(time, 0, 0, 0.0, prompts, outputs)
        return found

    router = started("aibrix-throughput")
    assert router.scrape_interval == 5
    first = seen(5.0, (10, 40), (21, 9), (20, 20))  # 60, 51 and 60 over 5 s
    assert router.choose(ONE, first) == 1
    assert router.choose(ONE, first) == 1  # the same until the next look
    assert router.state.rates == pytest.approx([12.0, 10.2, 12.0])
    # Since then 25, 30 and 30, though the first has done most in all.
    assert router.choose(ONE, seen(10.0, (20, 45), (21, 39), (30, 30))) == 0
    router.on_leave(0)  # another one is at its place
    assert router.choose(ONE, seen(15.0, (0, 0), (22, 39), (31, 30))) == 0
    assert router.state.rates == pytest.approx([0.0, 0.4, 0.4])
    equal = {router.choose(ONE, seen(20.0, (0, 0), (22, 39), (31, 30))) for _ in range(50)}
    assert equal == {0, 1, 2}


# -- consistent hashing ----------------------------------------------------------------------------


def test_a_ring_moves_only_what_its_new_member_takes() -> None:
    three, four = HashRing(3, 160), HashRing(4, 160)
    moved = [key for key in range(1000) if three.owner(key) != four.owner(key)]
    assert all(four.owner(key) == 3 for key in moved)
    assert 150 < len(moved) < 350
    assert sorted(three.walk(7)) == [0, 1, 2]


def test_session_keeps_conversations_and_deals_others_to_who_got_fewest() -> None:
    found = requests(*[LONG] * 8, sessions=[5, 5, 7, 7, -1, -1, -1, -1], gap=10.0)
    router = started("session+window=30")
    chosen = [router.choose(request, views()) for request in found]
    assert chosen[0] == chosen[1]
    assert chosen[2] == chosen[3]
    ring = HashRing(3, 160)
    assert chosen[0] == ring.owner(5)
    # At 40 s the window of 30 s holds what was sent at 20 and 30, but not at 10.
    fewest = Counter({0: 0, 1: 0, 2: 0})
    fewest.update(chosen[2:4])
    assert chosen[4] == min(range(3), key=lambda i: (fewest[i], i))
    assert len({*chosen[5:8]}) == 3 or chosen[2] not in chosen[4:6]


def test_chwbl_passes_by_who_is_above_the_bound() -> None:
    router = started("chwbl+epsilon=0.25")
    owner, second, third = HashRing(3, 160).walk(ONE.prefix_keys(BLOCK)[3])
    loads = [0, 0, 0]
    assert router.choose(ONE, views(loads)) == owner
    assert router.branch == "owner"
    loads[owner], loads[second], loads[third] = 4, 3, 1  # mean 8/3, bound ceil(3.33) = 4
    assert router.choose(ONE, views(loads)) == owner
    loads[owner] = 5  # mean 3, bound ceil(3.75) = 4
    assert router.choose(ONE, views(loads)) == second
    assert router.branch == "spilled"
    loads[second], loads[owner] = 5, 6  # mean 4, bound 5
    assert router.choose(ONE, views(loads)) == second


def test_chwbl_bound_of_a_whole_number_is_that_number() -> None:
    """1.1 times 100 in flight on ten is 11, though not in binary."""
    router = started("chwbl+epsilon=0.1", 10)
    owner = router.choose(ONE, views([0] * 10))
    loads = [(100 - 12) // 9 + (k < (100 - 12) % 9) for k in range(9)]
    loads.insert(owner, 12)
    assert sum(loads) == 100
    assert router.choose(ONE, views(loads)) != owner
    assert router.branch == "spilled"


def test_chwbl_sends_one_prefix_to_one_place() -> None:
    first, same, other = requests([(1, 64), (2, 300)], [(1, 64), (3, 9)], [(4, 64), (2, 300)])
    router = started("chwbl", 50)
    chosen = [router.choose(r, views([0] * 50)) for r in (first, same, other)]
    assert chosen[0] == chosen[1] != chosen[2]


# -- llm-d -----------------------------------------------------------------------------------------


def test_scores_of_llm_d() -> None:
    assert [least_is_best(n, 2, 6) for n in (2, 6, 4)] == [1.0, 0.0, 0.5]
    assert least_is_best(3, 3, 3) == 1.0
    assert [active_requests(n, 8) for n in (0, 2, 8)] == [1.0, 0.75, 0.0]
    assert [token_load(n) for n in (0, 2_097_152, 9_000_000)] == [1.0, 0.5, 0.0]
    assert [load_aware(n) for n in (0, 64, 500)] == [0.5, 0.25, 0.0]


def test_no_hit_lru_takes_the_unused_first_then_the_oldest() -> None:
    lru, all_three = NoHitLru(), [0, 1, 2]
    assert lru.score([0, 0, 0], all_three) == [1.0, 0.5, 0.0]
    lru.sent(0, [0, 0, 0])
    assert lru.score([0, 0, 0], all_three) == [0.0, 1.0, 0.5]
    lru.sent(1, [0, 1, 0])  # warm: not counted
    lru.sent(2, [0, 0, 0])
    assert lru.score([0, 0, 0], all_three) == [0.5, 1.0, 0.0]  # 1 unused, then 0, then 2
    assert lru.score([0, 4, 0], all_three) == [0.5, 0.5, 0.5]
    assert lru.score([0, 0, 0], [0, 2]) == [1.0, 0.0]  # of those that may be chosen
    lru.forget(2)  # another one is at its place
    assert lru.score([0, 0, 0], all_three) == [0.0, 1.0, 0.5]


def test_llm_d_adds_weighted_scores() -> None:
    seen = views(waiting=[4, 0, 2], usage=[0.5, 0.9, 0.1])
    router = started("llm-d+index=precise")
    cache(router, ONE, [10, 0, 5])
    # 3 * (1, 0, .5) + 2 * (0, 1, .5) + 2 * (.5, .1, .9)
    totals = router._scores(ONE, seen, [160, 0, 80])
    assert totals == pytest.approx([4.0, 2.2, 4.3])
    assert router.choose(ONE, seen) == 2
    assert router.predicted_tokens == 80
    prefix = started("llm-d+index=precise+queue=0+kv=0")
    cache(prefix, ONE, [10, 0, 5])
    assert prefix.choose(ONE, seen) == 0
    assert started("llm-d")._scores(ONE, seen, [0, 0, 0]) == pytest.approx([0.5, 1.1, 1.4])


def test_llm_d_approximate_index_remembers_what_was_sent_in_entries_of_64() -> None:
    router = started("llm-d+queue=0+kv=0")
    first = router.choose(ONE, views())
    assert router.predicted_tokens == 0
    assert router.choose(ONE, views()) == first
    assert router.predicted_tokens == 128  # two whole entries of 160 tokens
    small = started("llm-d+queue=0+kv=0+lru-entries=1")
    small.choose(ONE, views())
    small.choose(ONE, views())
    assert small.predicted_tokens == 64


def test_llm_d_looks_at_no_more_than_so_many_blocks_of_a_prompt() -> None:
    router = started("llm-d+queue=0+kv=0+block-size=16+max-blocks=3")
    first = router.choose(ONE, views())
    other = requests([(1, 48), (2, 112)])[0]  # as ONE's first three blocks
    assert router.choose(other, views()) == first
    assert router.predicted_tokens == 48
    assert router.prefixes.block_rates(other, [48, 0, 32]) == pytest.approx([1, 0, 2 / 3])


def test_token_aware_takes_who_holds_all_that_it_looks_at_for_warm() -> None:
    other = requests([(1, 48), (2, 112)])[0]  # as ONE's first three blocks
    router = started("llm-d-token-aware+index=approximate+block-size=16+max-blocks=3")
    first = router.choose(ONE, views())
    assert router.choose(other, views()) == first
    assert (router.branch, router.predicted_tokens) == ("sticky", 48)
    router = started("llm-d-token-aware+index=approximate+block-size=16")
    router.choose(ONE, views())
    router.choose(other, views())
    assert router.branch == "all"


def test_llm_d_may_score_prefixes_among_those_who_hold_any() -> None:
    scores = [among_holders(n, 93, 112) for n in (93, 0, 112, 103)]
    assert scores == pytest.approx([0, 0, 1, 10 / 19])
    assert [among_holders(n, 93, 93) for n in (0, 93)] == [0.0, 1.0]
    assert among_holders(0, 0, 0) == 0.0
    router = started("llm-d+index=precise+queue=0+kv=0+prefix-scale=holders")
    assert router._scores(ONE, views(), [160, 80, 0]) == [3.0, 0.0, 0.0]
    assert router._scores(ONE, views(), [0, 80, 0]) == [0.0, 3.0, 0.0]


@pytest.mark.long
def test_pickers_of_llm_d() -> None:
    totals = [3.0, 1.0, 0.0]
    chosen = {
        picker: Counter(started(f"llm-d+picker={picker}", seed=k)._pick(totals) for k in range(400))
        for picker in ("max-score", "weighted-random", "random")
    }
    assert set(chosen["max-score"]) == {0}
    assert set(chosen["weighted-random"]) == {0, 1}
    assert 0.68 < chosen["weighted-random"][0] / 400 < 0.82  # 3 of 4
    assert min(chosen["random"].values()) > 100
    assert set(Counter(started("llm-d", seed=k)._pick([1, 1, 0]) for k in range(50))) == {0, 1}


def test_the_affinity_filter_keeps_the_warm_until_they_are_too_slow() -> None:
    assert sticky([0.9, 0.1, 0.8], 0.8) == [0, 2]
    assert sticky([0.7, 0.1], 0.8) == [0, 1]
    assert lead([300, 10, 250], [0, 2]) == 240
    assert lead([300, 250], [0, 1]) == -math.inf
    router = started("llm-d+index=precise+prefix=0+queue=1+kv=0+affinity=0.8+explore=0")
    cache(router, ONE, [10, 0, 0])
    assert router.choose(ONE, views(waiting=[9, 0, 0])) == 0  # sticky, however long the queue
    assert router.branch == "sticky"
    # 5 s at 1000 tokens/s; the warm one saves 160 tokens.
    assert router.choose(ONE, views(waiting=[9, 0, 1], uncached=[5160, 0, 0])) == 0
    assert router.choose(ONE, views(waiting=[9, 0, 1], uncached=[5161, 0, 0])) == 1
    assert router.branch == "released"
    exploring = started("llm-d+index=precise+affinity=0.8+explore=1")
    cache(exploring, ONE, [10, 0, 0])
    exploring.choose(ONE, views())
    assert exploring.branch == "explored"


EVEN = (0.5, 0.5)


def scored(headrooms: list[tuple[float, float]], most: bool = False, **more: Any) -> list[float]:
    in_flight = more.pop("in_flight", [1] * len(headrooms))
    weights = more.pop("weights", EVEN)
    return latency_scores([Headroom(*one) for one in headrooms], in_flight, weights, most=most)


def test_latency_scores_of_who_meets_the_targets() -> None:
    """A hundredth step is added, and 1 is the most: the farthest still has a chance."""
    three = [(1.0, 0.4), (3.0, 0.2), (2.0, 0.3)]  # places 0, 1, 0.5 and 1, 0, 0.5
    assert scored(three) == [0.51, 0.51, 0.51]
    assert scored(three, weights=(0.75, 0.25)) == [0.76, 0.26, 0.51]
    assert scored(three, most=True, weights=(0.75, 0.25)) == [0.26, 0.76, 0.51]
    assert scored([(1.0, 0.1), (2.0, 0.1)], weights=(0.5, 0.5)) == [1.0, 0.01]  # TPOT is alike
    assert scored([(1.0, 0.1), (1.0, 0.2)], weights=(1.0, 0.0)) == [1.0, 0.01]
    assert scored([(1.0, 0.1), (1.0, 0.1)]) == [0.51, 0.51]
    assert scored([(-1.0, 0.1), (4.0, 0.2), (5.0, 0.2)]) == [0.0, 1.0, 0.01]  # who misses is out
    assert scored([(0.0, 0.0), (-1.0, 1.0)]) == [0.51, 0.0]


def test_latency_scores_where_nobody_meets_the_targets() -> None:
    """Idle ones first, then who misses TPOT alone, then TTFT alone; the nearest is best."""
    late = [(1.0, -0.3), (-2.0, 0.1), (-1.0, -0.1), (-4.0, -0.9), (2.0, -0.2)]
    assert scored(late, in_flight=[3, 3, 0, 0, 3]) == [0.0, 0.0, 1.0, 0.01, 0.0]
    assert scored(late, weights=(0, 1)) == [0.01, 0.0, 0.0, 0.0, 1.0]
    assert scored(late, most=True, weights=(0, 1)) == [0.01, 0.0, 0.0, 0.0, 1.0]
    assert scored(late[1:4]) == [0.51, 0.0, 0.0]
    assert scored(late[2:4]) == [1.0, 0.01]
    assert scored([(-1.0, -1.0), (-1.5, -1.0), (-2.0, -1.0)]) == [1.0, 0.51, 0.01]  # no targets


LATE = "llm-d+index=precise+prefix=0+queue=0+kv=0+latency=1"


def test_llm_d_predicts_latencies_behind_what_is_in_flight() -> None:
    """At 1,000 tokens/s; a step of n requests of t tokens takes 0.01 n + t / 100,000 s.

    One and a half of them are before a first token, where anybody is there.
    """
    router = started(LATE)
    cache(router, ONE, [0, 5, 0])
    seen = views([3, 1, 0], uncached=[40, 500, 90])
    seen[0].local.num_prompt_tokens = 240
    found = router._headrooms(ONE, seen, [0, 80, 0])
    assert [one.ttft for one in found] == pytest.approx([-0.2615, -0.6112, -0.25])
    assert [one.tpot for one in found] == pytest.approx([-0.041, -0.0208, -0.0116])
    assert router.choose(ONE, seen) == 2  # alone idle
    # First tokens at places 0.03, 1, 0, steps at 1, 0.31, 0: 0.8 and 0.2 of them.
    seen[2].outstanding = 1
    assert router._scores(ONE, seen, [0, 80, 0]) == [0.78, 0.14, 1.0]
    decode, prefill = (started(LATE, **{f"{side}_only": True}) for side in ("decodes", "prefills"))
    assert {one.ttft for one in decode._headrooms(ONE, seen, [0, 80, 0])} == {0.0}
    assert {one.tpot for one in prefill._headrooms(ONE, seen, [0, 80, 0])} == {0.0}


def test_llm_d_keeps_to_who_meets_its_targets() -> None:
    seen = views([1, 1, 1], uncached=[40, 500, 900], running=[1, 1, 1], usage=[0.5, 0.5, 0.5])
    router = started(LATE + "+ttft-slo=0.7+tpot-slo=1+explore-late=0")
    assert router.choose(ONE, seen) == 1  # 0.66 s: the nearest below
    assert router.branch == "on time"
    most = started(LATE + "+ttft-slo=0.7+tpot-slo=1+explore-late=0+headroom=most")
    assert most.choose(ONE, seen) == 0
    late = started(LATE + "+ttft-slo=0.7+tpot-slo=1+explore-late=1")
    assert late.choose(ONE, seen) == 2
    assert late.branch == "late"
    nobody = started(LATE + "+ttft-slo=0.1+tpot-slo=1+explore-late=0")
    assert nobody.choose(ONE, seen) == 0
    assert nobody.branch == "late"
    alone = started(LATE + "+tpot-slo=0.05+explore-late=0")  # TTFT does not count
    steps = views([5, 1, 2], uncached=[0, 500, 900])
    assert alone.choose(ONE, steps) == 2  # 0.03 s, and 0.06 at the first
    assert alone.branch == "on time"
    first = started(LATE + "+ttft-slo=0.7+explore-late=0")
    assert first.choose(ONE, seen) == 1


def test_llm_d_sheds_what_nobody_can_serve_in_time() -> None:
    (shed,) = requests(LONG, priorities=[1])
    router = started(LATE + "+ttft-slo=0.1")
    busy: dict[str, Any] = {"running": [1, 1, 1], "usage": [0.5, 0.5, 0.5]}
    assert router.choose(shed, views([1, 1, 1], **busy)) == REJECT
    assert (router.branch, router.predicted_tokens) == ("turned away", None)
    assert router.choose(ONE, views([1, 1, 1], **busy)) >= 0  # not at priority 0
    assert router.choose(shed, views([1, 1, 1], **busy | {"running": [1, 0, 1]})) >= 0
    assert router.choose(shed, views([1, 1, 1], **busy | {"usage": [0.5, 0.5, 0.019]})) >= 0
    met = [Headroom(-1, 1), Headroom(0, 0), Headroom(-1, 1)]
    assert not can_be_shed(met, views([1, 1, 1], **busy))
    assert started(LATE).choose(shed, views([1, 1, 1], **busy)) >= 0  # no target


@pytest.mark.parametrize(
    ("router", "said"),
    [
        ("llm-d+index=precise+block-size=16", "block-size=16: is not read with index=precise"),
        ("llm-d+index=precise+max-blocks=9", "max-blocks=9: is not read with index=precise"),
        ("llm-d-token-aware+lru-entries=9", "lru-entries=9: is not read with index=precise"),
        ("llm-d+event-delay=1", "event-delay=1.0: is not read with index=approximate"),
        ("llm-d+explore=0.5", "explore=0.5: is not read without affinity"),
        ("llm-d+max-ttft-penalty=2", "max-ttft-penalty=2.0: is not read without affinity"),
        ("llm-d+ttft-slo=2", "ttft-slo=2.0: is not read without latency"),
        ("llm-d+tpot-weight=1", "tpot-weight=1.0: is not read without latency"),
        ("llm-d+latency=1+headroom=most", "headroom=most: is not read without ttft-slo or tpot"),
        ("llm-d+latency=1+explore-late=0", "explore-late=0.0: is not read without ttft-slo or tp"),
        ("dynamo+ttl=5", "ttl=5.0: is not read with events=true"),
        ("dynamo+events=false+event-delay=0", "event-delay=0.0: is not read with events=false"),
        ("production-stack+threshold=5", "threshold=5: is not read with policy=prefixaware"),
        ("production-stack+beta=0", "beta=0.0: is not read with policy=prefixaware"),
        ("production-stack+event-delay=1", "event-delay=1.0: is not read with policy=prefixaware"),
        ("production-stack+policy=kvaware+chunk-tokens=8", "chunk-tokens=8: is not read with"),
        ("production-stack+policy=loadaware+relief=8", "relief=8: is not read with"),
    ],
)
def test_what_a_router_would_not_read_is_refused(router: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"^router: {said}"):
        make_router(router)


def test_token_aware_spills_at_tau() -> None:
    assert (
        started("llm-d-token-aware+rate=20480").state.most_ahead == 286_720
    )  # Qwen3-32B TP2 on H100
    assert started("llm-d-token-aware").state.most_ahead == 14_000  # of the fleet's own rate
    router = started("llm-d-token-aware+max-wait=1")
    cache(router, ONE, [8, 0, 9])
    assert router.choose(ONE, views(uncached=[40, 0, 80])) == 0  # 40 + 32 against 80 + 16
    assert router.branch == "sticky"
    assert router.choose(ONE, views(uncached=[40, 0, 20])) == 2
    assert router.choose(ONE, views(uncached=[999, 0, 1200])) == 0
    assert router.choose(ONE, views(uncached=[1000, 0, 1200])) == 1
    assert router.branch == "spilled"


def test_kv_aware_takes_the_fewest_tokens_to_prefill_by_the_requests_there() -> None:
    """Of the prompt's 160 tokens 80 are cached at the second replica, as vllm-router chose."""
    router = started("vllm-kv-aware")
    cache(router, ONE, [0, 5, 0])
    assert router.choose(ONE, views()) == 1
    assert router.choose(ONE, views(outstanding=[0, 1, 0])) == 0  # 80 * 2 is not less than 160
    assert router.choose(ONE, views(outstanding=[1, 2, 1])) == 1  # 80 * 3 against 160 * 2
    assert router.choose(ONE, views(uncached=[0, 79, 0])) == 1
    assert router.choose(ONE, views(uncached=[0, 81, 0])) == 0


# -- Dynamo ----------------------------------------------------------------------------------------


def test_dynamo_example_costs_18_10_11() -> None:
    """Cached 2, 5, 8 of 10 blocks; 10, 5, 9 blocks decoding: 8 + 10, 5 + 5, 2 + 9."""
    router = started("dynamo")
    cache(router, ONE, [2, 5, 8])
    router._num_blocks[:] = [10, 5, 9]
    costs: list[float] = []
    router._pick = lambda found: costs.extend(found) or 1
    router.choose(ONE, views())
    assert costs == [18.0, 10.0, 11.0]


def test_dynamo_credits_what_lies_in_host_memory_and_on_disks() -> None:
    """The first has four blocks more on the host and three on disk; the second's are cached, too.

    The third's store is shared, and nobody's own: no credit.
    """
    tiers = [
        [Portion("host", "a", 6), Portion("disk", "b", 3)],
        [Portion("host", "c", 5)],
        [Portion("memory", None, 10)],
    ]
    router = started("dynamo", own_tiers=lambda request: tiers)
    cache(router, ONE, [2, 5, 8])
    router._num_blocks[:] = [10, 5, 9]
    costs: list[float] = []
    router._pick = lambda found: costs.extend(found) or 1
    router.choose(ONE, views())
    assert costs == [18.0 - 0.75 * 4 - 0.25 * 3, 10.0, 11.0]
    plain = started("dynamo+host-credit=0+disk-credit=1", own_tiers=lambda request: tiers)
    cache(plain, ONE, [2, 5, 8])
    plain._num_blocks[:] = [10, 5, 9]
    plain._pick = router._pick
    costs.clear()
    plain.choose(ONE, views())
    assert costs == [18.0 - 3, 10.0, 11.0]


def test_dynamo_chooses_the_second_of_the_example() -> None:
    router = started("dynamo")
    cache(router, ONE, [2, 5, 8])
    router._num_blocks[:] = [10, 5, 9]
    assert router.choose(ONE, views()) == 1
    assert router.predicted_tokens == 80


def test_dynamo_without_credit_balances_loads() -> None:
    blind, sighted = started("dynamo+credit=0"), started("dynamo")
    for router in (blind, sighted):
        cache(router, ONE, [10, 0, 0])
        router._num_prefilling[:] = [64, 48, 96]
    assert sighted.choose(ONE, views()) == 0
    assert blind.choose(ONE, views()) == 1


def test_dynamo_counts_shared_blocks_once_and_until_the_end() -> None:
    first, second = requests([(1, 160)], [(1, 96), (2, 70)])
    router = started("dynamo", 1)
    router.choose(first, views([0]))
    assert router._num_blocks[0] == 10
    router.choose(second, views([1]))
    assert router._num_blocks[0] == 10 + 4 + 1  # six shared, four more, the end of the prompt
    router.on_finish(0, 0, 1.0, 4)
    assert router._num_blocks[0] == 11
    router.on_finish(1, 0, 1.0, 4)
    assert router._num_blocks[0] == 0


def test_dynamo_counts_a_prompt_as_prefill_up_to_its_first_token() -> None:
    first, second = requests([(1, 160)], [(1, 96), (2, 70)])
    router = started("dynamo", 1)
    cache(router, first, [4])
    router.choose(first, views([0]))
    assert router._num_prefilling[0] == 160 - 64
    router.choose(second, views([1]))
    assert router._num_prefilling[0] == 96 + 166 - 64
    router.on_first_token(0, 0, 1.0)
    assert router._num_prefilling[0] == 102
    router.on_leave(0)
    assert router._num_prefilling[0] == router._num_blocks[0] == 0


def test_dynamo_does_not_count_prefill_where_it_only_decodes() -> None:
    """The cost is ``max(0, decode - credit)``: 36, and 35 where most is ahead."""
    router = started("dynamo", 2)
    router.facts = replace(router.facts, decodes_only=True)
    router._num_prefilling[:], router._num_blocks[:] = [96, 3200], [36, 35]
    assert router.choose(ONE, views([0, 0])) == 1
    router._num_blocks[:] = [36, 35]
    cache(router, ONE, [3, 0])  # 33 against 35
    assert router.choose(ONE, views([0, 0])) == 0
    costs = dynamo_decode_cost(np.array([2.0, 9.0]), 3, np.array([64, 64]), 16, 1.0, 0.5)
    assert costs.tolist() == [1.5, 6.5]


def test_dynamo_active_weight_decay_and_temperature() -> None:
    even = views([3, 0, 0])
    assert started("dynamo+active-weight=1").choose(ONE, even) in (1, 2)
    # What is cached counts half where one prompt's worth of tokens is ahead.
    decayed, plain = started("dynamo+decay=1"), started("dynamo")
    for router in (decayed, plain):
        cache(router, ONE, [9, 0, 0])
        router._num_prefilling[:] = [128, 0, 32]
    assert plain.choose(ONE, views()) == 0
    assert decayed.choose(ONE, views()) == 1
    assert softmax_weights([5.0, 5.0], 1.0) == [0.5, 0.5]
    warm = softmax_weights([0.0, 1.0, 2.0], 0.5)
    assert warm[0] / warm[1] == pytest.approx(2.718281828)  # exp(0.5 / 0.5)
    drawn = Counter(started("dynamo+temperature=1", seed=k).choose(ONE, even) for k in range(60))
    assert len(drawn) == 3


def test_dynamo_without_events_forgets_after_its_ttl() -> None:
    early, soon, late = requests(LONG, LONG, LONG, gap=100.0)
    router = started("dynamo+events=false")
    place = router.choose(early, views())
    router.on_first_token(0, place, 0.5)
    router.on_finish(0, place, 1.0, 4)
    router.choose(soon, views())
    assert router.predicted_tokens == 160
    stale = started("dynamo+events=false+ttl=99")
    stale.on_finish(0, stale.choose(early, views()), 1.0, 4)
    stale.choose(late, views())
    assert stale.predicted_tokens == 0


# -- trees of text ---------------------------------------------------------------------------------


def test_sglang_needs_both_gates_to_balance() -> None:
    router = started("sglang-cache-aware", 2)
    router.prefixes.sent(ONE, 0)
    assert router.choose(ONE, views([64, 0])) == 0  # 64 apart is not above 64
    assert router.branch == "matched"
    assert router.choose(ONE, views([200, 135])) == 0  # 65 apart, but less than 1.5 times
    assert router.choose(ONE, views([65, 0])) == 1
    assert router.branch == "balanced"
    assert router.prefixes.cached_tokens(ONE) == [160, 160]  # it is inserted there, too


def test_sglang_takes_the_smallest_tree_below_its_threshold() -> None:
    first, little, much = requests([(1, 160)], [(1, 48), (2, 112)], [(1, 64), (3, 96)])
    router = started("sglang-cache-aware", 2)
    assert router.choose(first, views([0, 0])) == 0
    assert router.choose(little, views([0, 0])) == 1  # 48 of 160 is not above 0.3
    assert router.branch == "smallest tree"
    assert router.choose(much, views([0, 0])) == 0
    assert router.branch == "matched"


def test_sglang_lets_one_replica_starve_where_everything_shares_a_prefix() -> None:
    """The known failure: few in flight never open the gate (sglang issue 21199)."""
    router, loads = started("sglang-cache-aware", 2), [0, 0]
    for request in requests(*[[(1, 144), (k + 2, 16)] for k in range(64)]):
        loads[router.choose(request, views(loads))] += 1
    assert loads == [64, 0]


def test_trees_are_cut_down_now_and_then() -> None:
    early, before, after = requests(LONG, LONG, [(1, 160), (9, 16)], gap=70.0)
    router = started("sglang-cache-aware+max-tree-size=256", 1)
    router.choose(early, views([0]))
    router.choose(before, views([0]))  # at 70 s, 640 characters are still there
    assert router.predicted_tokens == 160
    router.choose(after, views([0]))  # at 140 s the leaves are gone: 256 characters, 64 tokens
    assert router.predicted_tokens == 64
    ray = started("ray-prefix-aware+eviction-threshold=600+eviction-target=320", 1)
    for request in (early, before):
        ray.choose(request, views([0]))
    assert ray.predicted_tokens == 80


def test_ray_takes_the_best_match_or_the_smallest_tree_and_there_the_shortest_queue() -> None:
    first, little, much, other = requests(
        [(1, 160)], [(1, 16), (2, 160)], [(1, 16), (2, 96)], [(7, 160)]
    )
    router = started("ray-prefix-aware")
    assert router.choose(first, views([3, 2, 4])) == 1  # all trees are empty
    assert router.choose(little, views([5, 2, 4])) == 2  # 16 of 176 is below 0.1
    assert router.branch == "smallest tree"
    assert router.choose(much, views([0, 0, 9])) == 2  # 112 of it are there
    assert router.branch == "matched"
    assert router.choose(other, views([9, 0, 0])) == 0


def test_ray_balances_only_above_its_threshold() -> None:
    never = started("ray-prefix-aware", 2)
    never.prefixes.sent(ONE, 0)
    assert never.choose(ONE, views([10**6, 0])) == 0
    gated = started("ray-prefix-aware+imbalanced-threshold=10", 2)
    gated.prefixes.sent(ONE, 0)
    assert gated.choose(ONE, views([10, 0])) == 0
    assert gated.choose(ONE, views([11, 0])) == 1
    assert gated.branch == "balanced"


# -- production-stack and AIBrix -------------------------------------------------------------------


def test_production_stack_draws_among_the_longest_matches() -> None:
    chosen = set()
    for seed in range(20):
        router = started("production-stack", seed=seed)
        for replica in (0, 2):
            router.prefixes.index.insert(replica, ONE.prefix_keys(32))
        chosen.add(router.choose(ONE, views([99, 0, 99])))
        assert router.predicted_tokens == 160
    assert chosen == {0, 2}


def test_production_stack_relieves_the_fullest_first() -> None:
    router = started("production-stack+policy=kvaware+relief=4")
    cache(router, ONE, [10, 0, 0])
    assert router.choose(ONE, views([3, 1, 0])) == 0
    assert router.branch == "matched"
    assert router.choose(ONE, views([4, 1, 0])) == 2
    assert (router.branch, router.predicted_tokens) == ("relieved", 0)
    never = started("production-stack+policy=kvaware")
    cache(never, ONE, [10, 0, 0])
    assert never.choose(ONE, views([400, 1, 0])) == 0


def test_production_stack_kvaware_falls_back_where_too_much_is_missing() -> None:
    (long,) = requests([(1, 4000)], sessions=[5])
    router = started("production-stack+policy=kvaware")
    cache(router, long, [0, 125, 0])  # 2000 of 4000 tokens
    assert router.choose(long, views()) == 1
    assert router.branch == "matched"
    router = started("production-stack+policy=kvaware")
    cache(router, long, [0, 124, 0])
    assert router.choose(long, views()) == HashRing(3, 160).owner(5)
    assert router.branch == "session"
    (nobody,) = requests([(1, 4000)])
    router.choose(nobody, views())
    assert router.branch == "request rate"


def test_production_stack_loadaware_trades_match_for_load() -> None:
    router = started("production-stack+policy=loadaware")
    cache(router, ONE, [10, 0, 0])
    # mean 4: 1 - (6 - 4)/4 = .5 against 0 - (3 - 4)/4 = .25; then 1 - 1 = 0 against .5
    assert router.choose(ONE, views([6, 3, 3])) == 0
    assert router.choose(ONE, views([8, 2, 2])) == 1
    idle = started("production-stack+policy=loadaware+beta=0.9")
    cache(idle, ONE, [10, 0, 0])
    assert idle.choose(ONE, views([1, 0, 0])) == 0  # loads below one count as they are


def test_aibrix_takes_the_longest_match_within_a_standard_deviation() -> None:
    router = started("aibrix-prefix-cache")
    keys = ONE.prefix_keys(32)
    router.prefixes.index.insert(0, keys)
    router.prefixes.index.insert(1, keys[:3])
    assert router.choose(ONE, views([4, 4, 1])) == 0  # mean 3, sigma 1.41
    router = started("aibrix-prefix-cache")
    router.prefixes.index.insert(0, keys)
    router.prefixes.index.insert(1, keys[:3])
    assert router.choose(ONE, views([8, 3, 1])) == 1  # mean 4, sigma 2.94: 8 is above
    assert router.predicted_tokens == 96
    wider = started("aibrix-prefix-cache+k=2")
    wider.prefixes.index.insert(0, keys)
    assert wider.choose(ONE, views([8, 3, 1])) == 0


def test_aibrix_gate_is_8_as_in_its_code() -> None:
    router = started("aibrix-prefix-cache+k=9", 2)
    router.prefixes.index.insert(0, ONE.prefix_keys(32))
    assert router.choose(ONE, views([8, 0])) == 0
    assert router.choose(ONE, views([9, 0])) == 1
    assert router.branch == "balanced"


# -- Preble and Mooncake ---------------------------------------------------------------------------


def test_preble_exploits_where_less_is_missing_than_cached() -> None:
    first, half, more = requests([(1, 1280)], [(1, 640), (2, 640)], [(1, 704), (3, 576)])
    router = started("preble", 2)
    assert router.choose(first, views([0, 0])) == 0
    assert router.branch == "explore"
    # As much is missing as cached: explore, and replica 0 has the first prompt's misses to bear.
    assert router.choose(half, views([1, 0])) == 1
    assert router.branch == "explore"
    assert router.choose(more, views([1, 1])) == 0
    assert router.branch == "exploit"


def seconds(misses: RecentMisses) -> list[float]:
    share_out(misses)
    return list(misses.seconds)


def test_preble_load_is_misses_shared_among_holders_within_its_window() -> None:
    first, later = requests([(1, 640)], [(9, 64)], gap=200.0)
    router = started("preble", 2)
    router.choose(first, views([0, 0]))
    assert seconds(router.state.misses) == [0.64, 0.0]
    router.prefixes.index.insert(1, first.prefix_keys(64))
    router._count(first.prefix_keys(64), 10, 1)
    assert seconds(router.state.misses) == [0.32, 0.32]
    router.choose(later, views([0, 0]))  # 200 s later nothing of it is in the window
    assert sum(seconds(router.state.misses)) == pytest.approx(0.064)


def test_preble_loads_are_sums_over_sets_of_holders_in_one_order() -> None:
    draw, number = np.random.default_rng(3), 35  # a mask has two words
    router, sent = started("preble", number), deque[tuple[list[int], int]]()
    index, misses = router.prefixes.index, router.state.misses
    uses: dict[int, list[int]] = {}  # by entry: uses, misses, holders
    most = 0

    def count(keys: list[int], num_cached: int, change: int) -> None:
        router._count(keys, num_cached, change)
        for place, key in enumerate(keys):
            one = uses.setdefault(key, [0, 0, 0])
            one[0] += change
            one[1] += change * (place >= num_cached)
            one[2] = index.holders(key)
            if not one[0]:
                del uses[key]

    for turn in range(300):
        keys = draw.choice(40, draw.integers(1, 6), replace=False).tolist()
        index.insert(int(draw.integers(number)), keys)
        if turn % 7 == 0:
            index.shrink(int(draw.integers(number)), 3)
        if len(sent) > 20:
            count(*sent.popleft(), -1)
        sent.append((keys, int(draw.integers(len(keys)))))
        count(*sent[-1], 1)
        sets: dict[int, int] = {}
        for _, missed, holders in uses.values():
            sets[holders] = sets.get(holders, 0) + missed
        expected = [0.0] * number
        for holders in sorted(one for one in sets if sets[one]):
            share = sets[holders] / holders.bit_count() * misses.piece_time if holders else 0.0
            for place in range(number):
                expected[place] += share * (holders >> place & 1)
        most = max(most, len(sets))
        if turn % 3 == 0:
            assert seconds(misses) == expected
    assert most > 15
    while sent:
        count(*sent.popleft(), -1)
    assert misses.num_ordered == 0
    assert not any(misses.buckets.values())


def test_preble_counts_running_requests_by_medians() -> None:
    router = started("preble", 2)
    router.on_first_token(7, 0, 1.0)
    router.on_finish(7, 0, 3.0, 101)  # 0.02 s per token
    assert (router.state.outputs.medians[0], router.state.tpots.medians[0]) == (101, 0.02)
    router.on_finish(8, 1, 1.0, 1)  # its TPOT is unknown: the first value stands
    assert (router.state.outputs.medians[1], router.state.tpots.medians[1]) == (1, 0.15)
    router.choose(ONE, views([3, 5]))
    assert router.state.loads == pytest.approx([3 * 101 * 0.02, 5 * 1 * 0.15])


@pytest.mark.parametrize("values", [3, 1000])
def test_medians_are_of_the_last_values_of_a_replica(values: int) -> None:
    draw, last = np.random.default_rng(values), LastValues()
    lay_out_values(last, Objects(), 2, 0.0)
    known = [deque[float](maxlen=256) for _ in range(2)]
    for _ in range(900):
        place, value = int(draw.integers(2)), float(draw.integers(values))
        add_value(last, place, value)
        known[place].append(value)
        assert last.medians[place] == statistics.median(known[place])


def test_preble_counts_what_would_be_dropped_and_balances() -> None:
    router = started("preble", 2, num_kv_tokens=640)
    placement, one = router.placement, router.placement.candidates[0]
    placement.num_entries, placement.entry_tokens = 14, 64
    assert eviction_seconds(router.state, placement, one) == pytest.approx(4 * 0.064)
    one.cached_tokens, one.num_entries = 256, 2
    assert eviction_seconds(router.state, placement, one) == pytest.approx(2 * 0.064)
    one.num_entries = 0
    assert eviction_seconds(router.state, placement, one) == 0.0

    def choice(text: str, first: int, loads: list[float]) -> int:
        router = started(text, 2)
        router.state.loads = loads
        return balanced(router.state, router.placement, first)

    assert choice("preble+warm-up=0", 0, [1.6, 1.0]) == 1
    assert choice("preble+warm-up=0", 0, [1.5, 1.0]) == 0
    assert choice("preble+warm-up=0", 1, [1.6, 1.0]) == 1
    assert choice("preble", 0, [9.0, 1.0]) == 0  # not before 100 requests


def test_conductor_takes_the_earliest_first_token() -> None:
    router = started("conductor")
    cache(router, ONE, [10, 0, 5])
    assert router.choose(ONE, views()) == 0
    router._queues[0][7] = 0.079  # a hit of 160 tokens behind 79 ms against 80 ms to compute
    assert router.choose(ONE, views()) == 0
    router._queues[0] = {7: 0.081}
    assert router.choose(ONE, views()) == 2
    assert router.branch == "shorter queue"
    router.on_first_token(ONE.request_id, 2, 1.0)
    router.on_first_token(7, 0, 1.0)
    assert router.choose(ONE, views()) == 0


def test_conductor_turns_away_what_would_come_too_late() -> None:
    router = started("conductor+ttft-slo=0.2")
    assert router.choose(ONE, views()) == 0
    assert router.choose(ONE, views()) == 1
    for queue in router._queues:
        queue[99] = 0.05
    assert router.choose(ONE, views()) == REJECT


def test_conductor_lets_who_holds_less_read_it_first() -> None:
    def read(tokens: int) -> float:
        return 0.01 + tokens / 10_000

    router = started("conductor", fetch_time=read)
    cache(router, ONE, [10, 0, 5])
    assert router.choose(ONE, views()) == 0
    assert router.branch == "longest match"
    router._queues[0] = {7: 0.0179}  # against 18 ms for the other 80 tokens
    assert router.choose(ONE, views()) == 0
    router._queues[0] = {7: 0.0181}
    assert router.choose(ONE, views()) == 2
    assert (router.branch, router.predicted_tokens) == ("transfer", 160)
    assert router._queues[2][ONE.request_id] == read(80)


@pytest.mark.parametrize(("threshold", "choice"), [(2, 2), (2.01, 1)])
def test_conductor_reads_what_is_so_many_times_its_own(threshold: float, choice: int) -> None:
    """The second has nothing, so it reads in any case: in 26 ms; 80 tokens are computed in 80."""
    router = started(
        f"conductor+threshold={threshold}", fetch_time=lambda tokens: 0.01 + tokens / 10_000
    )
    cache(router, ONE, [10, 0, 5])
    router._queues[0] = {7: 0.03}
    assert router.choose(ONE, views()) == choice
    assert router.branch == "transfer"


def test_conductor_takes_the_fastest_step_to_decode() -> None:
    router = started("conductor+tbt-slo=0.05", decodes_only=True)
    cache(router, ONE, [10, 0, 5])
    assert router.choose(ONE, views([1, 3, 2])) == 0
    assert router.branch == "fastest step"
    fuller = views([1, 3, 2])
    fuller[0].local.num_prompt_tokens = 4000  # of so many a step of two takes 41 ms
    assert router.choose(ONE, fuller) == 2
    assert router.choose(ONE, views([4, 5, 4])) == REJECT
    router.on_first_token(ONE.request_id, 0, 1.0)


def test_conductor_turns_away_where_either_limit_is_passed() -> None:
    for text in ("conductor+tbt-slo=0.01", "conductor+tbt-slo=0.05+ttft-slo=0.001"):
        assert started(text).choose(ONE, views()) == REJECT
    assert started("conductor+tbt-slo=0.05+ttft-slo=9").choose(ONE, views()) == 0


@pytest.mark.parametrize(
    ("router", "said"),
    [
        ("llm-d+prefix=0+queue=0+kv=0", "all weights are 0: nothing is scored"),
        ("llm-d+scrape-interval=1e-9", "scrape-interval=1e-9"),
        ("least-kv+scrape-interval=0", "scrape-interval=0"),
        ("vllm-dp+scrape-interval=0.0009", "scrape-interval=0.0009"),
    ],
)
def test_what_no_router_can_do_is_refused(router: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_router(router)
    assert make_router("llm-d+prefix=0+queue=0+kv=0+picker=random")


def test_conductor_looks_at_steps_only_where_outputs_are_computed() -> None:
    router = started("conductor+tbt-slo=0.001", prefills_only=True)
    assert router.choose(ONE, views()) == 0
    with pytest.raises(ValueError, match=r"threshold=5\.0: is not read without --kv-store peer"):
        started("conductor+threshold=5")
