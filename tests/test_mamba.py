"""States of Mamba layers and other caches beside attention: what no recorded schedule decides."""

import random

import pytest

import kvsim
from kvsim.cases.case import Case, CaseConfig, Workload
from kvsim.cases.play import play
from kvsim.kv.block_pool import BlockPool
from kvsim.kv.paged import PagedManager
from kvsim.records.memory import head
from kvsim.records.record import NONE
from kvsim.records.request import Request
from kvsim.rules.blocks import paged
from kvsim.rules.blocks.attention import num_skipped, run_length
from kvsim.rules.blocks.checkpoint import allows_checkpoint, first_stop, last_state
from kvsim.rules.blocks.keys import extend_keys
from kvsim.rules.blocks.mamba import (
    begin_states,
    is_new,
    is_pinned,
    release_copies,
    states_to_admit,
    states_to_grow,
)
from kvsim.rules.blocks.paged import need_to_admit, need_to_grow
from kvsim.rules.blocks.partial_keys import copy_own, name_part
from kvsim.rules.blocks.pool import append_blocks, cache, forget
from kvsim.rules.blocks.prefix import find_inside, find_window
from kvsim.rules.blocks.slots import num_slots
from kvsim.rules.blocks.window import drop_gap
from kvsim.trace import Trace

UNIT, BLOCK = 4, 16


def group(kind, block_size=BLOCK, **fields):
    return {"type": kind, "block_size": block_size, **fields}


def config_of(groups, **fields):
    given = {
        "num_gpu_blocks": 60,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 256,
        "block_size": BLOCK,
        "groups": groups,
    }
    return CaseConfig.model_validate(given | fields)


def request(name, *segments, step=0, max_tokens=4, **fields):
    return {
        "id": name,
        "arrival_step": step,
        "segments": list(segments),
        "max_tokens": max_tokens,
        **fields,
    }


def steps_of(config, *requests, **options):
    workload = Workload.model_validate({"requests": list(requests)})
    return list(play(config, workload, check=True, **options))


def admissions(steps):
    """Return hit and tables of every admission, by name."""
    return {row[0]: row[1:] for step in steps for row in step.get("new", ())}


def random_groups(draw):
    """Return groups that go together, and the settings that they need."""
    block, mode = draw.choice([4, 8, 16]), draw.choice(["align", "align", "align", "none"])
    state = group(
        "mamba",
        256 if mode == "none" else block,
        mode=mode,
        spec_blocks=draw.choice([0, 2]),
        checkpoint_blocks=draw.choice([0, 1]),
        checkpoint_alignment=draw.choice([1, block]),
    )
    groups = [state | {"eagle": draw.random() < 0.3} for _ in range(draw.choice([1, 2]))]
    groups.append(draw.choice([group("full", block, eagle=True), group("mla", block)]))
    others = [
        group("ring", block),
        group("rswa", block, window=2 * block),
        group(
            "sliding_window", block, window=2 * block + 1, extra_retained=draw.choice([0, block])
        ),
    ]
    groups += [other for other in others if draw.random() < 0.25]
    draw.shuffle(groups)
    drops = draw.random() < 0.5
    spec = {"method": "mtp", "k": 2, "disable_lookahead_block_hashes": drops}
    unit = draw.choice([None, block, block // 2, block // 4])
    return {
        "groups": groups,
        "block_size": block,
        "enable_prefix_caching": mode == "align",
        "prefix_match_unit": unit if mode == "align" else None,
        "spec": spec if state["spec_blocks"] else None,
    }


def random_case(seed):
    draw = random.Random(seed)
    groups = random_groups(draw)
    blocks = len(groups["groups"]) * (256 // groups["block_size"] + 6)
    config = config_of(
        **groups,
        num_gpu_blocks=blocks // draw.choice([1, 1, 2]) + 1,
        retention_interval=draw.choice([None, 0, 4 * groups["block_size"]]),
        mamba_shared_prefix_checkpoint=draw.random() < 0.5,
        async_scheduling=draw.random() < 0.5,
        long_prefill_token_threshold=draw.choice([0, 0, 24]),
    )
    prefixes = [(1, 40), (1, 70), (2, 33), (3, 90)]
    requests = [
        request(
            f"r{k}",
            draw.choice(prefixes),
            (100 + k, draw.randint(1, 60)),
            step=draw.randint(0, 40),
            max_tokens=draw.randint(1, 40),
            accept=[draw.randint(0, 2) for _ in range(3)],
        )
        for k in range(12)
    ]
    return config, requests


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_random_groups_keep_the_invariants(seed):
    config, requests = random_case(seed)
    steps = steps_of(config, *requests)
    assert sum(len(step.get("fin", ())) for step in steps) == len(requests)


@pytest.mark.long
def test_both_engines_agree_on_random_groups():
    copied = 0
    for seed in range(20):
        config, requests = random_case(seed)
        steps = steps_of(config, *requests)
        assert steps_of(config, *requests, compiled=True) == steps, seed
        copied += sum(len(step.get("cow", ())) for step in steps)
    assert copied > 15


@pytest.mark.long
def test_a_quiet_request_would_change_nothing(monkeypatch):
    """Growing at every step, and naming at every output, comes to the same."""
    cases = [random_case(seed) for seed in range(12)]
    ngram = {"spec": {"method": "ngram", "k": 2}, "async_scheduling": False}
    for config, requests in cases[:]:
        if config.spec:  # with names at multiples alone, and steps without drafts
            given = config.model_dump(exclude_unset=True) | ngram
            few = [r | {"drafts": [0, 0, 0, 2]} for r in requests]
            cases.append((config_of(**given), few))
    quiet = [steps_of(config, *requests) for config, requests in cases]
    set_next_bookkeeping, calls = paged.set_next_bookkeeping, []

    def never_quiet(kv, request, own_blocks):
        set_next_bookkeeping(kv, request, own_blocks)
        calls.append(request.next_bookkeeping_at > request.num_tokens)
        request.next_bookkeeping_at = 0

    monkeypatch.setattr(paged, "set_next_bookkeeping", never_quiet)
    for k, (config, requests) in enumerate(cases):
        assert steps_of(config, *requests) == quiet[k], k
    assert sum(calls) > 200


def refusal_of(groups, **fields):
    with pytest.raises(ValueError, match="Value error") as refused:
        config_of(groups, **fields)
    return str(refused.value)


@pytest.mark.parametrize(
    ("groups", "fields", "reason"),
    [
        ([group("mamba", mode="none")], {}, "none keeps no states to hit"),
        ([group("mamba")], {"enable_chunked_prefill": False}, "turn enable_chunked_prefill on"),
        ([group("mamba")], {"mamba_cache_mode": "none"}, "all mamba groups have one mode"),
        ([group("mamba"), group("mamba", checkpoint_blocks=1)], {}, "and the same checkpoints"),
        ([group("full"), group("mamba")], {"prefix_match_unit": 5}, "5 does not divide"),
        ([group("ring"), group("full")], {"scheduler": "orca"}, "need scheduler vllm"),
        ([group("rswa", window=9), group("full")], {"eviction": "lfu"}, "eviction lru"),
        ([group("full", replay=True)], {}, "only groups with a sliding window"),
        ([group("rswa")], {}, "needs its window or chunk"),
        (
            [group("sliding_window", window=w, replay=True) for w in (8, 9)],
            {},
            "windows that are replayed have one length",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(groups, fields, reason):
    assert reason in refusal_of(groups, **fields)


def test_a_case_with_such_groups_is_written_as_it_was_read():
    config, requests = random_case(1)
    case = Case(config=config, workload={"requests": requests}, steps=[{"s": 0}])
    assert Case.model_validate(case.model_dump()).config == config


def kv_of(groups=None, **fields):
    """Return the memory of groups that match parts of a block."""
    groups = [group("mamba"), group("full")] if groups is None else groups
    return PagedManager(config_of(groups, prefix_match_unit=UNIT, **fields).kv_config)


def blocks_of(kv, group, count):
    table = kv.request_blocks[0].tables[group]
    append_blocks(kv.pool, kv.groups[group], table, count)
    return head(table.blocks, count)


def test_states_take_no_slots_to_look_ahead():
    spec = {"method": "mtp", "k": 2}
    manager = kv_of([group("mamba", spec_blocks=2), group("full")], spec=spec)
    one = Request(num_prompt_tokens=BLOCK - 1, max_tokens=40)
    assert manager.allocate_slots(one, BLOCK - 1)
    one.num_computed_tokens, kv = BLOCK - 1, manager.kv
    table = kv.request_blocks[one.own_blocks].tables[0]
    assert states_to_grow(kv, one, kv.groups[0], table, BLOCK) == 0
    assert states_to_grow(kv, one, kv.groups[0], table, BLOCK + 1) == 1
    # The blocks of attention for what is looked ahead are there; no state is taken for it.
    assert num_slots(kv, one, BLOCK) > BLOCK
    assert need_to_grow(kv, one, kv.request_blocks[one.own_blocks], BLOCK) == 0


def test_a_copy_takes_a_block_of_its_own():
    manager = kv_of()
    kv, one = manager.kv, Request(num_prompt_tokens=40, max_tokens=40)
    own_blocks = kv.request_blocks[0]
    for g in range(2):
        own_blocks.tables[g].blocks[0], own_blocks.tables[g].blocks[1] = blocks_of(kv, g, 2)
        kv.pool.blocks[own_blocks.tables[g].blocks[1]].ref_cnt = 1
    inside = BLOCK + UNIT
    assert states_to_admit(kv, own_blocks, 0, 2 * BLOCK, inside) == 1  # the copy
    assert states_to_admit(kv, own_blocks, 0, 40, inside) == 2
    assert states_to_admit(kv, own_blocks, 0, 40, 2 * BLOCK) == 1
    states = states_to_admit(kv, own_blocks, 0, 40, inside)
    assert (
        need_to_admit(kv, own_blocks, 40, 40, inside, inside, False) == states + 2
    )  # one is copied
    assert manager.allocate_slots(one, 28)
    one.num_computed_tokens = 28
    table = kv.request_blocks[one.own_blocks].tables[0]
    assert kv.states.pending[one.own_blocks * 2] == NONE
    kv.states.pending[one.own_blocks * 2] = 1
    assert states_to_grow(kv, one, kv.groups[0], table, 32) == 1
    assert states_to_grow(kv, one, kv.groups[0], table, 33) == 2


def test_a_content_is_new_if_any_block_got_it_in_this_step():
    kv = kv_of().kv
    old, new = blocks_of(kv, 0, 2)
    begin_states(kv)
    cache(kv.pool, old, 7)
    kv.states.named_in[old] = kv.states.step
    begin_states(kv)
    assert not is_new(kv, old)
    cache(kv.pool, new, 7)
    kv.states.named_in[new] = kv.states.step
    assert is_new(kv, old)


def test_the_copy_of_a_state_takes_its_key_as_of_this_step():
    kv = kv_of().kv
    (source,) = blocks_of(kv, 0, 1)
    cache(kv.pool, source, 7)
    begin_states(kv)
    copy_own(kv, kv.groups[0], source)
    copy = kv.states.copies.blocks[0]
    assert not kv.pool.blocks[source].hashed
    assert kv.pool.blocks[copy].key == 7
    assert is_new(kv, copy)
    assert (kv.pool.blocks[source].ref_cnt, kv.pool.blocks[copy].ref_cnt) == (2, 1)
    release_copies(kv)
    assert (kv.pool.blocks[source].ref_cnt, kv.pool.blocks[copy].ref_cnt) == (1, 0)
    assert kv.pool.num_cached == 1


def test_copies_go_group_by_group_each_source_before_its_copy():
    kv = kv_of().kv
    sources = [blocks_of(kv, g, 1)[0] for g in (1, 0)]
    begin_states(kv)
    for g, source in zip((1, 0), sources, strict=True):
        cache(kv.pool, source, 7)
        copy_own(kv, kv.groups[g], source)
        kv.pool.blocks[source].ref_cnt -= 1  # its request is preempted in this step
    copies = [kv.states.copies.blocks[0], kv.states.copies.blocks[2]]
    release_copies(kv)
    assert list(BlockPool.over(kv).free_queue())[-2:] == [copies[1], copies[0]]
    assert list(BlockPool.over(kv).free_queue())[:2] == sources


def test_an_interval_below_a_block_keeps_every_state():
    config = config_of([group("mamba"), group("full")], retention_interval=BLOCK // 2)
    last = steps_of(config, request("a", (1, 20), max_tokens=30))[-1]
    assert last["nh"] == 6  # three blocks are full in either group


def test_a_threshold_below_a_block_cuts_chunks_anywhere():
    config = config_of([group("mamba"), group("full")], long_prefill_token_threshold=8)
    steps = steps_of(config, request("a", (1, 40)), request("b", (2, 40)))
    assert steps[0]["sch"] == [["a", 8], ["b", 8]]


def test_an_admission_cut_at_a_block_has_no_drafts():
    groups = [group("mamba", 4, spec_blocks=2), group("full", 4)]
    config = config_of(groups, block_size=4, prefix_match_unit=1, spec={"method": "ngram", "k": 2})
    steps = steps_of(config, request("a", (1, 16), max_tokens=1), request("b", (1, 16), step=9))
    (first,) = [step for step in steps if step.get("new", [["a"]])[0][0] == "b"]
    assert first["new"][0][1] == 15
    assert first["sch"] == [["b", 1]]
    assert not first.get("sd")


def test_a_prompt_computed_again_does_not_stop_at_its_own_last_unit():
    kv = kv_of().kv
    again = Request(num_prompt_tokens=30, num_tokens=50, max_tokens=40)
    assert last_state(kv, 30, UNIT) == 28
    assert first_stop(kv, again, 16, 50, 49) == 48
    first = Request(num_prompt_tokens=30, max_tokens=40)
    assert first_stop(kv, first, 16, 30, 30) == 28


def test_a_chunk_with_a_checkpoint_counts_blocks_to_a_shared_prefix_from_its_start():
    kv = kv_of([group("mamba", checkpoint_blocks=1), group("full")]).kv
    one = Request(num_prompt_tokens=90, max_tokens=4)
    one.shared_prefix_boundary = 60
    assert first_stop(kv, one, 4, 90, 90) == 4 + 48
    one.shared_prefix_boundary = 0
    assert first_stop(kv, one, 4, 90, 90) == 90


def test_names_that_look_ahead_leave_a_state_before_what_they_cover():
    spec = {"method": "mtp", "k": 3, "mtp_modules": 3}
    kv = kv_of([group("mamba", spec_blocks=3), group("full")], spec=spec).kv
    assert [last_state(kv, n, UNIT) for n in (18, 19, 20)] == [12, 16, 16]


@pytest.mark.parametrize(
    ("others", "parts"),
    [
        ([group("full")], True),
        ([group("rswa", window=9), group("mla", 8)], True),
        ([group("full"), group("sliding_window", UNIT, window=9)], True),
        ([group("full"), group("sliding_window", 8, window=9)], False),
        ([group("full"), group("ring", 8)], True),
    ],
)
def test_hits_end_inside_a_block_where_every_group_can_follow(others, parts):
    assert kv_of([group("mamba"), *others]).kv.matches_partially == parts


def test_full_attention_goes_on_to_the_longest_part_of_a_block():
    kv = kv_of().kv
    one, own_blocks = Request(num_prompt_tokens=50, max_tokens=4), kv.request_blocks[1]
    extend_keys(own_blocks, one, 12, UNIT, 0)
    full = next(s for s in kv.specs if s.kind == 0)
    short, long = blocks_of(kv, 1, 2)
    cache(kv.pool, short, own_blocks.keys[4])
    cache(kv.pool, long, own_blocks.keys[6])
    assert find_inside(kv, own_blocks, full, BLOCK, 49) == BLOCK + 3 * UNIT
    assert own_blocks.tables[1].blocks[1] == long
    assert find_inside(kv, own_blocks, full, BLOCK, BLOCK + 2 * UNIT) == BLOCK + UNIT
    assert own_blocks.tables[1].blocks[1] == short


def test_a_shorter_key_stands_beside_a_longer_one_and_goes_with_its_block():
    kv = kv_of().kv
    one, own_blocks = Request(num_prompt_tokens=50, max_tokens=4), kv.request_blocks[1]
    extend_keys(own_blocks, one, 12, UNIT, 0)
    (block,) = blocks_of(kv, 1, 1)
    name_part(kv, own_blocks, block, 6, 4)
    assert kv.pool.blocks[block].key == own_blocks.keys[5]
    name_part(kv, own_blocks, block, 7, 4)  # replaces the shorter one
    assert kv.pool.blocks[block].key == own_blocks.keys[6]
    full = next(s for s in kv.specs if s.kind == 0)
    assert find_inside(kv, own_blocks, full, BLOCK, BLOCK + 2 * UNIT) == BLOCK
    forget(kv.pool, block)
    cache(kv.pool, block, own_blocks.keys[7])  # the whole block
    name_part(kv, own_blocks, block, 6, 4)
    name_part(kv, own_blocks, block, 6, 4)
    assert find_inside(kv, own_blocks, full, BLOCK, BLOCK + 2 * UNIT) == BLOCK + 2 * UNIT
    assert own_blocks.tables[1].blocks[1] == block
    assert kv.pool.places[kv.pool.first_hash_aliases[block]].next == NONE  # one card


CHECKPOINTS = [group("mamba", checkpoint_blocks=1, checkpoint_alignment=8), group("full")]


@pytest.mark.parametrize(
    ("start", "end", "place", "allowed"),
    [
        (0, 40, 32, True),
        (0, 40, 36, False),  # not at the kernel's alignment
        (2, 40, 34, False),  # the chunk begins inside a unit
        (16, 48, 40, True),
        (20, 48, 44, False),  # the state would take the slot of the one before
        (0, 40, 0, False),
        (0, 40, 40, False),
    ],
)
def test_where_a_chunk_may_leave_a_state(start, end, place, allowed):
    assert allows_checkpoint(kv_of(CHECKPOINTS).kv, BLOCK, start, end, place) == allowed


def test_a_state_left_inside_a_chunk_is_hit():
    config = config_of(CHECKPOINTS, prefix_match_unit=UNIT, max_num_batched_tokens=128)
    prompt = (1, 90)
    steps = steps_of(config, request("a", prompt), request("b", prompt, (2, 5), step=9))
    assert steps[0]["sch"] == [["a", 90]]
    assert admissions(steps)["b"][0] == 88


def test_a_state_left_inside_a_chunk_that_no_hit_needs_has_no_key():
    groups = [group("mamba", checkpoint_blocks=1), group("full")]
    config = config_of(
        groups, prefix_match_unit=UNIT, max_num_batched_tokens=56, retention_interval=BLOCK
    )
    first = steps_of(config, request("a", (1, 90)))[0]
    assert first["sch"] == [["a", 48]]
    assert first["nh"] == 3 + 1  # the left state covers 44 tokens


def test_a_state_left_where_a_prefix_is_shared_is_kept():
    kv = kv_of(CHECKPOINTS).kv
    one = Request(num_prompt_tokens=90, max_tokens=4)
    assert [is_pinned(kv, kv.groups[0], one, end) for end in (44, 88)] == [False, True]
    one.shared_prefix_boundary = 44
    assert is_pinned(kv, kv.groups[0], one, 44)


def test_what_is_never_cached_sets_no_unit_of_names_but_aligns():
    kv = PagedManager(config_of([group("full"), group("ring", 24)]).kv_config).kv
    assert (kv.hash_block_size, kv.alignment, kv.num_specs) == (16, 48, 1)


def test_mla_hits_by_itself():
    kv = PagedManager(config_of([group("full"), group("mla"), group("mla")]).kv_config).kv
    assert [spec.num_groups for spec in list(kv.specs)[: kv.num_specs]] == [1, 2]


def test_r_swa_keeps_the_block_in_which_a_prompt_ends():
    kv = PagedManager(config_of([group("rswa", window=8)], num_gpu_blocks=20).kv_config).kv
    blocks = blocks_of(kv, 0, 5)
    one, table = Request(num_prompt_tokens=20, max_tokens=60), kv.request_blocks[0].tables[0]
    drop_gap(kv, one, kv.groups[0], table, 55)
    assert head(table.blocks, 5) == blocks  # its window begins in the third block
    drop_gap(kv, one, kv.groups[0], table, 56)
    assert head(table.blocks, 5) == [*blocks[:2], 0, *blocks[3:]]
    drop_gap(kv, one, kv.groups[0], table, 73)
    assert head(table.blocks, 5) == [*blocks[:2], 0, 0, blocks[4]]


def test_retained_tokens_stay_in_the_window_but_no_hit_needs_them():
    groups = [group("full"), group("sliding_window", window=33, extra_retained=16)]
    kv = PagedManager(config_of(groups).kv_config).kv
    one, own_blocks = Request(num_prompt_tokens=100, max_tokens=4), kv.request_blocks[1]
    extend_keys(own_blocks, one, 6, BLOCK, 0)
    for place, block in enumerate(blocks_of(kv, 1, 3), start=2):
        cache(kv.pool, block, own_blocks.keys[place])
    blocks, spec = own_blocks.tables[1].blocks, kv.specs[1]
    assert find_window(kv, own_blocks, spec, 99, False) == 5 * BLOCK
    assert [blocks[place] > 0 for place in range(5)] == [False, False, False, True, True]
    assert run_length(kv.groups[1].kind, kv.groups[1]) == 2
    assert num_skipped(kv.groups[1].kind, kv.groups[1].window, 5 * BLOCK) == 32
    assert kv.groups[1].admission_cap == -(-(33 - 1 + 16 + 64) // BLOCK) + 1


@pytest.mark.parametrize("pipeline_parallel_size", [1, 2])
def test_a_request_holds_one_state_more_for_each_further_step_in_flight(pipeline_parallel_size):
    """Three steps of a prompt, each at the end of a block: the invariants know that."""
    trace = Trace.from_arrays([0.0, 0.1], [1500, 2500], [4, 9])
    result = kvsim.simulate(
        trace,
        model="qwen3-next-80b-a3b",
        gpu="b200",
        pipeline_parallel_size=pipeline_parallel_size,
        max_num_batched_tokens=544,
        max_num_seqs=4,
        max_model_len=8192,
        num_gpu_blocks_override=400,
        backend="python",
        check_invariants=True,
    )
    assert result.summary["completed"] == 2
