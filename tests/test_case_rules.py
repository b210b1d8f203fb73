"""Rules that recorded schedules show in part: names under drafts, copies behind fences, aborts."""

from pathlib import Path

import numpy as np
import pytest

from kvsim.cases.case import CaseConfig, Workload
from kvsim.cases.contents import contents_of_case
from kvsim.cases.play import parts_of, play
from kvsim.cases.recorded import read_case
from kvsim.engine.replica import Replica
from kvsim.records.connector import RECEIVED
from kvsim.results.tables import REQUESTS
from kvsim.rules.connector.loading import reserved_blocks
from kvsim.rules.connector.scheduler import find_computed, promote, start_load
from kvsim.rules.engine import queue_arrivals

DATA = Path(__file__).parent / "data"


def case_of(name):
    return read_case(next(DATA.glob(f"vllm_cases*/*/{name}.json.gz")))


def with_config(case, **fields):
    config = CaseConfig.model_validate(case.config.model_dump() | fields)
    return case.model_copy(update={"config": config})


@pytest.mark.parametrize("events", [False, True])
def test_hybrids_of_uneven_blocks_round_before_keys_limit_them(events):
    """Of 128 tokens, two large blocks, 127 have keys: 7 of 16 tokens each, and no second of 64."""
    case = with_config(case_of("v02_round_then_limit"), kv_events=events, async_scheduling=True)
    (request,) = case.workload.requests
    whole = request.model_copy(update={"segments": [(1, 128)], "max_tokens": 2})
    first, *_ = play(case.config, Workload(requests=[whole]), check=True)
    assert first["sch"] == [["r0", 128]]
    assert first["nh"] == 7 + 1


@pytest.mark.parametrize("modules", [1, 2])
def test_a_state_inside_a_block_is_named_by_what_all_modules_have_seen(modules):
    """A chunk ends at 80 of 100 tokens, inside a block. With two modules 79 of them are final.

    A state that is named there is copied before the request goes on.
    """
    config = CaseConfig.model_validate(
        {
            "num_gpu_blocks": 60,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 256,
            "max_model_len": 256,
            "block_size": 32,
            "groups": [
                {"type": "mamba", "block_size": 32, "spec_blocks": 2, "eagle": True},
                {"type": "full", "block_size": 32},
            ],
            "prefix_match_unit": 16,
            "spec": {
                "method": "mtp",
                "k": 2,
                "mtp_modules": modules,
                "disable_lookahead_block_hashes": True,
            },
        }
    )
    requests = [{"id": "a", "arrival_step": 0, "segments": [[1, 100]], "max_tokens": 1}]
    steps = list(play(config, Workload.model_validate({"requests": requests}), check=True))
    assert [step["sch"][0][1] for step in steps] == [64, 16, 16, 4]
    assert any(step["cow"] for step in steps) == (modules == 1)


@pytest.mark.long
@pytest.mark.parametrize(("name", "stages"), [("s06_all", 1), ("s06_all", 3), ("s13_all", 3)])
def test_copies_of_several_steps_wait_behind_their_fences(name, stages):
    """Every block is counted again after every step; the engines agree."""
    case = case_of(name)
    connector = case.config.connector.model_copy(update={"role": "kv_both"})
    changed = with_config(case, connector=connector.model_dump(), pipeline_parallel_size=stages)
    steps = list(play(changed.config, changed.workload, check=True))
    copies = [row for step in steps if step.get("cow") for row in step.get("df", ())]
    assert copies
    assert steps[-1]["free2"] == case.config.num_gpu_blocks - 1
    assert steps == list(play(changed.config, changed.workload, compiled=True))


def replica_of(case, rows):
    contents = contents_of_case(case.workload)
    table = np.zeros(len(contents), dtype=REQUESTS)
    replica = Replica(0, parts_of(case.config), contents, table, start_time=0.0, watched=True)
    replica.submit(np.arange(rows), np.zeros(rows))
    return replica


def test_a_prompt_reserves_until_its_last_chunk_is_scheduled():
    replica = replica_of(case_of("v03_reserve_last_chunk"), 1)
    state, stops, reserved = replica.state, replica.stops(), []
    state.limits.max_num_scheduled_tokens = 12
    while state.num_generated_tokens < 2:
        next(stop for stop in stops if stop)
        reserved.append(state.connector.num_prefills)
    chunks = -(-state.num_prompts_tokens // 12)
    assert chunks > 1
    assert reserved == [1] * (2 * chunks - 2) + [0] * (len(reserved) - 2 * chunks + 2)


def test_a_load_that_has_failed_whole_reserves_nothing_any_more():
    replica = replica_of(case_of("v04_reserve_loaded_held"), 1)
    state = replica.state
    queue_arrivals(state)
    request = state.requests[state.waiting.head]
    state.connector.offered[0] = 16
    find_computed(state, request)
    assert start_load(state, request.place)
    assert reserved_blocks(state) > 0
    request.num_computed_tokens = 0
    state.connector.load[0] = RECEIVED
    assert promote(state, request)
    assert reserved_blocks(state) == 0
