"""The checks for other people's parts: every part of kvsim passes them, broken ones do not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import kvsim
from kvsim.engine.incoming import IncomingRequest
from kvsim.fleet.routing.router import ROUTERS, Router
from kvsim.fleet.routing.view import ReplicaView
from kvsim.fleet.scaling.autoscaler import AUTOSCALERS, Autoscaler, PoolLoad
from kvsim.kv.eviction import EVICTION_POLICIES, EvictionPolicy
from kvsim.kv.manager import ALLOCATORS, NO_HIT, Hit, KVCacheConfig, KVCacheManager
from kvsim.kv.paged import PagedManager
from kvsim.kv.usage import KVUsage
from kvsim.records.request import Request
from kvsim.testing import check_allocator, check_autoscaler, check_eviction, check_router

#: As they are, these want much memory, or hide what small pools show.
SMALL = {
    "tiered": "tiered+host-gib=0.01",
    "unified": "unified+host-gib=0.002",
    "virtual": "virtual+page-size=64KiB",
}
#: What the registries do not name.
VARIANTS = ("paged+window=9", "contiguous-max+fit=first")


@pytest.mark.long
@pytest.mark.parametrize("num_runs", [2, pytest.param(12, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [*ALLOCATORS.names(), *VARIANTS])
def test_every_allocator_passes(name: str, num_runs: int) -> None:
    check_allocator(SMALL.get(name, name), num_runs=num_runs, seed=1)


@pytest.mark.long
@pytest.mark.parametrize("name", EVICTION_POLICIES.names())
def test_every_eviction_policy_passes(name: str) -> None:
    check_eviction(name, num_runs=1)


@pytest.mark.long
@pytest.mark.parametrize("name", ROUTERS.names())
def test_every_router_passes(name: str) -> None:
    check_router(name, num_runs=1)


@pytest.mark.parametrize("name", AUTOSCALERS.names())
def test_every_autoscaler_passes(name: str) -> None:
    check_autoscaler(name, num_runs=1)


class TwoSizes(KVCacheManager):
    """Two managers in one: small blocks for short prompts, large blocks for long ones."""

    def __init__(self, config: KVCacheConfig, *, limit: int = 30) -> None:
        half = config.num_bytes // 2
        self.limit = limit
        self.short = PagedManager(replace(config, num_bytes=half), block_size=4)
        self.long = PagedManager(replace(config, num_bytes=half), block_size=16)
        self.total_bytes = self.short.total_bytes + self.long.total_bytes
        self.num_gpu_blocks = self.short.num_gpu_blocks + self.long.num_gpu_blocks
        self.block_size = 4

    def of(self, request: Request) -> PagedManager:
        return self.short if request.num_prompt_tokens <= self.limit else self.long

    def lookup(self, request: Request) -> Hit:
        return self.of(request).lookup(request)

    def allocate_slots(self, request: Request, num_new_tokens: int, hit: Hit = NO_HIT) -> bool:
        return self.of(request).allocate_slots(request, num_new_tokens, hit)

    def free(self, request: Request) -> None:
        self.of(request).free(request)

    def retire(self, request: Request) -> None:
        self.of(request).retire(request)

    def fits(self, request: Request) -> bool:
        return self.of(request).fits(request)

    def cache_computed(self, request: Request, num_tokens: int) -> None:
        self.of(request).cache_computed(request, num_tokens)

    @property
    def usage(self) -> KVUsage:
        pairs = zip(self.short.usage, self.long.usage, strict=True)
        return KVUsage(*(a + b for a, b in pairs))

    @property
    def kv_usage(self) -> float:
        return (self.short.kv_usage + self.long.kv_usage) / 2

    def memory_map(self, num_bins: int) -> NDArray[np.uint8]:
        half = num_bins // 2
        parts = self.short.memory_map(half), self.long.memory_map(num_bins - half)
        return np.concatenate(parts)

    def check_integrity(self) -> None:
        self.short.check_integrity()
        self.long.check_integrity()


@pytest.mark.long
def test_an_allocator_made_of_two_passes() -> None:
    check_allocator(TwoSizes, num_runs=3)
    check_allocator(TwoSizes, num_runs=2, model="gpt-oss-20b")


# -- allocators that are wrong --------------------------------------------------------------------


class Leaking(PagedManager):
    """Keeps the memory of every request whose number is odd."""

    def free(self, request: Request) -> None:
        if request.request_id % 2 == 0:
            super().free(request)

    def allocate_slots(self, request: Request, num_new_tokens: int, hit: Hit = NO_HIT) -> bool:
        return super().allocate_slots(request, num_new_tokens, hit)


class TakingAndRefusing(PagedManager):
    """Takes the blocks and then says no."""

    def allocate_slots(self, request: Request, num_new_tokens: int, hit: Hit = NO_HIT) -> bool:
        alone = not self.kv.num_held or self.holds(request)
        return super().allocate_slots(request, num_new_tokens, hit) and alone


class Promising(PagedManager):
    """Says that everything fits."""

    def fits(self, request: Request) -> bool:
        return True


class Closed(PagedManager):
    """Says that nothing fits."""

    def fits(self, request: Request) -> bool:
        return False


class Moody(PagedManager):
    """Refuses every seventh request that comes beside others, however often it is made."""

    asked = count()

    def allocate_slots(self, request: Request, num_new_tokens: int, hit: Hit = NO_HIT) -> bool:
        beside = self.kv.num_held and not self.holds(request)
        if beside and next(self.asked) % 7 == 0:
            return False
        return super().allocate_slots(request, num_new_tokens, hit)


class Miscounting(PagedManager):
    """Forgets the internal waste, and does not notice."""

    @property
    def usage(self) -> KVUsage:
        return super().usage._replace(unallocated=1)

    def check_integrity(self) -> None:
        pass


class Greedy(PagedManager):
    """Hits all tokens of a prompt, the last one too."""

    def lookup(self, request: Request) -> Hit:
        return Hit(request.num_tokens, super().lookup(request).blocks, 0)


class Noting(PagedManager):
    """Takes a block at every lookup."""

    def lookup(self, request: Request) -> Hit:
        if self.num_free > 2:
            self.pool.get(1)
        return super().lookup(request)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (
            Leaking,
            r"no request is left, and bytes of [\w ]+ is [\d,]+, must be [\d,]+; .*num_free is \d+",
        ),
        (TakingAndRefusing, "invariant 6: allocate_slots refused"),
        (Promising, "fits.. is true for .*, and allocate_slots refuses it, alone"),
        (Closed, "fits.. is true for no request"),
        (Moody, "invariant 8: two runs differ"),
        (Miscounting, "invariant 9"),
        (Greedy, "leaves none of"),
        (Noting, "lookup.. changes the state"),
    ],
)
def test_a_broken_allocator_is_found_out(factory: type[PagedManager], message: str) -> None:
    with pytest.raises((AssertionError, RuntimeError), match=message) as caught:
        check_allocator(factory, num_runs=12, scheduler="vllm")
    if factory is not Closed:
        assert f"while checking {factory.__name__}, run " in caught.value.__notes__[-1]
    assert factory.__name__ not in ALLOCATORS.names()


def test_options_that_cannot_run_are_the_callers_fault() -> None:
    with pytest.raises(ValueError, match="unknown model"):
        check_allocator("paged", model="no-such-model")


# -- eviction policies that are wrong -------------------------------------------------------------


class Queue(EvictionPolicy):
    """A right one to break: first in, first out."""

    def __init__(self) -> None:
        self.blocks: list[int] = []

    def insert(self, block_id: int) -> None:
        self.blocks.append(block_id)

    def remove(self, block_id: int) -> None:
        self.blocks.remove(block_id)

    def evict(self) -> int:
        return self.blocks.pop(0)

    def __len__(self) -> int:
        return len(self.blocks)

    def __iter__(self) -> Iterator[int]:
        return iter(self.blocks)


class NeverLettingGo(Queue):
    def remove(self, block_id: int) -> None:
        pass


class Twice(Queue):
    def insert(self, block_id: int) -> None:
        self.blocks += [block_id, block_id]


class LastFirst(Queue):
    def evict(self) -> int:
        return self.blocks.pop()


class Long(Queue):
    def __len__(self) -> int:
        return len(self.blocks) + 1


class Turning(Queue):
    def __iter__(self) -> Iterator[int]:
        self.blocks.reverse()
        return iter(self.blocks[:])


class Fickle(Queue):
    made = count()

    def __init__(self) -> None:
        super().__init__()
        self.newest_first = next(self.made) % 2

    def insert(self, block_id: int) -> None:
        self.blocks.insert(0 if self.newest_first else len(self.blocks), block_id)


class Inventive(Queue):
    def evict(self) -> int:
        return super().evict() + 100


def test_a_policy_of_ones_own_passes() -> None:
    check_eviction(Queue, num_runs=3)
    check_eviction(f"{__name__}:Queue", num_runs=1)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (NeverLettingGo, "the policy holds"),
        (Twice, "the policy holds"),
        (LastFirst, "the iteration begins with"),
        (Long, "the length is"),
        (Turning, "iterating changes the order"),
        (Fickle, "not deterministic"),
        (Inventive, "in use or does not exist"),
    ],
)
def test_a_broken_policy_is_found_out(factory: type[Queue], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_eviction(factory)


# -- routers that are wrong -----------------------------------------------------------------------


class TooFar(Router):
    def choose(self, request: IncomingRequest, replicas: Sequence[ReplicaView]) -> int:
        return len(replicas)


class Peeking(Router):
    def choose(self, request: IncomingRequest, replicas: Sequence[ReplicaView]) -> int:
        return replicas[-1].num_outstanding() and 0


class Searching(Router):
    looks_at_replicas = True

    def choose(self, request: IncomingRequest, replicas: Sequence[ReplicaView]) -> int:
        return replicas[-1].num_cached_tokens(request) and 0


class Meddling(Router):
    looks_at_replicas = True

    def choose(self, request: IncomingRequest, replicas: Sequence[ReplicaView]) -> int:
        replicas[0].settle(0.0)
        return 0


class Whimsical(Router):
    chosen = count()

    def choose(self, request: IncomingRequest, replicas: Sequence[ReplicaView]) -> int:
        return (next(self.chosen) // 3) % len(replicas)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (TooFar, "chooses replica"),
        (Peeking, "looks_at_replicas is False"),
        (Searching, "needs_prefix_cache is False"),
        (Meddling, "calls settle"),
        (Whimsical, "invariant 8: two runs differ"),
    ],
)
def test_a_broken_router_is_found_out(factory: type[Router], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_router(factory)


# -- what lies beneath ----------------------------------------------------------------------------


def test_a_pool_without_a_block_has_a_free_map() -> None:
    options: dict[str, Any] = {"num_gpu_blocks_override": 1, "record_memory_map": True}
    trace = kvsim.Trace.from_arrays([0.0], [3], [2])
    result = kvsim.simulate(trace, backend="python", **options)
    assert not result.memory_map.any()


def test_a_lent_name_is_taken_back() -> None:
    before = ROUTERS.names()
    with ROUTERS.lend(TooFar) as name, ROUTERS.lend(TooFar) as other:
        assert (name, other) == ("TooFar", "TooFar-own")
        assert {name, other} <= set(ROUTERS.names())
    assert ROUTERS.names() == before


# -- autoscalers that are wrong -------------------------------------------------------------------


class Halves(Autoscaler):
    def desired(self, pool: PoolLoad) -> int:
        return pool.total("requests") / 8  # type: ignore[return-value]


class Guessing(Autoscaler):
    guesses = count()

    def desired(self, pool: PoolLoad) -> int:
        return next(self.guesses) % 7


class Mean(Autoscaler):
    """Divides by the number of replicas that are ready."""

    def desired(self, pool: PoolLoad) -> int:
        return round(pool.total("requests") / len(pool.ready))


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (
            Halves,
            r"starting, \d+ requests running and \d+ waiting: it wants [\d.]+ replicas, must be",
        ),
        (Guessing, "and a second instance"),
        (Mean, "division by zero"),
    ],
)
def test_a_broken_autoscaler_is_found_out(factory: type[Autoscaler], message: str) -> None:
    with pytest.raises((AssertionError, ZeroDivisionError), match=message) as caught:
        check_autoscaler(factory)
    assert f"while checking {factory.__name__}, run " in caught.value.__notes__[0]
