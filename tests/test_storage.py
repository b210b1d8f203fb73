"""HiCache's third level: what SGLang's waiting requests read from a store behind the host tier."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples, traces

import kvsim
import workloads
from kvsim.engine.contents import Contents
from kvsim.engine.incoming import IncomingRequest
from kvsim.engines.sglang.fleet import setup
from kvsim.engines.sglang.records.storage import Storage
from kvsim.fleet.fabric import fabric_of
from kvsim.fleet.prefix_index.prompt_keys import PromptKeys
from kvsim.fleet.routing.router import Router
from kvsim.kv.block_hash import block_keys
from kvsim.results.result import Result
from kvsim.testing import equal_tables
from kvsim.trace import Trace

PAGE = 64
#: Bytes of KV of a page of Llama-3.1-8B.
BYTES = 131_072 * PAGE
HOSTS: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "gpu": "h100-sxm",
    "engine": "sglang",
    "page_size": PAGE,
    "enable_hierarchical_cache": True,
}
#: Two replicas that take requests in turn, a second a step; 15 ms to read a page.
SLOW: dict[str, Any] = {
    **HOSTS,
    "cost_model": "constant+seconds=1",
    "async_scheduling": False,
    "data_parallel_size": 2,
    "router": "round-robin",
    "kv_store": "mooncake",
    "kv_transfer_fabric": "tcp-ucx",
}
LINK = fabric_of("tcp-ucx")
PER_PAGE = LINK.time(BYTES) - LINK.base


def again(num_pages: int, tail: int = PAGE, *, between: int = 10) -> Trace:
    """A prompt to the first replica, one of somebody else to the second, and the first's, longer.

    The second one runs for so many steps.
    """
    shared = (1, 0, num_pages * PAGE)
    prompts = [[shared], [(2, 0, PAGE)], [(3, 0, PAGE)], [shared, (4, 0, tail)]]
    return Trace.from_arrays(
        [0.0, 5.0, 19.9, 20.0],
        [sum(length for _, _, length in prompt) for prompt in prompts],
        [1, between, 1, 1],
        segments=prompts,
    )


def serve(trace: Trace, **options: Any) -> Result:
    """Serve with both engines, which agree."""
    python = kvsim.simulate(trace, **(SLOW | options), backend="python", check_invariants=True)
    compiled = kvsim.simulate(trace, **(SLOW | options), backend="compiled")
    assert equal_tables(python.requests, compiled.requests)
    assert python.summary == compiled.summary
    return compiled


@pytest.mark.long
def test_a_request_waits_for_what_another_replica_has_computed() -> None:
    for policy in ("wait_complete", "timeout"):
        result = serve(again(16), hicache_storage_prefetch_policy=policy)
        row, told = result.requests[3], result.summary["kv_store"]
        seconds = LINK.base + 16 * PER_PAGE
        assert row["first_token_time"] == pytest.approx(21 + seconds)
        assert row["num_cached_tokens"] == 16 * PAGE
        assert (told["num_found"], told["num_fetches"], told["num_tokens"]) == (1, 1, 1024)
        assert told["bytes"] == {"storage": 16 * BYTES}
        assert told["mean_ms"] == pytest.approx(1000 * seconds)


@pytest.mark.long
@pytest.mark.parametrize("policy", ["wait_complete", "timeout"])
def test_an_idle_replica_that_reads_serves_who_comes_meanwhile(policy: str) -> None:
    """The read of 512 pages takes 7.8 s; two others come in the first of them."""
    trace = Trace.from_arrays(
        [0.0, 20.0, 20.1, 20.2],
        num_output_tokens=[1] * 4,
        **prompts([(1, 512)], [(1, 512), (2, 1)], [(3, 1)], [(4, 1)]),
    )
    options = {"hicache_storage_prefetch_policy": policy, "max_total_tokens": 60_000}
    result = serve(trace, router=f"{__name__}:Apart", **options)
    ends = 20 + 512 * PER_PAGE
    rows = result.requests[1:]
    assert rows["first_scheduled_time"].tolist() == pytest.approx([ends, 20.1, 21.1])
    assert rows["first_token_time"].tolist() == pytest.approx([ends + 1, 21.1, 22.1])
    row = result.summary["replicas"][1]
    assert row["busy"] * row["lifetime"] == pytest.approx(3)
    cut = serve(trace, router=f"{__name__}:Apart", horizon=24, **options)
    assert cut.summary["num_in_flight"] == 1


@pytest.mark.long
def test_who_finds_the_gpu_free_does_not_wait() -> None:
    """SGLang looks how far the read is in the pass that has begun it."""
    result = serve(again(16), hicache_storage_prefetch_policy="best_effort")
    assert result.requests["first_token_time"][3] == 21.0
    assert result.requests["num_cached_tokens"][3] == 0
    assert result.summary["kv_store"]["num_fetches"] == 0


@pytest.mark.long
@pytest.mark.parametrize(("num_pages", "read"), [(100, 100), (200, None)])
def test_who_waits_for_the_gpu_takes_what_has_been_read_by_then(
    num_pages: int, read: int | None
) -> None:
    """The second replica's own request runs from 5 to 22, so that the last one waits for it."""
    result = serve(
        again(num_pages, between=17),
        hicache_storage_prefetch_policy="best_effort",
        max_running_requests=1,
    )
    row = result.requests[3]
    seen = 20.0  # at the beginning of a step
    admitted = row["first_scheduled_time"]
    assert admitted == 22.0
    pages = int((admitted - seen - LINK.base) / PER_PAGE) if read is None else read
    assert 0 < pages <= num_pages
    assert row["num_cached_tokens"] == pages * PAGE
    assert (pages < num_pages) == (read is None)


@pytest.mark.long
def test_a_timeout_ends_the_wait() -> None:
    """Of 512 pages, 7.8 s, all are not there after 1 + 0.25 * 32 s: 9 s; but after 3 s."""
    slow = serve(again(512), hicache_storage_prefetch_policy="timeout", max_total_tokens=60_000)
    assert slow.requests["num_cached_tokens"][3] == 512 * PAGE
    long = again(512)
    late = serve(
        long,
        hicache_storage_prefetch_policy="timeout",
        kv_transfer_fabric="nixl-vllm",
        max_total_tokens=60_000,
    )
    assert late.requests["first_token_time"][3] <= 21 + 9.0


@pytest.mark.long
def test_fewer_than_256_tokens_are_not_read() -> None:
    for pages, read in ((3, 0), (4, 1)):
        result = serve(again(pages), hicache_storage_prefetch_policy="wait_complete")
        assert result.summary["kv_store"]["num_found"] == read
        assert result.summary["kv_store"]["num_fetches"] == read


class Apart(Router):
    """Sends to the second replica from 20 s on."""

    def choose(self, request: IncomingRequest, replicas: Any) -> int:
        del replicas
        return int(request.arrival_time >= 20)


@pytest.mark.long
def test_a_host_without_room_reads_nothing() -> None:
    """Two prompts of 16 pages come again to a replica whose host has 18."""
    first, second = [(1, 0, 16 * PAGE)], [(2, 0, 16 * PAGE)]
    others = [[(k, 0, PAGE)] for k in (3, 4)]
    trace = Trace.from_arrays(
        [0.0, 1.0, 5.0, 20.0, 21.0, 20.0 + 2, 22.0],
        [1024, 64, 1024, 1088, 64, 1088, 64],
        [1] * 7,
        segments=[
            *(first, others[0], second, [*first, (5, 0, PAGE)], others[1]),
            *([*second, (6, 0, PAGE)], [(7, 0, PAGE)]),
        ],
    )
    options = {"max_total_tokens": 20 * PAGE, "hicache_ratio": 0.85}
    result = serve(
        trace,
        hicache_storage_prefetch_policy="wait_complete",
        router=f"{__name__}:Apart",
        **options,
    )
    told = result.summary["kv_store"]
    assert (told["num_found"], told["num_declined"], told["num_fetches"]) == (2, 1, 1)


def prompts(*pieces: list[tuple[int, int]]) -> dict[str, Any]:
    """Prompts of so many pages of each content, as a trace takes them."""
    segments = [[(content, 0, pages * PAGE) for content, pages in piece] for piece in pieces]
    return {
        "num_prompt_tokens": [sum(length for _, _, length in one) for one in segments],
        "segments": segments,
    }


@pytest.mark.long
def test_reads_follow_one_another() -> None:
    """Two prompts come at once: the second one's read begins when the first one's has ended."""
    trace = Trace.from_arrays(
        [0.0, 1.0, 20.0, 20.0],
        num_output_tokens=[1] * 4,
        **prompts([(1, 16)], [(2, 16)], [(1, 16), (3, 1)], [(2, 16), (4, 1)]),
    )
    result = serve(
        trace, hicache_storage_prefetch_policy="wait_complete", router=f"{__name__}:Apart"
    )
    seconds = 16 * PER_PAGE
    assert result.requests["first_token_time"][2:].tolist() == pytest.approx(
        [21 + seconds, 22 + seconds]  # a step has begun meanwhile
    )
    assert result.summary["kv_store"]["mean_ms"] == pytest.approx(1000 * seconds)
    assert result.requests["num_cached_tokens"][2:].tolist() == [1024, 1024]


@pytest.mark.long
def test_what_two_have_read_is_there_once() -> None:
    trace = Trace.from_arrays(
        [0.0, 20.0, 20.0],
        num_output_tokens=[1] * 3,
        **prompts([(1, 16)], [(1, 16), (3, 1)], [(1, 16), (4, 1)]),
    )
    result = serve(
        trace, hicache_storage_prefetch_policy="wait_complete", router=f"{__name__}:Apart"
    )
    assert result.requests["num_cached_tokens"][1:].tolist() == [1024, 1024]
    assert result.summary["kv_store"]["num_fetches"] == 2


@pytest.mark.long
def test_nothing_is_read_below_what_the_gpu_alone_has() -> None:
    """A selective host copies at the second use; the second replica has three pages, used once."""
    trace = Trace.from_arrays(
        [0.0, 5.0, 20.0, 30.0],
        num_output_tokens=[1] * 4,
        **prompts([(1, 16)], [(1, 16), (2, 1)], [(1, 3)], [(1, 16), (3, 1)]),
    )
    result = serve(
        trace,
        hicache_storage_prefetch_policy="wait_complete",
        hicache_write_policy="write_through_selective",
        router=f"{__name__}:Apart",
    )
    told = result.summary["kv_store"]
    assert (told["num_found"], told["num_fetches"]) == (1, 0)
    assert result.requests["num_cached_tokens"].tolist() == [0, 1024, 0, 192]


@pytest.mark.long
def test_what_a_read_goes_on_from_stays_on_the_host_and_others_go_first() -> None:
    """Of the second replica, GPU 20 pages, host 35; the first one has stored P and 8 pages more.

    P (8 pages) is on the host alone since Q came (14). R goes on from P, and is seen at 40.9, as is
    T (12), which is computed first. Its copy needs 8 pages more than are free: P is the least
    recently used, and held, so Q goes.
    """
    trace = Trace.from_arrays(
        [0.0, 20.0, 25.0, 39.9, 40.1, 40.2],
        num_output_tokens=[1, 1, 1, 2, 1, 1],
        **prompts(
            *([(1, 8), (2, 8)], [(1, 8)], [(3, 14)], [(4, 1)]),
            *([(1, 8), (2, 8), (5, 1)], [(6, 12)]),
        ),
    )
    result = serve(
        trace,
        hicache_storage_prefetch_policy="wait_complete",
        max_total_tokens=20 * PAGE,
        hicache_ratio=1.7,
        router=f"{__name__}:Apart",
    )
    rows = result.requests
    assert rows["first_token_time"][5] == pytest.approx(41.9)
    assert rows["first_token_time"][4] == pytest.approx(42.9)
    assert rows["num_cached_tokens"][4] == 16 * PAGE


@pytest.mark.long
def test_what_lies_before_a_read_must_still_be_there() -> None:
    """R comes while the second replica's host has P (8 pages), and is seen when one has gone.

    The store was asked for what follows P.
    """
    trace = Trace.from_arrays(
        [0.0, 20.0, 25.0, 40.0, 40.3],
        num_output_tokens=[1] * 5,
        **prompts([(1, 8), (2, 8)], [(1, 8)], [(3, 14)], [(6, 12)], [(1, 8), (2, 8), (5, 1)]),
    )
    result = serve(
        trace,
        hicache_storage_prefetch_policy="wait_complete",
        max_total_tokens=20 * PAGE,
        hicache_ratio=1.6,
        router=f"{__name__}:Apart",
    )
    told = result.summary["kv_store"]
    assert (told["num_found"], told["num_fetches"]) == (2, 1)  # P itself was read, at 20
    assert result.requests["num_cached_tokens"][4] == 7 * PAGE


@pytest.mark.long
def test_under_write_back_only_whole_prompts_are_read() -> None:
    """What is evicted is stored. P is read; where the host alone has it, nothing behind it is."""
    trace = Trace.from_arrays(
        [0.0, 5.0, 20.0, 25.0, 40.0],
        num_output_tokens=[1] * 5,
        **prompts(
            *([(1, 8), (2, 8)], [(7, 16)], [(1, 8)], [(3, 14)], [(1, 8), (2, 8), (5, 1)]),
        ),
    )
    result = serve(
        trace,
        hicache_storage_prefetch_policy="wait_complete",
        hicache_write_policy="write_back",
        max_total_tokens=20 * PAGE,
        hicache_ratio=3.0,
        router=f"{__name__}:Apart",
    )
    told = result.summary["kv_store"]
    assert (told["num_found"], told["num_fetches"]) == (2, 1)
    assert result.requests["num_cached_tokens"][4] == 8 * PAGE


@pytest.mark.long
def test_an_output_is_stored_and_found_by_the_next_turn() -> None:
    """A turn's prompt is the last one's prompt and output; a selective host has copied neither."""
    prompts = [[(1, 0, 640)], [(2, 0, 64)], [(9, 0, 64)], [(1, 0, 640), (7, 0, 320), (3, 0, 64)]]
    trace = Trace.from_arrays(
        [0.0, 0.5, 700.0, 701.0],
        [640, 64, 64, 1024],
        [321, 1, 1, 1],
        segments=prompts,
        output_content_id=[7, 20, 21, 22],
    )
    found = {}
    for policy in ("write_through", "write_through_selective"):
        result = serve(
            trace, hicache_storage_prefetch_policy="wait_complete", hicache_write_policy=policy
        )
        found[policy] = int(result.requests["num_cached_tokens"][3])
    assert found == {"write_through": 960, "write_through_selective": 0}


def test_keys_of_outputs_are_those_that_later_prompts_have() -> None:
    trace = Trace.from_arrays(
        [0.0, 1.0],
        [70, 140],
        [80, 1],
        segments=[[(1, 0, 40), (2, 5, 30)], [(1, 0, 40), (2, 5, 30), (3, 0, 70)]],
        output_content_id=[3, 4],
    )
    for compiled in (False, True):
        keys = PromptKeys(trace, compiled=compiled)
        assert keys.whole(0, 140, 16).tolist() == keys.of(1, 16).tolist()
        assert keys.whole(0, 64, 16).tolist() == keys.of(1, 16)[:4].tolist()
    request = Contents.of(trace).request(1, 0.0, 500)
    assert block_keys(request, 8, 16) == keys.of(1, 16).tolist()


@pytest.mark.long
@examples(60)
@given(trace=traces(max_requests=30), data=st.data())
def test_both_engines_agree_and_no_page_is_lost(trace: Trace, data: st.DataObject) -> None:
    draw = data.draw
    trace = trace.with_num_samples(1)
    if draw(st.booleans()):  # again, as its own second turn
        trace = replace(trace, arrival_time=np.sort(trace.arrival_time % 2.0))
    options: dict[str, Any] = {
        **HOSTS,
        "page_size": draw(st.sampled_from([1, 4, 16])),
        "cost_model": f"constant+seconds={draw(st.sampled_from([0.01, 0.2]))}",
        "data_parallel_size": draw(st.integers(1, 3)),
        "router": draw(st.sampled_from(["round-robin", "random"])),
        "max_total_tokens": draw(st.sampled_from([96, 320, 1600])),
        "max_model_len": 60,
        "hicache_ratio": draw(st.sampled_from([0.3, 1.0, 3.0])),
        "hicache_write_policy": draw(
            st.sampled_from(["write_through", "write_through_selective", "write_back"])
        ),
        "hicache_storage_prefetch_policy": draw(
            st.sampled_from(["best_effort", "wait_complete", "timeout"])
        ),
        "schedule_policy": draw(st.sampled_from(["fcfs", "lpm", "lof"])),
        "max_running_requests": draw(st.integers(1, 6)),
        "chunked_prefill_size": draw(st.sampled_from([16, 64])),
        "async_scheduling": draw(st.booleans()),
        "kv_store": draw(
            st.sampled_from(["mooncake", "mooncake+gib=0.001+disk-gib=0.002", "mooncake+delay=0.1"])
        ),
        "kv_transfer_fabric": draw(st.sampled_from(["400g-ib", "tcp-ucx"])),
        "max_concurrency": draw(st.sampled_from([None, 2])),
    }
    with pytest.MonkeyPatch.context() as patch:  # prompts here are short
        least = draw(st.sampled_from([1, 8, 20]))
        patch.setattr(setup, "Storage", partial(Storage, least=least))
        python = kvsim.simulate(trace, **options, backend="python", check_invariants=True)
        compiled = kvsim.simulate(trace, **options, backend="compiled")
    assert equal_tables(python.requests, compiled.requests)
    assert python.summary == compiled.summary
    told = python.summary["kv_store"]
    assert told["num_fetches"] <= told["num_found"]
    assert python.summary["completed"] + python.summary["num_rejected"] == len(trace)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"enable_hierarchical_cache": False}, "needs enable_hierarchical_cache under sglang"),
        ({"kv_store": "peer"}, "kv_store 'peer': must be mooncake or file under sglang"),
        ({"kv_store": "mooncake+pull=always"}, "pull has no effect under sglang"),
        ({"kv_store": "kvbm"}, "kv_store 'kvbm': must be mooncake or file under sglang"),
    ],
)
def test_a_wrong_store_is_refused_in_one_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        kvsim.simulate(workloads.fixed(num_requests=2), **(SLOW | options))
