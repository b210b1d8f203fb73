"""What becomes of KV when the replica that had it is gone: stores, private memory, links."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvsim
from kvsim.fleet.kv_store.lru_store import LruStore
from kvsim.results.tables import FinishReason
from kvsim.trace import Trace

H100: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h100-sxm"}
TOKENS = 8000


def prompts(times: list[float], contents: list[int]) -> Trace:
    """Requests of which those of one content are the same."""
    segments = [[(content, 0, TOKENS)] for content in contents]
    return Trace.from_arrays(times, [TOKENS] * len(times), [4] * len(times), segments=segments)


def cached(trace: Trace, **options: Any) -> int:
    """Return the tokens that the last request found."""
    result = kvsim.simulate(trace, **H100, **options)
    assert result.summary["completed"] == len(trace)
    return int(result.requests["num_cached_tokens"][-1])


def test_a_store_keeps_what_a_replica_had_computed_before_it_drained() -> None:
    """The second replica is drained before anybody looks; the prompt comes to the first one."""
    trace = prompts([0.0, 0.0, 200.0], [9, 1, 1])
    options = {"data_parallel_size": 2, "router": "round-robin", "kv_store": "mooncake+pull=always"}
    scaler = "hpa+metric=running+target=40+max=2+interval=5"
    assert cached(trace, **options) == TOKENS - 1
    assert cached(trace, **options, autoscaler=scaler) == TOKENS - 1


@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize(
    ("store", "found"),
    [
        ("mooncake", TOKENS - 1),
        ("lmcache+gib=0+server-gib=10", TOKENS // 256 * 256),
        ("lmcache+delay=20", 0),
        ("lmcache", 0),
        ("kvbm", 0),
        ("kvbm+delay=20", 0),
        ("kvbm+gib=0+disk-gib=10", 0),
    ],
)
def test_a_failure_takes_what_was_the_replica_s_own(store: str, found: int, *, looks: bool) -> None:
    """It fails at 10 and another one takes its place, whether the store was asked before or not."""
    trace = prompts([0.0, 5.0, 60.0], [1, 9, 1]) if looks else prompts([0.0, 60.0], [1, 1])
    options = {"failures": "at+time=10+detection=1", "cold_start": 5.0}
    assert cached(trace, **options, kv_store=f"{store}+pull=always") == found


def test_lmcache_saves_no_generated_tokens_whoever_asks_in_between() -> None:
    """The second turn comes to the other replica; the first had 512 and got 512."""

    def turns(*others: float) -> Trace:
        number = len(others)
        return Trace.from_arrays(
            [0.0, *others, 20.0],
            [512, *[512] * number, 1040],
            [512, *[2] * number, 2],
            segments=[
                [(1, 0, 512)],
                *[[(7 + k, 0, 512)] for k in range(number)],
                [(1, 0, 512), (100, 0, 512), (3, 0, 16)],
            ],
            output_content_id=[100, *range(200, 200 + number), 300],
        )

    store = "lmcache+server-gib=10+pull=always"
    options = {"data_parallel_size": 2, "router": "round-robin", "kv_store": store}
    assert cached(turns(), **options) == cached(turns(15.0, 16.0), **options) == 512


def test_who_reads_beside_a_reader_that_fails_has_the_link_alone() -> None:
    trace = Trace.from_arrays(
        [0.0, 10.0, 11.0, 20.0, 20.0, 20.0],
        [4000, 10, 10, 4001, 4002, 4002],
        [4, 1, 1, 4, 4, 4],
        segments=[
            *([(1, 0, 4000)], [(2, 0, 10)], [(3, 0, 10)], [(9, 0, 4001)]),
            *([(1, 0, 4000), (5, 0, 2)], [(1, 0, 4000), (6, 0, 2)]),
        ],
    )

    def read(time: float) -> Any:
        return kvsim.simulate(
            trace,
            **H100,
            data_parallel_size=3,
            router="round-robin",
            kv_store="peer+pull=always",
            kv_transfer_fabric="tcp-ucx",
            failures=f"at+time={time}+replica=1+detection=1000+policy=fail",
            horizon=3000.0,
        )

    both, alone = read(2000.0), read(20.1)
    shared, own = both.requests["transfer_time"][5], alone.requests["transfer_time"][5]
    assert both.requests["transfer_time"][4] == pytest.approx(shared)
    assert own == pytest.approx(shared / 2 + 0.05, abs=0.02)  # a tenth was shared
    assert alone.summary["kv_store"]["bytes"] == {"peer": 4000 * 131_072}


@pytest.mark.parametrize("policy", ["fail", "retry"])
def test_a_failure_that_is_noticed_behind_the_horizon_changes_nothing_there(policy: str) -> None:
    trace = Trace.from_arrays([0.0, 0.1, 1.0, 1.5], [100] * 4, [4] * 4)
    failure = f"at+time=0.05+detection=2+policy={policy}"
    result = kvsim.simulate(trace, **H100, failures=failure, cold_start=0.1, horizon=0.5)
    rows = result.requests
    assert result.summary["duration"] == pytest.approx(0.5)
    unsent = rows["finish_reason"] == FinishReason.UNSENT
    assert unsent.tolist() == [False, False, True, True]
    assert np.isnan(rows["finish_time"][unsent]).all()


@pytest.mark.long
def test_a_fleet_that_fails_sooner_than_it_serves_comes_to_an_end() -> None:
    """A replica lives for a third of a second, and a request takes longer."""
    trace = Trace.from_arrays([0.0] * 3, [100] * 3, [2000] * 3)
    result = kvsim.simulate(trace, **H100, failures="rate+gpu-hours=0.0001", cold_start=60.0)
    assert (result.requests["finish_reason"] == FinishReason.FAILED).all()
    assert result.summary["scaling"]["num_lost"] >= 3 * 101


def test_what_has_no_room_evicts_nothing() -> None:
    store = LruStore(0)
    store.put([1, 2])
    assert (len(store), store.num_evicted) == (0, 0)
    trace = prompts([0.0, 5.0, 10.0], [1, 2, 3])
    for store, number in (("lmcache+gib=0+server-gib=10", 0), ("lmcache+gib=1", 62 * 16)):
        told = kvsim.simulate(trace, **H100, kv_store=store).summary["kv_store"]
        # 32 chunks fit into a GiB; 62 of two prompts are in when the third is looked up.
        assert told["num_evicted"] == (0 if not number else (62 - 32) * 16)
