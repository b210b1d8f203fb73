"""Fleets: what routers see and when, the books of a run, and where routing must not matter."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import traces

import kvsim
import workloads
from kvsim.cli import main
from kvsim.config import Config
from kvsim.engine.incoming import IncomingRequest
from kvsim.engine.setup import resolve
from kvsim.fleet.facts import prefill_timer
from kvsim.fleet.prefix_index.index import PrefixIndex
from kvsim.fleet.routing.router import REJECT, ROUTERS, Router, make_routers
from kvsim.fleet.routing.scraper import Scraper
from kvsim.results.tables import FinishReason
from kvsim.testing import equal_tables
from kvsim.trace import Trace

TABLES = ("requests", "memory", "steps")
LOG: list[Any] = []


def serve(trace: Trace, **options: Any) -> kvsim.Result:
    """One second per step, in plain Python."""
    given = {
        "model": "llama-3-8b",
        "gpu": "a100-80gb",
        "cost_model": "constant+seconds=1",
        "async_scheduling": False,
        "backend": "python",
        "data_parallel_size": 2,
        "record_steps": True,
    }
    return kvsim.simulate(trace, **given | options)


def same(a: kvsim.Result, b: kvsim.Result) -> bool:
    return all(equal_tables(getattr(a, t), getattr(b, t)) for t in TABLES)


# -- one replica ----------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(traces(), st.data())
def test_one_replica_behind_any_router_is_a_run_without_one(
    trace: Trace, data: st.DataObject
) -> None:
    options: dict[str, Any] = {
        "data_parallel_size": 1,
        "max_model_len": 256,
        "num_gpu_blocks_override": data.draw(st.integers(8, 60)),
        "max_num_seqs": data.draw(st.integers(1, 6)),
        "max_concurrency": data.draw(st.sampled_from([None, 1, 3])),
        "cost_model": "roofline",
    }
    alone = serve(trace, **options)
    for router in ROUTERS.names():
        routed = serve(trace, router=router, **options)
        assert same(alone, routed), router
        assert json.dumps(alone.summary) == json.dumps(routed.summary), router
        assert routed.summary["routing"] is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ROUTERS.names())
def test_every_router_serves_all_and_the_same_way_twice(name: str) -> None:
    shared = [[(k % 3, 0, 96), (10 + k, 0, 20)] for k in range(30)]
    trace = Trace.from_arrays([0.4 * k for k in range(30)], [116] * 30, [4] * 30, segments=shared)
    options: dict[str, Any] = {
        "router": f"{name}+gateways=2",
        "data_parallel_size": 3,
        "num_gpu_blocks_override": 40,
        "max_model_len": 256,
        "max_num_seqs": 4,
        "check_invariants": True,
    }
    first, second = serve(trace, **options), serve(trace, **options)
    assert same(first, second)
    assert first.summary == second.summary
    assert first.summary["completed"] == len(trace)
    routing, replicas = first.summary["routing"], first.summary["replicas"]
    assert routing["num_decisions"] == len(trace)
    assert sum(routing["branches"].values()) == pytest.approx(1 if routing["branches"] else 0)
    assert sum(row["completed"] for row in replicas) == len(trace)
    limited = serve(trace, **options, max_concurrency=3)
    assert limited.summary["completed"] == len(trace)


# -- what a router sees, and when -----------------------------------------------------------------


class Watching(Router):
    """In turn; notes all it sees."""

    watches_requests = True

    def __init__(self, *, interval: float = 2.0, delay: float = 1.5) -> None:
        self.scrape_interval = interval
        self.event_delay = delay

    def choose(self, request: IncomingRequest, replicas: Any) -> int:
        now, one = request.arrival_time, replicas[0]
        keys = self.facts.entry_keys(request)
        held = self.facts.index.match(keys)
        local = (one.local.num_requests, one.local.num_prefilling, one.local.num_uncached_tokens)
        LOG.append((now, local, tuple(one.scraped), held[0]))
        self.predicted_tokens = 0
        return request.request_id % len(replicas)

    def on_first_token(self, request_id: int, replica: int, time: float) -> None:
        LOG.append(("first token", request_id, replica, time))

    def on_finish(self, request_id: int, replica: int, time: float, num_tokens: int) -> None:
        LOG.append(("end", request_id, replica, time, num_tokens))


def watched(trace: Trace, **options: Any) -> list[Any]:
    LOG.clear()
    serve(trace, router=f"{__name__}:Watching", **options)
    return list(LOG)


@pytest.mark.long
def test_views_know_their_age() -> None:
    content = [[(5, 0, 32)]]
    trace = Trace.from_arrays(
        [0.0, 0.5, 1.0, 2.4, 2.6, 5.0], [32] * 6, [3, 1, 3, 1, 1, 1], segments=content * 6
    )
    seen = [row for row in watched(trace) if isinstance(row[0], float)]
    # Request 0 runs from 0 to 3 on replica 0, request 2 waits from 1, has its first token at 2.
    assert [row[1] for row in seen] == [
        (0, 0, 0),
        (1, 1, 32),  # at 0.5 the first token is on its way
        (1, 0, 0),
        (2, 0, 0),  # at 2.4: request 2 got its token at 2
        (2, 0, 0),
        (0, 0, 0),
    ]
    # Metrics every 2 s: nothing until 2, when two run; all have ended at 4.
    assert [row[2][0] for row in seen] == [0.0, 0.0, 0.0, 2.0, 2.0, 4.0]
    assert [row[2][1:3] for row in seen] == [(0, 0)] * 3 + [(0, 2)] * 2 + [(0, 0)]
    # The prompt's two blocks are told at 1 s, and known at 2.5 s.
    assert [row[3] for row in seen] == [0, 0, 0, 0, 2, 2]


class Probing(Watching):
    """Requests 0 and 2 go to the first replica, the others only look at it."""

    def choose(self, request: IncomingRequest, replicas: Any) -> int:
        super().choose(request, replicas)
        return int(request.request_id not in (0, 2))


@pytest.mark.parametrize("backend", ["python", "compiled"])
def test_metrics_are_those_of_the_last_step_that_has_ended(backend: str) -> None:
    # Replica 0 serves request 0 from 0 to 3 and then request 2, which comes at 0.7, until 4.
    arrivals = [0.0, 0.6, 0.7, 1.3, 2.3, 3.3, 4.3, 9.1]
    trace = Trace.from_arrays(arrivals, [32] * 8, [3, 1, 1, 1, 1, 1, 1, 1])
    LOG.clear()
    serve(
        trace,
        router=f"{__name__}:Probing+interval=0.25",
        backend=backend,
        max_num_seqs=1,
        max_model_len=64,
        num_gpu_blocks_override=11,
    )
    seen = [row[2] for row in LOG if isinstance(row[0], float)]
    assert seen == [
        (0.0, 0, 0, 0.0, 0, 0),
        (0.5, 0, 0, 0.0, 0, 0),  # request 0 runs, in a step that has not ended
        (0.5, 0, 0, 0.0, 0, 0),
        (1.25, 0, 1, 0.2, 32, 1),  # no step had seen request 2 when that ended
        (2.25, 1, 1, 0.3, 32, 2),
        (3.25, 1, 0, 0.0, 32, 3),  # request 0 has ended, and request 2 runs in a step that has not
        (4.25, 0, 0, 0.0, 64, 4),
        (9.0, 0, 0, 0.0, 64, 4),
    ]


class Reading(Router):
    """In turn; notes the first replica's metrics."""

    scrape_interval = 0.5

    def choose(self, request: IncomingRequest, replicas: Any) -> int:
        LOG.append(tuple(replicas[0].scraped))
        return request.request_id % len(replicas)


class Asking(Reading):
    """Requests 0 and 2 go to the first replica, the others only ask for its metrics."""

    scrape_interval = 0.25

    def choose(self, request: IncomingRequest, replicas: Any) -> int:
        super().choose(request, replicas)
        return int(request.request_id not in (0, 2))


@pytest.mark.long
@pytest.mark.parametrize("scheduler", ["vllm", "sglang"])
@pytest.mark.parametrize("backend", ["python", "compiled"])
def test_counters_of_tokens_are_right_in_the_midst_of_long_runs(
    backend: str, scheduler: str
) -> None:
    """Request 0 has a token at 1, 2, ..., 40; request 2 comes at 20.6: one at 22, 23, ...

    With asynchronous scheduling at 23, 24, ..., and the loop skips steps in which none comes.
    """
    arrivals = [0.0, 10.4, 20.6, 30.6, 70.1]
    trace = Trace.from_arrays(arrivals, [32, 7, 9, 7, 7], [40, 1, 20, 1, 1])
    LOG.clear()
    own: dict[str, Any] = {"scheduler": scheduler, "max_model_len": 128, "record_steps": False}
    own |= {"allocator": "radix"} if scheduler == "sglang" else {"async_scheduling": True}
    serve(trace, router=f"{__name__}:Asking", backend=backend, **own)
    assert [(row[0], *row[4:]) for row in LOG] == [
        (0.0, 0, 0),
        (10.25, 32, 10),
        (20.5, 32, 20),
        (30.5, 41, 38),  # a prompt is a step of its own to SGLang, in which nobody decodes
        (70.0, 41, 60),
    ]


def test_metrics_of_sglangs_replicas_are_the_same_in_both_engines() -> None:
    logs = []
    for backend in ("python", "compiled"):
        trace = Trace.from_arrays([0.0, 0.2, 1.7, 2.7, 3.7], [32] * 5, [3, 3, 2, 2, 1])
        LOG.clear()
        own = {"scheduler": "sglang", "allocator": "radix", "max_model_len": 64}
        serve(trace, router=f"{__name__}:Reading", backend=backend, **own)
        logs.append(list(LOG))
    assert logs[0] == logs[1]
    assert max(row[2] for row in logs[0]) > 0
    assert max(row[4] for row in logs[0]) == 64


def test_first_tokens_and_ends_are_told_in_order_of_time() -> None:
    trace = Trace.from_arrays([0.0, 0.0, 9.0], [32] * 3, [2, 3, 1])
    told = [row for row in watched(trace) if isinstance(row[0], str)]
    assert told == [
        ("first token", 0, 0, 1.0),
        ("first token", 1, 1, 1.0),
        ("end", 0, 0, 2.0, 2),
        ("end", 1, 1, 3.0, 3),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("max_concurrency", [None, 3])
def test_looking_and_both_engines_change_nothing_and_see_the_same(
    max_concurrency: int | None,
) -> None:
    trace = workloads.shared_prefix(num_requests=60, request_rate=30.0, seed=0)
    options: dict[str, Any] = {
        "cost_model": "roofline",
        "num_gpu_blocks_override": 800,
        "max_model_len": 2048,
        "max_concurrency": max_concurrency,
    }
    router = f"{__name__}:Watching+interval=0.05+delay=0.01"
    LOG.clear()
    watching = serve(trace, router=router, **options)
    logs = [list(LOG)]
    LOG.clear()
    compiled = serve(trace, router=router, **options | {"backend": "compiled"})
    logs.append(list(LOG))
    assert logs[0] == logs[1]
    assert same(watching, compiled)
    assert any(row[3] for row in LOG if isinstance(row[0], float))
    assert same(watching, serve(trace, router="round-robin", **options))


def test_scrapes_are_at_multiples_of_the_interval() -> None:
    scraper = Scraper([], 0.1, 0.3)
    for number in range(200):
        time = 0.3 + number * 0.1
        assert scraper.last_time(time) == time
        assert scraper.next_time(time) == 0.3 + (number + 1) * 0.1
        assert scraper.last_time(math.nextafter(time, -1)) == 0.3 + (number - 1) * 0.1


@pytest.mark.slow
def test_the_index_fed_by_events_holds_what_the_caches_hold() -> None:
    """With no delay, at a time when no step has begun, it is the caches' own answer."""
    compared = []

    class Comparing(Router):
        needs_prefix_cache = True
        event_delay = 0.0

        def choose(self, request: IncomingRequest, replicas: Any) -> int:
            matched = self.facts.index.match(self.facts.entry_keys(request))
            for replica, number in zip(replicas, matched, strict=True):
                if replica.next_event_time() == math.inf:
                    most = (request.num_prompt_tokens - 1) // 16  # one token is computed
                    compared.append((min(number, most), replica.num_cached_tokens(request) // 16))
            return request.request_id % len(replicas)

    trace = workloads.multi_turn(num_requests=80, request_rate=0.4, seed=1)
    with ROUTERS.lend(Comparing) as name:
        options = {"num_gpu_blocks_override": 150, "max_model_len": 2048, "cost_model": "roofline"}
        serve(trace, router=name, **options)
    assert len(compared) > 50
    assert sum(held for _, held in compared) > 100
    assert all(told == held for told, held in compared)


@pytest.mark.slow
def test_the_file_of_events_is_the_same_behind_a_router_that_reads_them(tmp_path: Any) -> None:
    trace = workloads.multi_turn(num_requests=20, request_rate=5.0, seed=1)
    texts = []
    for number, router in enumerate(("session", f"{__name__}:SessionWithEvents")):
        path = tmp_path / f"{number}.jsonl"
        events = {"enable_kv_cache_events": True, "path": str(path)}
        serve(trace, router=router, kv_events_config=events, cost_model="roofline")
        texts.append(path.read_text())
    assert texts[0] == texts[1]
    assert texts[0].count("\n") > 20


class SessionWithEvents(ROUTERS.get("session")):  # type: ignore[misc]
    event_delay = 0.01


# -- indexes --------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 5)), max_size=40))
def test_a_prefix_index_is_a_set_of_paths_per_replica(
    steps: list[tuple[int, int, int]],
) -> None:
    index, paths = PrefixIndex(3), [set[int]() for _ in range(3)]
    for replica, family, depth in steps:
        keys = [100 * family + level for level in range(depth)]
        expected = [
            next((n for n, key in enumerate(keys) if key not in held), depth) for held in paths
        ]
        assert index.match(keys) == expected
        index.insert(replica, keys)
        paths[replica].update(keys)
        assert [index.size(i) for i in range(3)] == [len(held) for held in paths]


def test_an_entry_is_added_as_a_path_of_one_is_inserted() -> None:
    added, inserted = PrefixIndex(2), PrefixIndex(2)
    for replica, key in ((0, 7), (1, 7), (1, 8)):
        added.add(replica, key)
        inserted.insert(replica, (key,))
    added.remove(1, 7)
    inserted.remove(1, 7)
    for key in (7, 8):
        assert added.holders(key) == inserted.holders(key) > 0
    assert added.match((7, 8)) == inserted.match((7, 8)) == [1, 0]
    assert [added.size(i) for i in (0, 1)] == [1, 1]


def test_a_prefix_index_drops_leaves_least_recently_used_first() -> None:
    index = PrefixIndex(1, max_entries=4)
    index.insert(0, [1, 2, 3])
    index.insert(0, [1, 8])  # 3, 2 and 1 are older than what was touched now, but 1
    assert index.match([1, 2, 3]) == [3]
    index.insert(0, [9])
    assert index.match([1, 2, 3]) == [2]
    assert index.match([1, 8]) == [2]


# -- gateways, rejection --------------------------------------------------------------------------


@pytest.mark.slow
def test_each_gateway_sees_only_what_it_sent() -> None:
    """Eight gateways: none sees a queue, so all send to the first replica."""
    trace = Trace.from_arrays([0.01 * k for k in range(8)], [16] * 8, [9] * 8)
    one = serve(trace, router="least-outstanding")
    many = serve(trace, router="least-outstanding+gateways=8")
    assert one.requests["replica"].tolist() == [0, 1] * 4
    assert many.requests["replica"].tolist() == [0] * 8
    two = serve(trace, router="least-outstanding+gateways=2")
    assert two.requests["replica"].tolist() == [0, 0, 1, 1] * 2


class TurnsAway(Router):
    looks_at_replicas = True

    def choose(self, request: IncomingRequest, replicas: Any) -> int:
        return REJECT if request.request_id % 2 else 0


@pytest.mark.long
def test_what_a_router_turns_away_is_rejected_with_the_reason_and_takes_no_place() -> None:
    trace = Trace.from_arrays([0.0] * 4, [16] * 4, [2] * 4)
    for limit in (None, 1):
        result = serve(trace, router=f"{__name__}:TurnsAway", max_concurrency=limit)
        reasons = result.requests["finish_reason"].tolist()
        assert reasons == [FinishReason.FINISHED, FinishReason.REJECTED] * 2
        assert result.summary["rejections"] == {f"turned away by router {__name__}:TurnsAway": 2}
        assert result.summary["completed"] == 2


# -- the books ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_books_of_a_run() -> None:
    content = [[(5, 0, 33)]]
    trace = Trace.from_arrays([0.0, 4.0, 8.0], [33] * 3, [2, 2, 4], segments=content * 3)
    result = serve(trace, router="sglang-cache-aware+cache-threshold=0.9")
    # 32 of 33 tokens match: above 0.9. The first prompt goes to the smallest tree.
    assert result.requests["replica"].tolist() == [0, 0, 0]
    routing = result.summary["routing"]
    assert routing["branches"] == {"matched": 2 / 3, "smallest tree": 1 / 3}
    assert routing["predicted_hit_rate"] == routing["actual_hit_rate"] == 64 / 99
    assert routing["best_hit_rate"] == routing["compared_hit_rate"] == 64 / 99
    assert routing["num_compared"] == 3
    assert routing["imbalance"] == routing["request_imbalance"] == 2.0
    first, second = result.summary["replicas"]
    assert first["busy"] == 8 / 12
    assert (first["num_requests"], second["num_requests"]) == (3, 0)
    assert second["busy"] == 0.0
    assert second["prefix_cache_hit_rate"] is None
    apart = serve(trace, router="round-robin")
    assert apart.summary["routing"]["best_hit_rate"] is None  # nobody looked
    assert apart.summary["routing"]["predicted_hit_rate"] is None
    missed = serve(trace, router="least-kv")
    assert missed.summary["routing"]["best_hit_rate"] == 64 / 99


@pytest.mark.long
def test_books_can_be_averaged(capsys: pytest.CaptureFixture[str]) -> None:
    options = "--num-requests 12 --data-parallel-size 2 --backend python --replications 2 --json -"
    main(["run", "--workload", "multi-turn", "--router", "dynamo", *options.split()])
    summary = json.loads(capsys.readouterr().out)
    assert len(summary["replicas"]) == 2
    assert sum(row["completed"] for row in summary["replicas"]) == summary["completed"] > 0
    assert summary["routing"]["num_decisions"] == summary["completed"]


def test_a_run_tells_the_books(capsys: pytest.CaptureFixture[str]) -> None:
    options = "--num-requests 20 --data-parallel-size 2 --backend python --workload multi-turn"
    main(["run", "--router", "sglang-cache-aware", *options.split()])
    said = capsys.readouterr().out
    assert "decisions, %: matched " in said
    assert "prompt tokens cached, %: predicted " in said
    assert "best replica " in said
    assert "busiest replica " in said


# -- where routing must not win -------------------------------------------------------------------

KV_AWARE = ("dynamo", "llm-d+index=precise", "sglang-cache-aware", "conductor")


def mean_ttft(trace: Trace, router: str, **options: Any) -> float:
    given = {"cost_model": "roofline", "data_parallel_size": 4, "max_model_len": 8192}
    ttft: float = serve(trace, router=router, **given | options).summary["mean_ttft_ms"]
    return ttft


@pytest.mark.slow
@pytest.mark.parametrize("router", KV_AWARE)
def test_kv_awareness_wins_nothing_where_prompts_share_nothing(router: str) -> None:
    """Knowing who still computes a prompt is worth a few per cent; that is no cache's merit."""
    trace = workloads.fixed(prompt=1000, output=40, num_requests=60, request_rate=12.0)
    plain, aware = (mean_ttft(trace, r) for r in ("least-outstanding", router))
    assert aware > 0.95 * plain


@pytest.mark.slow
@pytest.mark.parametrize(
    ("router", "blind"),
    [
        ("dynamo", "dynamo+credit=0"),
        ("llm-d+index=precise", "llm-d+index=precise+prefix=0"),
        ("llm-d", "llm-d+prefix=0"),
    ],
)
def test_where_prompts_share_nothing_sight_is_blindness(router: str, blind: str) -> None:
    trace = workloads.fixed(prompt=1000, output=40, num_requests=40, request_rate=12.0)
    options = {"cost_model": "roofline", "data_parallel_size": 4}
    assert same(serve(trace, router=router, **options), serve(trace, router=blind, **options))


@pytest.mark.slow
@pytest.mark.parametrize("router", KV_AWARE)
def test_kv_awareness_wins_nothing_where_caches_are_off_or_hold_everything(router: str) -> None:
    shared = [[(7, 0, 512), (100 + k, 0, 64)] for k in range(60)]
    trace = Trace.from_arrays([0.4 * k for k in range(60)], [576] * 60, [20] * 60, segments=shared)
    off = {"enable_prefix_caching": False}
    plain, aware = (mean_ttft(trace, r, **off) for r in ("round-robin", router))
    assert aware > 0.98 * plain
    # Low load and one prefix that everybody soon holds: at most the first computations are saved.
    plain, aware = (mean_ttft(trace, r) for r in ("round-robin", router))
    assert aware > 0.9 * plain


@pytest.mark.slow
@pytest.mark.parametrize("router", ["llm-d+index=precise", "sglang-cache-aware", "preble"])
def test_kv_awareness_wins_where_prefixes_fit_only_if_they_are_parted(router: str) -> None:
    """Five times and more, where the caches of a saturated fleet churn."""
    rng = np.random.default_rng(0)
    shared = [[(g, 0, 4000), (1000 + k, 0, 100)] for k, g in enumerate(rng.integers(0, 12, 300))]
    arrivals = np.cumsum(rng.exponential(1 / 25, 300))
    trace = Trace.from_arrays(arrivals.tolist(), [4100] * 300, [10] * 300, segments=shared)
    # A replica holds four of twelve prefixes, the four together hold them all.
    options = {"num_gpu_blocks_override": 1200, "max_num_seqs": 16, "backend": "compiled"}
    plain, aware = (mean_ttft(trace, r, **options) for r in ("least-outstanding", router))
    assert aware < 0.2 * plain


# -- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("router", "message"),
    [
        ("llm-d+prefx=1", "router 'llm-d' has no parameter 'prefx'"),
        ("llm-d+index=exact", "router 'llm-d': index=exact: must be precise"),
        ("dynamo+credit=2", "router 'dynamo': credit=2: must be a number"),
        ("chwbl+epsilon=-1", "router 'chwbl': epsilon=-1: must be a number"),
        ("session+points=many", "router 'session': points=many: must be a whole number"),
        ("dynamo+gateways=0", "router 'dynamo': gateways=0: must be a whole number from 1 to 4096"),
        ("ray-prefix-aware+eviction-target=9e9", "must not be above eviction-threshold (400000)"),
        ("sglang-cache-awar", "did you mean sglang-cache-aware"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    router: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["run", "--num-requests", "4", "--router", router])
    assert stopped.value.code == 2
    said = capsys.readouterr().err.strip()
    assert message in said
    assert len(said.splitlines()) == 1


def test_gateways_have_routers_of_their_own() -> None:
    routers = make_routers("chwbl+gateways=3")
    assert len(routers) == len(set(map(id, routers))) == 3


def test_a_prompt_is_priced_in_steps_of_the_most_batched_tokens() -> None:
    config = Config.build(
        model="llama-3-8b", gpu="a100-80gb", max_num_batched_tokens=1000, max_model_len=8000
    )
    setup = resolve(config)
    whole = prefill_timer(setup)
    assert whole(1000, 0) < whole(2000, 0) < whole(4000, 0)
    assert whole(2000, 1000) == pytest.approx(whole(2000, 0) - whole(1000, 0), rel=0.05)
    assert whole(2000, 2000) == whole(2000, 1999)  # the last token is computed again
    assert whole(3000, 1500) > whole(1500, 0)  # later tokens look at more
    constant = resolve(config.model_copy(update={"cost_model": "constant+seconds=1"}))
    assert prefill_timer(constant)(2001, 0) == 3.0
    assert prefill_timer(constant)(2001, 1001) == 1.0
