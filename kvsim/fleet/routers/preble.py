"""Preble's E2: exploit a cached prefix, or explore."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from kvsim.fleet.parameters import (  # noqa: TC001 - checked when a run is configured
    Count,
    Seconds,
    Weight,
    Whole,
)
from kvsim.fleet.routing.prefix_affinity import PrefixAffinity
from kvsim.fleet.routing.router import ROUTERS
from kvsim.fleet.routing.rule_router import RuleRouter
from kvsim.records.routing import EntryUses, HolderSet, PrebleCosts
from kvsim.rules.routing.preble import WORD, choose_preble, count_use, note_output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.fleet.facts import Facts
    from kvsim.fleet.routing.view import ReplicaView
    from kvsim.records.memory import Memory
    from kvsim.records.routing import LastValues, RecentMisses

#: Seconds per output token of a replica on which no request has ended.
FIRST_TPOT = 0.15
#: Number of last ended requests per replica from which medians are computed.
MOST_REMEMBERED = 256
#: Initial number of entries of recent prompts for which compiled code has room.
FIRST_ROOM = 1 << 12
#: Number of buckets of these entries.
NUM_BUCKETS = 1 << 20


@ROUTERS.register("preble")
class Preble(RuleRouter):
    """Preble's E2: the longest match if more of the prompt is cached than not, else any replica.

    If fewer tokens are missing than cached (exploit), the replicas with the longest match are
    candidates; else (explore) all. The smallest ``L + M`` wins, the first on a tie. L is the
    prefill time of the entries missed in the last ``window`` seconds (the time of an entry is
    divided among its holders), plus ``active requests * median output * median TPOT`` of the
    replica. M is the prefill time of the entries that an LRU cache of the replica's size would
    evict. After ``warm-up`` requests per replica, loads are balanced: while the largest L is above
    ``balance`` times the smallest L, requests for the replica with the largest go to the replica
    with the smallest.

    Source: Preble, arXiv 2407.00023, and global_scheduler_with_time.py of WukLab/preble at
    8e7906ae. Preble balances by moving, splitting or replicating the busiest subtree of prefixes;
    here single requests move, and their new replica then caches their prefix.

    Parameters
    ----------
    window : seconds of misses that L counts
    balance : ratio of the largest to the smallest L above which requests move
    warm_up : requests per replica before requests move
    own_prefill : add this request's own prefill time to L and M, as the paper does
    entry_tokens : tokens per entry
    """

    watches_requests = True
    reads_sizes = True
    counts_misses = True
    rule = staticmethod(choose_preble)
    branches = ("explore", "exploit", "balanced")
    prefixes: PrefixAffinity

    def __init__(
        self,
        *,
        window: Seconds = 180.0,
        balance: Weight = 1.5,
        warm_up: Whole = 50,
        own_prefill: bool = False,
        entry_tokens: Count = 64,
    ) -> None:
        self._window = window
        self._balance = balance
        self._warm_up = warm_up
        self._own_prefill = own_prefill
        self._entry_tokens = entry_tokens

    def start(self, facts: Facts) -> None:
        self._capacity = max(facts.num_kv_tokens // self._entry_tokens, 1)
        self.prefixes = PrefixAffinity(
            facts, entry_tokens=self._entry_tokens, max_entries=self._capacity, asks_holders=True
        )
        self._sent: deque[tuple[float, Sequence[int], int]] = deque()
        self._first_tokens: dict[int, float] = {}
        super().start(facts)

    def make_state(self, memory: Memory) -> PrebleCosts:
        state, facts = memory.one(PrebleCosts), self.facts
        state.balance, state.warm_up, state.window = self._balance, self._warm_up, self._window
        state.capacity, state.own_prefill = self._capacity, self._own_prefill
        state.loads = memory.floats(facts.num_replicas)
        for last, first in ((state.outputs, 0.0), (state.tpots, FIRST_TPOT)):
            lay_out_values(last, memory, facts.num_replicas, first)
        lay_out_misses(state.misses, memory, facts.num_replicas)
        state.misses.piece_time = self._entry_tokens / facts.prefill_rate
        if self._own_prefill:
            facts.set_price(state.price, memory)
        return state

    def reserve(self, memory: Memory, number: int) -> None:
        enlarge(self.state.misses, memory, number)

    @property
    def is_plain(self) -> bool:
        return not self._own_prefill or self.facts.price_prefills is not None

    def choose(self, request: IncomingRequest, replicas: Sequence[ReplicaView]) -> int:
        now, keys = request.arrival_time, self.prefixes.keys(request)
        while self._sent and self._sent[0][0] <= now - self._window:
            self._count(*self._sent.popleft()[1:], -1)
        choice = super().choose(request, replicas)
        num_cached = self.placement.candidates[choice].cached_tokens // self._entry_tokens
        self._sent.append((now, keys, num_cached))
        self._count(keys, num_cached, 1)
        return choice

    def _count(self, keys: Sequence[int], num_cached: int, change: int) -> None:
        """Add or remove the uses of a prompt's entries, of which the first were cached."""
        misses, words = self.state.misses, range(self.state.misses.num_words)
        for k, key in enumerate(keys):
            mask = self.prefixes.index.holders(key)
            misses.asked = [mask >> WORD * word & (1 << WORD) - 1 for word in words]
            count_use(misses, key, change, int(k >= num_cached))

    def on_first_token(self, request_id: int, replica: int, time: float) -> None:
        del replica
        self._first_tokens[request_id] = time

    def on_finish(self, request_id: int, replica: int, time: float, num_tokens: int) -> None:
        first = self._first_tokens.pop(request_id, time)
        note_output(self.state, replica, num_tokens, time - first)


def lay_out_values(last: LastValues, memory: Memory, num_replicas: int, first: float) -> None:
    """Make room for values of all replicas; their medians begin with ``first``. Mutates."""
    last.most, total = MOST_REMEMBERED, MOST_REMEMBERED * num_replicas
    last.numbers, last.medians = memory.ints(num_replicas), memory.list_of([first] * num_replicas)
    last.values, last.ranked = memory.floats(total), memory.floats(total)


def lay_out_misses(misses: RecentMisses, memory: Memory, num_replicas: int) -> None:
    """Make room for the misses of prompts. Mutates."""
    misses.num_replicas, misses.num_words = num_replicas, -(-num_replicas // WORD)
    misses.asked = memory.ints(misses.num_words)
    misses.is_stale, misses.seconds = memory.ints(num_replicas), memory.floats(num_replicas)
    misses.buckets, misses.bucket_mask = memory.shorts(NUM_BUCKETS), NUM_BUCKETS - 1
    enlarge(misses, memory, FIRST_ROOM)


def enlarge(misses: RecentMisses, memory: Memory, number: int) -> None:
    """Make room for a number of further entries. Mutates."""
    if misses.num_made + 1 + number <= misses.room:
        return
    room = 2 * misses.room + number
    lists: dict[str, Any] = {
        "uses": memory.room(EntryUses, room),
        "sets": memory.room(HolderSet, room),
        "masks": memory.ints(room * misses.num_words),
        "ranked": memory.ints(room * misses.num_words),
        "order": memory.ints(room),
    }
    for name, new in lists.items():
        if misses.room:
            known = getattr(misses, name)
            new.array[: len(known)] = known.array
    memory.replace(misses, **lists)
    misses.room = room
