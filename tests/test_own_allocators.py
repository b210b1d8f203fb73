"""A user's allocator as rules: known answers, one text run both ways, and what the check finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kvsim
import workloads
from kvsim.plugins.allocation import (
    AllocatorRules,
    Request,
    check_allocator,
    per_replica,
    per_request,
)
from kvsim.registry import import_file
from kvsim.testing import equal_tables

PARTS = Path(__file__).parents[1] / "docs" / "examples" / "parts"
TWO_SIZES = f"{PARTS / 'two_sizes.py'}:TwoSizes"
TwoSizes = import_file(str(PARTS / "two_sizes.py")).TwoSizes
HERE = "test_own_allocators"


class OneSize(AllocatorRules):
    """What paged does without prefix caching: blocks of one size, as they are needed."""

    used: int = per_replica()
    blocks: list[int] = per_request()

    def allocate(self, request: Request, num_tokens: int) -> int:
        return self.room_for(request, num_tokens)

    def room_for(self, request: Request, num_tokens: int) -> int:
        more = self.num_needed(num_tokens) - self.blocks[request.own_blocks]
        if self.used + more > self.num_blocks:
            return 0
        self.used += more
        self.blocks[request.own_blocks] += more
        return self.blocks[request.own_blocks] * self.block_size

    def num_needed(self, num_tokens: int) -> int:
        return (num_tokens + self.block_size - 1) // self.block_size

    def free(self, request: Request) -> None:
        self.used -= self.blocks[request.own_blocks]
        self.blocks[request.own_blocks] = 0


class Watching(OneSize):
    """Gives a request more room, if there is, by how far it is."""

    def allocate(self, request: Request, num_tokens: int) -> int:
        ahead = (request.num_computed_tokens + 2 * request.num_tokens) % 40
        room = self.room_for(request, num_tokens + ahead)
        return room if room > 0 else self.room_for(request, num_tokens)


class Leaking(OneSize):
    """Takes one block less back than it gave out."""

    def free(self, request: Request) -> None:
        self.used -= max(self.blocks[request.own_blocks] - 1, 0)
        self.blocks[request.own_blocks] = 0


class Generous(OneSize):
    """Gives out more than there is."""

    def allocate(self, request: Request, num_tokens: int) -> int:
        return num_tokens


def request(place: int, num_prompt_tokens: int) -> Request:
    made = Request(place, 0.0, num_prompt_tokens, 10)
    made.own_blocks = place
    return made


def test_two_sizes_of_blocks_share_one_memory() -> None:
    """Three large blocks of four small ones, 16 tokens each; prompts of 100 tokens are long."""
    rules = TwoSizes(ratio=4, long=100)
    rules.num_blocks, rules.block_size = 13, 16  # the last one is in no large block
    short, other, long = request(0, 20), request(1, 5), request(2, 100)
    assert rules.allocate(short, 20) == 32  # splits the first
    assert rules.allocate(other, 5) == 16
    assert rules.allocate(short, 33) == 48  # that is full now
    assert rules.allocate(long, 65) == 128  # the second and the third
    assert rules.allocate(long, 129) == 0
    assert rules.allocate(other, 17) == 0
    rules.free(short)
    assert rules.allocate(long, 129) == 0  # `other` still holds a quarter of the first
    rules.free(other)
    assert rules.allocate(long, 129) == 192
    rules.free(long)
    assert rules.allocate(short, 192) == 192


SMALL: dict[str, Any] = {"model": "llama-3-8b", "gpu": "l4", "max_model_len": 4096}


@pytest.mark.long
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"async_scheduling": False, "watermark": 0.05, "num_lookahead_tokens": 3},
        {"scheduler_reserve_full_isl": False, "max_num_batched_tokens": 256},
        {"scheduler": "vllm-v0"},
        {"scheduler": "orca"},
        {"scheduler": "static"},
    ],
    ids=str,
)
def test_blocks_of_one_size_are_what_paged_does(more: dict[str, Any]) -> None:
    """All of the requests and of the waste; vLLM's pool has a block more, which nobody gets."""
    trace = workloads.sharegpt(num_requests=60, seed=3, request_rate=40)
    results = [
        kvsim.simulate(
            trace,
            backend="python",
            allocator=allocator,
            num_gpu_blocks_override=blocks,
            enable_prefix_caching=False,
            **SMALL | more,
        )
        for allocator, blocks in ((f"{HERE}:OneSize", 300), ("paged", 301))
    ]
    assert "scheduler" in more or results[0].summary["num_preemptions"] > 3
    own, paged = results
    assert equal_tables(own.requests, paged.requests)
    assert equal_tables(own.memory, paged.memory)


@pytest.mark.long
@pytest.mark.parametrize("name", [f"{TWO_SIZES}+ratio=4+long=150", f"{HERE}:Watching"])
def test_python_and_compiled_are_equal(name: str) -> None:
    """Recorded steps are never run together, so what rules see in a run is compared as well."""
    trace = workloads.sharegpt(num_requests=40, seed=3, request_rate=40)
    options: Any = SMALL | {"num_gpu_blocks_override": 200, "allocator": name}
    first = kvsim.simulate(trace, backend="python", record_steps=True, **options)
    second = kvsim.simulate(trace, backend="compiled", **options)
    assert first.summary["num_preemptions"] > 3
    assert first.summary["kv_cache"]["peak_usage"] > 0.9
    for table in ("requests", "memory"):
        assert equal_tables(getattr(first, table), getattr(second, table))


def test_rules_keep_the_promises_of_an_allocator() -> None:
    check_allocator(f"{TWO_SIZES}+ratio=2+long=30", num_runs=2)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Leaking", r"fits\(\) is true for .*, and allocate_slots refuses it, alone"),
        ("Generous", r"allocator Generous allocated more slots than its \d+"),
    ],
)
def test_the_check_finds_wrong_rules(name: str, said: str) -> None:
    with pytest.raises((AssertionError, ValueError), match=said):
        check_allocator(f"{HERE}:{name}", num_runs=12)


def test_rules_that_give_out_more_than_there_is_end_a_run() -> None:
    trace = workloads.fixed(prompt=40, output=60, num_requests=6, request_rate=1e6)
    options: Any = SMALL | {"backend": "python", "num_gpu_blocks_override": 9, "max_model_len": 140}
    with pytest.raises(ValueError, match=f"allocator {HERE}:Generous allocated more slots"):
        kvsim.simulate(trace, allocator=f"{HERE}:Generous", block_size=16, **options)


def test_lists_per_request_grow_with_the_requests_of_an_engine() -> None:
    options: dict[str, Any] = {"allocator": TWO_SIZES, "backend": "python"}
    engine = kvsim.Engine(model="llama-3-8b", gpu="h100-sxm", **options)
    for _ in range(20):  # more than an engine has room for at first
        engine.add_request(list(range(40)), 5)
    steps = list(engine.steps_until(1e9))
    assert sum(len(step.finished) for step in steps) == 20
