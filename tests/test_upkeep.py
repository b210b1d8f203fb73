"""Resets, pauses and requests that read no cache: what recorded schedules leave open."""

import random

import numpy as np
import pytest

from kvsim.cases.case import CaseConfig, Workload
from kvsim.cases.contents import contents_of_case
from kvsim.cases.play import parts_of, play
from kvsim.cases.upkeep import number_tokens
from kvsim.engine.replica import Replica
from kvsim.records.request import Request
from kvsim.results.tables import REQUESTS
from kvsim.rules.vllm.dropping import reset_dropping

SMALL = {
    "num_gpu_blocks": 40,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 32,
    "max_model_len": 96,
    "block_size": 4,
}


def request(name, prompt, *, step=0, max_tokens=4, segment=None, **more):
    segments = [[sum(map(ord, name)) if segment is None else segment, prompt]]
    given = {"id": name, "arrival_step": step, "segments": segments, "max_tokens": max_tokens}
    return given | more


def played(options, *requests, **how):
    config = CaseConfig.model_validate(SMALL | options)
    workload = Workload.model_validate({"requests": list(requests)})
    return list(play(config, workload, **({"check": True} | how)))


def value(steps, field):
    """Return a field of the first step that has it, and the step."""
    return next(((step["s"], step[field]) for step in steps if field in step), None)


def fake(role="kv_both"):
    return {"kind": "fake", "role": role}


def test_who_reads_no_cache_asks_the_connector_in_vain():
    """An unknown answer does not set it aside, and what is offered is thrown away."""
    steps = played(
        {"connector": fake()},
        request("a", 16, skip_read=1, kv={"ext_tokens": 12, "unknown": 3}),
        request("b", 16, step=6, segment=ord("a")),
    )
    assert value(steps, "new") == (0, [["a", 0, [[1, 2, 3, 4]]]])
    assert value(steps, "ld") is None
    assert value(steps[3:], "new")[1][0][:2] == ["b", 12]  # its blocks are named, and hit


def test_who_reads_no_cache_pins_no_shared_prefix():
    """Of a window only the tail of the prompt is kept, whatever others hold of its prefix."""
    groups = [
        {"type": "full", "block_size": 4},
        {"type": "sliding_window", "block_size": 4, "window": 5},
    ]
    named = []
    for skips in (0, 1):
        second = request("b", 60, step=12, segment=ord("a"), max_tokens=1, skip_read=skips)
        second["segments"] = [[ord("a"), 30], [7, 30]]
        options = {"groups": groups, "num_gpu_blocks": 90}
        steps = played(options, request("a", 60, max_tokens=1), second)
        named.append(steps[-1]["nh"])
    assert named == [15 + 15 + 1 + 1 + 1, 15 + 15 + 1 + 1]


@pytest.mark.parametrize(("role", "outcome"), [("kv_both", -1), ("kv_producer", 1)])
def test_a_reset_leaves_blocks_behind_a_fence_and_says_so(role, outcome):
    options = {"connector": fake(role), "async_scheduling": True, "resets": [[4, 1], [7, 0]]}
    steps = played(options, request("a", 20, max_tokens=8))
    assert {s["s"]: s["reset"] for s in steps if "reset" in s} == {4: outcome, 7: 0}


def test_a_reset_lets_encoder_items_go():
    options = {
        "encoder": {"budget": 16, "cache_size": 16},
        "async_scheduling": True,
        "pauses": [[1, 1], [3, 0]],
        "resets": [[1, 1]],
        "max_num_batched_tokens": 4,
    }
    steps = played(options, request("a", 12, mm=[{"hash": "x", "offset": 2, "length": 8}]))
    assert [step["ecb2"] for step in steps[:2]] == [8, 16]
    assert steps[1]["reset"] == 1


def test_a_reset_flushes_what_is_stored_of_who_is_preempted():
    offloading = {"kind": "offloading", "cpu_chunks": 20, "store_steps": 9}
    options = {"connector": offloading, "resets": [[2, 1]]}
    steps = played(options, request("a", 16, max_tokens=20))
    (job, *_), *_ = value(steps, "sj")[1]
    assert value(steps, "fl") == (2, [job])


def test_a_reset_takes_further_keys_away_too():
    groups = [{"type": "full", "block_size": 8}, {"type": "mla", "block_size": 4}]
    options = {"groups": groups, "kv_events": True, "resets": [[9, 0]]}
    rows = [request("a", 22), request("b", 22, step=12, segment=ord("a"))]
    steps = played(options, *rows)
    assert value(steps[4:], "reset") == (12, 1)
    assert value(steps[4:], "new")[1][0][1] == 0
    (event, *_) = value(steps[4:], "ev")[1]
    assert event == ["AllBlocksCleared"]


@pytest.mark.parametrize("eviction", ["lru", "fifo", "lfu", "sieve", "s3fifo"])
def test_the_free_queue_keeps_its_order(eviction):
    config = CaseConfig.model_validate(SMALL | {"eviction": eviction})
    rows = [request("a", 30), request("b", 21), request("c", 9)]
    workload = Workload.model_validate({"requests": rows})
    table = np.zeros(3, dtype=REQUESTS)
    replica = Replica(0, parts_of(config), contents_of_case(workload), table, start_time=0.0)
    replica.submit(np.arange(3), np.zeros(3))
    replica.advance(float("inf"))
    queue = list(replica.kv.pool.free_queue())
    assert replica.kv.pool.hashed_blocks()
    assert replica.reset_prefix_cache(with_running=False) == 1
    assert list(replica.kv.pool.free_queue()) == queue
    assert not list(replica.kv.pool.hashed_blocks())
    replica.check_integrity()


def test_a_stop_token_that_was_dropped_ends_nothing():
    """The fourth token is under way at the reset; who was to end with it goes on to its length."""
    ends = {}
    for stop in (4, 5):
        steps = played(
            {"async_scheduling": True, "resets": [[4, 1]]},
            request("a", 8, max_tokens=9, stop_at=stop),
        )
        ends[stop] = value(steps, "fin")[0]
    assert ends == {4: 10, 5: 5}


@pytest.mark.parametrize(
    ("answer", "hit"), [([[16000, 0, 3], [16000, 4, 6]], 16), ([[16000, 0, 9]], 8)]
)
def test_a_prompt_hits_an_answer_by_the_numbers_of_its_tokens(answer, hit):
    """The token numbered 3 was dropped: it is nowhere in the answer."""
    later = request("b", 8, step=20, segment=ord("a"), max_tokens=1)
    later["segments"] += answer
    options = {"async_scheduling": True, "resets": [[4, 1]]}
    steps = played(options, request("a", 8, max_tokens=9), later)
    assert value(steps[9:], "new")[1][0][1] == hit


def test_who_drops_drops_on_while_older_output_is_under_way():
    config = CaseConfig.model_validate(SMALL | {"resets": [[99, 1]]})
    workload = Workload.model_validate({"requests": [request("a", 8)]})
    contents = contents_of_case(workload)
    number_tokens(contents)
    replica = Replica(0, parts_of(config), contents, np.zeros(1, REQUESTS), start_time=0.0)
    one, state = Request(0), replica.state
    for num_stale, drops in ((3, 1), (0, 0)):
        state.trace.drops_stale[0], one.num_stale_tokens = 1, num_stale
        reset_dropping(state, one)
        assert state.trace.drops_stale[0] == drops


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"resets": [[2, 1]], "scheduler": "orca"}, "resets: scheduler 'orca' knows none"),
        ({"pauses": [[2, 1]], "scheduler": "orca"}, "pauses: scheduler 'orca' knows none"),
        ({"pauses": [[2, 3]]}, "less than or equal to 2"),
        (
            {
                "resets": [[2, 1]],
                "allocator": "contiguous-max",
                "layers": [["full", None, 2]],
                "kv_cache_bytes": 4000,
            },
            "resets: allocator 'contiguous-max' has no prefix cache",
        ),
    ],
)
def test_what_a_case_cannot_do_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        CaseConfig.model_validate(SMALL | options)


def random_case(seed):
    draw = random.Random(seed)
    role = draw.choice([None, "kv_producer", "kv_consumer", "kv_both"])
    at = draw.sample(range(2, 40), 6)
    pauses = [*sorted([[at[0], 1], [at[1], 0], [at[2], 2]]), [45, 0]]
    options = {
        "async_scheduling": draw.random() < 0.7,
        "policy": draw.choice(["fcfs", "priority"]),
        "num_gpu_blocks": draw.choice([24, 40]),
        "connector": role and fake(role),
        "resets": [[step, draw.randint(0, 1)] for step in at[3:]],
        "pauses": pauses if draw.random() < 0.5 else [],
        "kv_events": draw.random() < 0.5,
        "groups": draw.choice([None, [{"type": "sliding_window", "block_size": 4, "window": 9}]]),
    }
    rows = []
    for k in range(draw.randint(1, 8)):
        row = request(
            f"r{k}",
            draw.randint(1, 50),
            step=draw.randint(0, 25),
            max_tokens=draw.randint(1, 12),
            segment=draw.randint(0, 1),
            skip_read=draw.randint(0, 1),
            priority=draw.randint(0, 2),
        )
        if draw.random() < 0.3:
            row["stop_at"] = draw.randint(1, 6)
        if draw.random() < 0.2:
            row["abort_step"] = row["arrival_step"] + draw.randint(0, 12)
        if role and draw.random() < 0.5:
            row["kv"] = {"ext_tokens": draw.randint(1, 40), "load_steps": draw.randint(0, 4)}
        rows.append(row)
    return options, rows


@pytest.mark.parametrize("seed", range(60))
def test_random_resets_and_pauses_keep_the_invariants(seed):
    options, rows = random_case(seed)
    steps = played(options, *rows)
    ended = [name for step in steps for name in (*step.get("fin", ()), *step.get("abt", ()))]
    assert len(ended) == len(set(ended))
    gone = {row["id"] for row in rows if row.get("abort_step")}
    assert {row["id"] for row in rows} - gone <= set(ended)


@pytest.mark.slow
def test_both_engines_reset_and_pause_alike():
    for seed in range(60):
        options, rows = random_case(seed)
        steps = played(options, *rows)
        assert steps == played(options, *rows, check=False, compiled=True)
