"""States of Mamba layers and other caches beside attention: what no recorded schedule decides."""

import random

import pytest

from kvsim.cases.case import Case, CaseConfig, Workload
from kvsim.cases.play import play

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


@pytest.mark.parametrize("seed", range(20))
def test_random_groups_keep_the_invariants(seed):
    config, requests = random_case(seed)
    steps = steps_of(config, *requests)
    assert sum(len(step.get("fin", ())) for step in steps) == len(requests)


def test_both_engines_agree_on_random_groups():
    copied = 0
    for seed in range(60):
        config, requests = random_case(seed)
        steps = steps_of(config, *requests)
        assert steps_of(config, *requests, compiled=True) == steps, seed
        copied += sum(len(step.get("cow", ())) for step in steps)
    assert copied > 50


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
