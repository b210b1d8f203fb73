"""Base of KV-cache managers with rules that run as Python or compiled."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from kvsim.kv.manager import NO_HIT, Hit, KVCacheConfig, KVCacheManager, Transfers
from kvsim.kv.usage import KVUsage
from kvsim.records.engine import Replica
from kvsim.records.growth import adopt
from kvsim.records.memory import Objects, column, head
from kvsim.records.paged import RequestBlocks
from kvsim.records.record import NONE
from kvsim.records.request import Request
from kvsim.registry import overridden
from kvsim.rules import kv as rules
from kvsim.rules.memory_map import paint
from kvsim.rules.usage import kv_usage, measure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvsim.records.kv import KV
    from kvsim.records.memory import Memory


#: Methods that a subclass may override; it then runs in Python only.
ANSWERS = (
    *("lookup", "allocate_slots", "free", "retire", "cache_computed", "swap_out", "swap_in"),
    *("take_transfers", "num_free", "usage", "kv_usage", "memory_map", "heap_bytes"),
)


class RuleManager(KVCacheManager):
    """A manager that holds its state as records and calls :mod:`kvsim.rules`.

    A subclass sets ``rules_of``, a :class:`kvsim.records.kv.Manager`, and lays out the memory.
    """

    rules_of: ClassVar[int]
    #: Name, for errors, of a part of the manager that runs in Python only.
    python_parts = ""

    def __init__(self, config: KVCacheConfig) -> None:
        self.config = config

    @abstractmethod
    def init_state(self, kv: KV, memory: Memory, num_request_blocks: int) -> None:
        """Fill an empty record with the settings and memory for ``num_request_blocks`` requests."""

    def add_request_blocks(self, kv: KV, memory: Memory, count: int) -> None:
        """Add records for ``count`` requests; in flat memory, only while none is in use."""
        n = kv.num_request_blocks
        new = memory.records(RequestBlocks, count)
        kv.request_blocks = [*kv.request_blocks, *new] if n else new
        self.fill_request_blocks(kv, memory, n, n + count)
        # New records are below old ones in the stack, as if all had been laid out together.
        free = [
            *range(n + count - 1, n - 1, -1),
            *head(kv.free_request_blocks, kv.num_free_request_blocks),
        ]
        kv.free_request_blocks = memory.list_of([*free, *[0] * (n + count - len(free))])
        kv.num_request_blocks = n + count
        kv.num_free_request_blocks += count

    @abstractmethod
    def fill_request_blocks(self, kv: KV, memory: Memory, first: int, stop: int) -> None:
        """Lay out the memory of the records ``first`` to ``stop``, such as block tables."""

    @cached_property
    def state(self) -> Replica:
        """State of the replica of this manager, as Python records."""
        state = Replica()
        self.init_state(state.kv, Objects(), 2)
        return state

    #: The methods that call rules; a subclass that overrides one of them runs in Python only.
    answers: ClassVar[tuple[str, ...]] = ANSWERS

    @property
    def runs_by_rules(self) -> bool:
        """True if no subclass overrides a method that calls rules."""
        return not overridden(self, self.answers)

    @property
    def kv(self) -> KV:
        """State of the KV cache."""
        return self.state.kv

    def lookup(self, request: Request) -> Hit:
        num_tokens = rules.look_up(self.kv, request)
        if not num_tokens:
            return NO_HIT._replace(shared_prefix_boundary=request.shared_prefix_boundary)
        return Hit(num_tokens, self.hit_blocks(num_tokens), request.shared_prefix_boundary)

    def hit_blocks(self, num_tokens: int) -> list[list[int]]:
        """Return the blocks of the last looked-up hit, per group."""
        return []

    def take_hit(self, hit: Hit) -> None:
        """Write a hit's blocks into the record that the next admission uses."""

    def allocate_slots(self, request: Request, num_new_tokens: int, hit: Hit = NO_HIT) -> bool:
        if self.holds(request):
            return rules.allocate_slots(self.kv, request, num_new_tokens)
        self.meet(request)
        if self.kv.num_free_request_blocks < 2:
            self.add_request_blocks(self.kv, Objects(), self.kv.num_request_blocks)
        self.take_hit(hit)
        return rules.admit_slots(self.kv, request, num_new_tokens, hit.num_tokens)

    def meet(self, request: Request) -> None:
        """Enter a request in the replica's list of requests, unless it is there.

        Usually the scheduler has assigned its index. For a manager inside another manager, the
        index is assigned here.
        """
        if request.place == NONE:
            adopt(self.state, request)
            return
        requests = self.state.requests
        while len(requests) <= request.place:
            requests.append(Request())
        if requests[request.place] is not request:
            requests[request.place] = request

    def holds(self, request: Request) -> bool:
        """Return True if a request holds memory."""
        return request.own_blocks != NONE

    def free(self, request: Request) -> None:
        rules.free_slots(self.kv, request)

    def retire(self, request: Request) -> None:
        rules.retire(self.kv, request)

    def cache_computed(self, request: Request, num_tokens: int) -> None:
        rules.cache_computed(self.kv, request, num_tokens)

    def swap_out(self, request: Request) -> int:
        return rules.swap_out(self.kv, request)

    def swap_in(self, request: Request) -> int:
        return rules.swap_in(self.kv, request)

    def take_transfers(self, requests: Sequence[Request]) -> Transfers:
        rules.count_moved(self.kv)
        moved = self.kv.moved
        return Transfers(
            moved.fetched, moved.stored, moved.paged_in, moved.paged_out, moved.num_faults
        )

    @property
    def num_free(self) -> int:
        return rules.num_free(self.kv)

    @property
    def usage(self) -> KVUsage:
        measure(self.kv)
        return KVUsage(*(getattr(self.kv.usage, cause) for cause in KVUsage._fields))

    @property
    def kv_usage(self) -> float:
        return kv_usage(self.kv)

    def memory_map(self, num_bins: int) -> NDArray[np.uint8]:
        state = self.state
        before = state.num_bins, state.maps, state.refused
        state.num_bins, state.maps, state.refused = num_bins, [0] * num_bins, False
        self.room_for_map(self.kv, Objects())
        paint(state, 0)
        causes = np.array(state.maps, dtype=np.uint8)
        state.num_bins, state.maps, state.refused = before
        return causes

    def room_for_map(self, kv: KV, memory: Memory) -> None:
        """Lay out the scratch memory of :func:`kvsim.rules.memory_map.paint`."""

    def held_requests(self) -> list[tuple[Request, int]]:
        """Return the requests that hold memory, with the index of their blocks."""
        requests, places = self.state.requests, column(self.kv.request_blocks, "request")
        return [(requests[k], h) for h, k in enumerate(places) if k != NONE]

    def check_filled(self) -> list[tuple[Request, int]]:
        """Recount the filled slots; return the held requests that have not ended."""
        live = [(r, h) for r, h in self.held_requests() if not self.kv.request_blocks[h].retired]
        filled = sum(r.num_filled * r.num_samples for r, _ in live)
        if filled != self.kv.num_filled:
            raise RuntimeError(f"{self.kv.num_filled} filled slots counted, {filled} found")
        return live
