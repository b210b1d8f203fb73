"""Encoder inputs: rules that no recorded schedule decides."""

from itertools import islice

import numpy as np
import pytest

from kvsim.cases.case import Case, CaseConfig, Workload
from kvsim.cases.contents import contents_of_case
from kvsim.cases.play import parts_of, play
from kvsim.engine.replica import Replica
from kvsim.results.tables import REQUESTS, FinishReason
from kvsim.rules.arrival import describe
from kvsim.rules.vllm.encoder import (
    begin_encoding,
    choose_items,
    encode_items,
    return_items,
)
from kvsim.sched.encoder import check_encoder

LIMITS = {
    "num_gpu_blocks": 100,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 24,
    "max_model_len": 128,
    "block_size": 8,
}
LOOKING_AHEAD = {"method": "eagle", "k": 1}


def config(budget=64, cache_size=64, disable_chunked_mm_input=False, **changes):
    encoder = {
        "budget": budget,
        "cache_size": cache_size,
        "disable_chunked_mm_input": disable_chunked_mm_input,
    }
    return CaseConfig.model_validate({**LIMITS, "encoder": encoder, **changes})


def workload(*prompts, every=0, max_tokens=2):
    """Requests of one content, given by length and items (hash, offset, length)."""
    requests = [
        {
            "id": f"r{k}",
            "arrival_step": k * every,
            "segments": [[1, length]],
            "max_tokens": max_tokens,
            "mm": [{"hash": h, "offset": o, "length": n} for h, o, n in items],
        }
        for k, (length, items) in enumerate(prompts)
    ]
    return Workload.model_validate({"requests": requests})


def steps(config, workload, count):
    return list(islice(play(config, workload, check=True), count))


def test_a_whole_item_that_exceeds_the_chunk_it_begins_is_not_cut():
    """So an item longer than any chunk blocks its request for ever."""
    given = workload((60, [("a", 8, 40)]))
    first, *rest = steps(config(disable_chunked_mm_input=True), given, 4)
    assert first["sch"] == [["r0", 8]]
    assert all(step["sch"] == [] for step in rest)


def test_a_whole_item_may_be_the_chunk():
    given = workload((60, [("a", 8, 24)]))
    scheduled = [s["sch"][0][1] for s in steps(config(disable_chunked_mm_input=True), given, 2)]
    assert scheduled == [8, 24]


def test_an_item_may_fill_the_cache_and_no_larger_one_is_encoded():
    given = workload((20, [("a", 4, 12)]))
    assert steps(config(cache_size=12), given, 1)[0]["sch"] == [["r0", 20]]
    assert steps(config(cache_size=11), given, 1)[0]["sch"] == [["r0", 4]]


def test_a_drafter_reads_the_item_behind_the_chunk():
    given = workload((60, [("a", 24, 10)]))
    assert steps(config(), given, 1)[0].get("enc") is None
    assert steps(config(spec=LOOKING_AHEAD), given, 1)[0]["enc"] == {"r0": [0]}


def test_a_chunk_ends_where_its_drafter_need_not_read_a_whole_item():
    given = workload((60, [("a", 16, 20)]))
    whole = config(disable_chunked_mm_input=True, spec=LOOKING_AHEAD)
    assert steps(whole, given, 1)[0]["sch"] == [["r0", 15]]


def hit_of_the_second(first, second, **changes):
    given = workload((40, first), (40, second), every=6)
    logged = steps(config(**changes), given, 9)
    return next(step["new"][0][1] for step in logged if step["s"] == 6)


@pytest.mark.parametrize(
    ("first", "second", "hit"),
    [
        ([("a", 8, 4)], [("a", 8, 4)], 32),
        ([("a", 8, 4)], [("b", 8, 4)], 8),
        ([("a", 8, 4)], [("a", 9, 4)], 8),
        ([("a", 8, 4)], [], 8),
        ([("a", 4, 8)], [("b", 4, 8)], 0),
        ([("a", 14, 4)], [("b", 14, 4)], 8),
        ([("a", 15, 1)], [("b", 15, 1)], 8),
        ([("a", 16, 1)], [("b", 16, 1)], 16),
    ],
)
def test_a_block_is_named_by_the_items_in_it_and_where_they_begin(first, second, hit):
    assert hit_of_the_second(first, second) == hit


def test_a_name_that_looks_ahead_covers_the_items_there():
    assert hit_of_the_second([("a", 17, 2)], [("b", 17, 2)], spec=LOOKING_AHEAD) == 16
    assert hit_of_the_second([("a", 16, 2)], [("b", 16, 2)], spec=LOOKING_AHEAD) == 8


def replica_of(config, workload):
    table = np.zeros(len(workload.requests), dtype=REQUESTS)
    replica = Replica(0, parts_of(config), contents_of_case(workload), table, start_time=0.0)
    state = replica.state
    for row in range(len(workload.requests)):
        describe(state, state.requests[row], row)
    begin_encoding(state)
    return state


def choose(state, k):
    return choose_items(state, state.requests[k], 0, 40)


def test_a_victim_gives_its_budget_back_and_leaves_its_items():
    given = workload((40, [("a", 4, 20)]), (40, [("a", 4, 20)]), (40, [("b", 4, 30)]))
    state = replica_of(config(budget=32), given)
    assert choose(state, 0) == 40
    encode_items(state, 0)
    assert choose(state, 2) == 4  # no budget for it
    return_items(state, 0)
    check_encoder(state)
    assert choose(state, 2) == 40
    encode_items(state, 2)
    assert choose(state, 1) == 40  # its item is there, and needs no budget
    check_encoder(state)


def test_what_a_victim_gives_back_is_lost_to_who_chose_before():
    given = workload((40, [("a", 4, 20)]), (40, [("b", 4, 10)]), (40, [("c", 4, 20)]))
    state = replica_of(config(budget=32), given)
    choose(state, 0)
    encode_items(state, 0)
    choose(state, 1)
    return_items(state, 0)
    encode_items(state, 1)
    assert choose(state, 2) == 4


def test_a_request_that_ends_lets_its_items_go():
    """Asynchronously, its last prompt token counts as under way when the first one comes."""
    given = workload((16, [("a", 8, 8)]), max_tokens=1)
    last = steps(config(async_scheduling=True), given, 9)[-1]
    assert (last["ecf2"], last["ecb2"]) == (56, 64)


def test_a_request_that_is_rejected_lets_its_items_go():
    """It had found its first item, but no chunk holds the second one, which its drafter reads."""
    given = workload((16, [("a", 4, 5)]), (48, [("a", 4, 5), ("b", 9, 31)]))
    parts = parts_of(config(disable_chunked_mm_input=True, spec=LOOKING_AHEAD))
    table = np.zeros(2, dtype=REQUESTS)
    replica = Replica(0, parts, contents_of_case(given), table, start_time=0.0)
    replica.submit(np.arange(2), np.array([0.0, 50.0]))
    replica.advance(float("inf"))
    assert table["finish_reason"].tolist() == [FinishReason.FINISHED, FinishReason.REJECTED]
    assert replica.state.encoder.num_reclaimable_tokens == 64


def test_items_lie_in_the_prompt_in_order():
    for items in ([("a", 9, 4), ("b", 2, 4)], [("a", 12, 5)]):
        with pytest.raises(ValueError, match="mm must lie in the prompt, by offset"):
            Case(config=config(), workload=workload((16, items)), steps=[{"s": 0}])
