"""The tokens of unique prompts, against all prefixes written out."""

from __future__ import annotations

import numpy as np
from hypothesis import given

import kvsim
import workloads
from kvsim import Trace
from kvsim.fleet.prefix_index.working_set import unique_prompt_tokens
from kvsim.report.fleet import fleet_lines
from tests.strategies import traces


def written_out(trace: Trace) -> int:
    """Count different prefixes of prompts, token by token."""
    seen = set()
    for row in range(len(trace)):
        prefix: tuple[object, ...] = (str(trace.cache_salt[row]), int(trace.lora_id[row]))
        for content, start, length in trace.segments_of(row):
            for place in range(start, start + length):
                prefix = (hash(prefix), content, place)
                seen.add(prefix)
    return len(seen)


@given(trace=traces(max_requests=12))
def test_it_counts_what_prompts_begin_with_together_once(trace: Trace) -> None:
    assert unique_prompt_tokens(trace) == written_out(trace)


def test_cuts_and_salts() -> None:
    whole, cut, other = [(7, 0, 9)], [(7, 0, 4), (7, 4, 5)], [(7, 0, 4), (8, 0, 3)]
    longer = [(7, 0, 9), (9, 2, 6)]

    def tokens(*prompts: list[tuple[int, int, int]], salts: list[int] | None = None) -> int:
        lengths = [sum(length for _, _, length in prompt) for prompt in prompts]
        n = len(prompts)
        return unique_prompt_tokens(
            Trace.from_arrays([0.0] * n, lengths, [1] * n, segments=prompts, cache_salt=salts)
        )

    assert tokens(whole) == 9
    assert tokens(whole, cut) == 9
    assert tokens(whole, other) == 12
    assert tokens(whole, cut, other, longer, longer) == 18
    assert tokens(whole, cut, salts=[0, 1]) == 18


def test_who_was_not_sent_does_not_count() -> None:
    trace = Trace.from_arrays([0.0] * 3, [9] * 3, [1] * 3, segments=[[(k, 0, 9)] for k in range(3)])
    assert unique_prompt_tokens(trace, np.array([True, False, True])) == 18
    alone = Trace.from_arrays([0.0] * 3, [9, 8, 7], [1] * 3)
    assert unique_prompt_tokens(alone, np.array([True, False, True])) == 16


def test_it_is_the_arithmetic_of_groups_and_questions() -> None:
    """150 groups with 6,000 tokens each, five questions of 1,200: 1.8 M tokens."""
    prompts = [[(g, 0, 6000), (1000 + 5 * g + q, 0, 1200)] for g in range(150) for q in range(5)]
    trace = Trace.from_arrays(np.zeros(1500), [7200] * 1500, [1] * 1500, segments=prompts * 2)
    assert unique_prompt_tokens(trace) == 150 * 6000 + 750 * 1200


def test_a_fleet_tells_what_it_has_room_for() -> None:
    options = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "num_gpu_blocks_override": 1001}
    trace = workloads.shared_prefix(
        num_requests=30, request_rate=5.0, num_prefixes=2, prefix=1000, suffix=10, output=2
    )
    result = kvsim.simulate(trace, data_parallel_size=2, **options)
    assert result.summary["routing"]["unique_prompt_tokens"] == unique_prompt_tokens(trace)
    told = "\n".join(fleet_lines(result.summary))
    assert "unique prompts 2,300 tokens; a replica holds 16,000, all 2 of them 32,000" in told
    assert "busiest replica" in told
    alone = kvsim.simulate(trace, **options)
    assert "unique prompts" not in "\n".join(fleet_lines(alone.summary))
