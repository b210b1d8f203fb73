"""Properties of a fleet that a router receives before the first request."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from kvsim.cost.model import init_cost
from kvsim.records.cost import CONSTANT, PRICED_IN_PYTHON, ROOFLINE
from kvsim.records.engine import Batch, Entry
from kvsim.records.memory import Objects
from kvsim.records.request import Request
from kvsim.records.routing import PrefillPrice
from kvsim.rules.routing.prefills import whole_prefill_time
from kvsim.sched.scheduler import StepPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.random import Generator
    from numpy.typing import NDArray

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.engine.setup import Parts
    from kvsim.fleet.kv_store.store import Portion
    from kvsim.fleet.prefix_index.event_index import KeyIndex
    from kvsim.records.memory import Memory

#: Number of different prompts whose prefill time is cached.
MOST_REMEMBERED = 1 << 16


@dataclass(frozen=True)
class Facts:
    """Properties of a fleet, for its router.

    Parameters
    ----------
    num_replicas : number of replicas, all with one configuration
    block_size : tokens per block of their KV caches
    num_kv_tokens : slots of one replica's KV cache
    max_num_batched_tokens : largest number of tokens in a step
    start_time : start of the run, seconds
    rng : random numbers of this gateway's router
    index : index of the blocks in the replicas' events, for routers with an ``event_delay``
    entry_tokens : tokens per entry of the index
    entry_path : returns the keys of a request's prompt in the index, front to back, as an array
    prefill_time : function of prompt tokens and cached tokens; it returns the seconds to compute
        the prompt on an idle replica, by the run's cost model
    step_time : function of the number of requests and the context tokens of each; it returns the
        seconds of a decode step
    fetch_time : function of a number of tokens; it returns the seconds to read their KV from
        another replica over an idle link; None if replicas do not read from each other
    own_tiers : function of a request; it returns, for each replica, the portions of the prompt in
        the replica's host memory and disks; empty unless a store reports them to routers
    price_prefills : function that fills an empty record in a memory so that compiled rules compute
        ``prefill_time``; None if the cost model has no such rules
    compiled : the replicas run compiled, so a router may use a compiled index
    decodes_only : True in a decode pool
    prefills_only : True in a prefill pool
    """

    num_replicas: int
    block_size: int
    num_kv_tokens: int
    max_num_batched_tokens: int
    start_time: float
    rng: Generator
    index: KeyIndex
    entry_tokens: int
    entry_path: Callable[[IncomingRequest], NDArray[np.int64]]
    prefill_time: Callable[[int, int], float]
    step_time: Callable[[int, int], float]
    fetch_time: Callable[[int], float] | None = None
    own_tiers: Callable[[IncomingRequest], Sequence[Sequence[Portion]]] | None = None
    price_prefills: Callable[[PrefillPrice, Memory], None] | None = None
    compiled: bool = False
    decodes_only: bool = False
    prefills_only: bool = False

    def entry_keys(self, request: IncomingRequest) -> list[int]:
        """Return the keys of a request's prompt in the index, front to back."""
        keys: list[int] = self.entry_path(request).tolist()
        return keys

    def set_price(self, price: PrefillPrice, memory: Memory) -> None:
        """Fill an empty record so that rules compute ``prefill_time``. Mutates ``price``."""
        price.is_python = not memory.compiled
        if price.is_python:
            price.python = self
        elif self.price_prefills is not None:
            self.price_prefills(price, memory)

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens per second of a full step: ``R_peak = B / T(B)``."""
        return self.max_num_batched_tokens / self.prefill_time(self.max_num_batched_tokens, 0)


def prefill_timer(setup: Parts) -> Callable[[int, int], float]:
    """Return a function of the prefill time on an idle replica; see :class:`Facts`."""
    price = PrefillPrice()
    _lay_out_replica(setup, price, Objects())
    price.replica.cost.price, price.replica.cost.python = PRICED_IN_PYTHON, setup.cost

    @lru_cache(maxsize=MOST_REMEMBERED)
    def prefill_time(num_tokens: int, num_cached_tokens: int) -> float:
        return whole_prefill_time(price, num_tokens, num_cached_tokens)

    return prefill_time


def prefill_pricer(setup: Parts) -> Callable[[PrefillPrice, Memory], None] | None:
    """Return ``price_prefills`` of :class:`Facts`.

    It is None for a cost model in Python or with own state, and for drafts, which follow a step.
    """

    def price_prefills(price: PrefillPrice, memory: Memory) -> None:
        _lay_out_replica(setup, price, memory)
        init_cost(setup.cost, price.replica.cost, memory)

    tried = PrefillPrice()
    price_prefills(tried, Objects())
    cost = tried.replica.cost
    return price_prefills if cost.price in (CONSTANT, ROOFLINE) and not cost.has_drafts else None


def _lay_out_replica(setup: Parts, price: PrefillPrice, memory: Memory) -> None:
    """Make room for a step of one request on an idle replica."""
    replica = price.replica
    replica.plan_of = StepPlan
    replica.requests, replica.batches = memory.records(Request, 1), memory.records(Batch, 1)
    replica.batches[0].entries, replica.batches[0].size = memory.records(Entry, 1), 1
    price.most_tokens = setup.scheduler_config.max_num_batched_tokens


def decode_timer(setup: Parts) -> Callable[[int, int], float]:
    """Return a function of the time of a decode step; see :class:`Facts`."""

    @lru_cache(maxsize=MOST_REMEMBERED)
    def step_time(num_requests: int, num_tokens: int) -> float:
        request = Request(0, 0.0, num_tokens, 1, [], 1)
        request.num_computed_tokens = num_tokens
        plan = StepPlan.of([(request, 1)])
        plan.batch.entries *= num_requests
        plan.batch.size = num_requests
        return setup.cost.step(plan).time

    return step_time
