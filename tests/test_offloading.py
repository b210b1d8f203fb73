"""Native CPU offloading: the host cache against a plain model of the rules, and rules by hand."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kvsim.records.host_cache import (
    FREQUENT,
    FREQUENT_GHOST,
    NO_CHUNK,
    RECENT,
    RECENT_GHOST,
    HostCache,
)
from kvsim.records.memory import Objects
from kvsim.records.offloading import Offer, OffloadGroup, Offloading, OffloadState
from kvsim.records.record import NONE
from kvsim.rules import host_cache as rules
from kvsim.rules.offload_request import last_marked, order_of, reuse, touch_at_end
from kvsim.rules.offload_store import prepare_store
from kvsim.sched.offloading import OffloadingConfig, lay_out_host_cache

#: Tokens of a chunk, and chunks of a request at most.
SIZE, MOST = 4, 12


class Store:
    """A host cache with one group of full attention, driven by hand."""

    def __init__(self, capacity: int, **options: Any) -> None:
        self.offloading = Offloading(num_groups=1)
        self.offloading.groups = [OffloadGroup(chunk_tokens=SIZE)]
        self.offloading.offers = [Offer() for _ in range(MOST)]
        config = OffloadingConfig(capacity, **options)
        lay_out_host_cache(self.host, Objects(), config, orders=SIZE * MOST + 2)

    @property
    def host(self) -> HostCache:
        """The cache."""
        return self.offloading.host

    def request(self, keys: list[int]) -> OffloadState:
        """Begin a request of some chunks."""
        return OffloadState(
            keys=list(keys), marks=[0] * len(keys), num_keys=[len(keys)], cursors=[0]
        )

    def offer(self, state: OffloadState, first: int, stop: int) -> list[int] | None:
        """Offer chunks; returns the slots of those that are stored, None if there is no room."""
        for at, place in enumerate(range(first, stop)):
            offer = self.offloading.offers[at]
            offer.key, offer.group, offer.place = state.keys[place], 0, place
            offer.order = order_of(self.offloading, self.offloading.groups[0], 0, place)
        missing = prepare_store(self.offloading, state, stop - first)
        if missing == NONE:
            return None
        chunks = [self.offloading.offers[at].chunk for at in range(missing)]
        return [self.host.chunks[k].slot for k in chunks]

    def write(self, key: int) -> None:
        """End the store of a chunk."""
        rules.finish_writing(self.host, rules.find_chunk(self.host, key))

    def load(self, state: OffloadState, place: int) -> int:
        """Begin to load a chunk."""
        k = rules.find_chunk(self.host, state.keys[place])
        rules.pin(self.host, k)
        reuse(self.offloading, state, place, k)
        return k

    def end(self, state: OffloadState) -> None:
        """Rank the chunks of a request anew."""
        while (last := last_marked(self.offloading, state)) != NONE:
            touch_at_end(self.offloading, state.keys[last], state.marks[last])
            state.marks[last] = 0

    def has(self, key: int) -> bool:
        """Whether a chunk is in host memory."""
        return rules.find_chunk(self.host, key) != NO_CHUNK

    def keys_in(self, place: int) -> list[int]:
        """List the keys of one of ARC's lists, the next one out first."""
        keys, k = [], self.host.lists[place].head
        while k != NONE:
            keys.append(self.host.chunks[k].key)
            k = self.host.chunks[k].next
        return keys


def test_slots_are_fresh_first_then_the_one_freed_last():
    store = Store(4)
    one = store.request([11, 12, 13, 14])
    assert store.offer(one, 0, 3) == [0, 1, 2]
    for key in (11, 12, 13):
        store.write(key)
    other = store.request([21, 22, 23])
    # One slot was never used; then 13 leaves before 12: later positions leave first.
    assert store.offer(other, 0, 3) == [3, 1, 2]
    assert store.has(11)
    assert not store.has(12)
    assert not store.has(13)


def test_what_is_being_written_or_read_stays():
    store = Store(2)
    one = store.request([11, 12])
    store.offer(one, 0, 2)
    assert store.offer(store.request([21]), 0, 1) is None  # both are being written
    store.write(11)
    store.write(12)
    k = store.load(store.request([11, 12]), 1)
    assert store.offer(store.request([21]), 0, 1) == [0]  # 12 would be next, but is read
    rules.unpin(store.host, k)
    assert store.host.num_ready == 1


def test_what_is_offered_does_not_leave_for_the_rest_of_the_offer():
    store = Store(2)
    store.offer(store.request([11]), 0, 1)
    store.offer(store.request([21]), 0, 1)
    store.write(11)
    store.write(21)
    assert store.offer(store.request([11, 12]), 0, 2) == [1]
    assert store.has(11)
    assert not store.has(21)
    store.write(12)
    assert store.offer(store.request([11, 12, 13]), 0, 3) is None  # nothing else is there
    assert store.host.num_ready == 2


def test_a_failed_offer_leaves_its_touches():
    store = Store(2)
    one, other = store.request([11]), store.request([21])
    store.offer(one, 0, 1)
    store.offer(other, 0, 1)
    store.write(11)
    store.write(21)
    assert store.offer(store.request([11, 12, 13]), 0, 3) is None
    assert store.offer(store.request([31]), 0, 1) == [1]  # 11 was touched later than 21


def test_the_end_of_a_request_ranks_its_chunks_from_the_last_to_the_first():
    store = Store(4)
    one = store.request([11, 12])
    store.offer(one, 0, 2)
    other = store.request([21, 22])
    store.offer(other, 0, 2)
    for key in (11, 12, 21, 22):
        store.write(key)
    store.end(one)
    leaving = []
    for key in (91, 92, 93, 94):
        before = {key for key in (11, 12, 21, 22) if store.has(key)}
        store.offer(store.request([key]), 0, 1)
        leaving += sorted(before - {key for key in (11, 12, 21, 22) if store.has(key)})
    assert leaving == [22, 21, 12, 11]


def test_a_missed_chunk_is_one_of_the_requests_own():
    store = Store(2)
    one = store.request([11, 12, 13])
    assert store.offer(one, 0, 3) is None  # three do not fit in two
    store.offer(store.request([11]), 0, 1)
    store.offer(store.request([21]), 0, 1)
    store.write(11)
    store.write(21)
    store.end(one)  # 11 was missed, and somebody else stored it
    assert store.offer(store.request([31]), 0, 1) == [1]


def test_a_threshold_counts_offers():
    store = Store(4, store_threshold=2)
    one, other = store.request([11, 12]), store.request([11, 13])
    assert store.offer(one, 0, 2) == []
    assert store.offer(other, 0, 2) == [0]
    assert store.has(11)
    assert not store.has(12)
    assert store.offer(one, 1, 2) == [1]


def test_what_was_not_offered_for_longest_is_no_longer_counted():
    store = Store(4, store_threshold=2)
    store.host.most_offers = 2
    for key in (11, 12, 11, 13):  # 12 is forgotten for 13
        store.offer(store.request([key]), 0, 1)
    assert store.has(11)
    store.offer(store.request([12]), 0, 1)
    assert not store.has(12)


def test_arc_moves_what_is_used_again_at_the_end_of_a_request():
    store = Store(3, eviction_policy="arc")
    one = store.request([11, 12])
    store.offer(one, 0, 2)
    store.write(11)
    store.write(12)
    store.end(one)
    assert store.keys_in(RECENT) == [12, 11]  # stored by itself: not used again
    other = store.request([11, 12])
    store.offer(other, 0, 1)
    assert store.keys_in(FREQUENT) == []
    store.end(other)
    assert store.keys_in(RECENT) == [12]
    assert store.keys_in(FREQUENT) == [11]


def test_arc_learns_from_ghosts_once_per_request():
    store = Store(2, eviction_policy="arc")
    for key in (11, 12, 13):
        store.offer(store.request([key]), 0, 1)
        store.write(key)
    assert store.keys_in(RECENT_GHOST) == [11]
    again = store.request([11, 14, 15])
    assert store.offer(again, 0, 3) is None
    assert store.host.target == 1
    assert store.offer(again, 0, 3) is None
    assert store.host.target == 1
    store.offer(again, 0, 1)
    assert store.keys_in(RECENT_GHOST) == [12]
    assert store.keys_in(RECENT) == [13, 11]
    assert store.keys_in(FREQUENT_GHOST) == []


class Model:
    """The rules of a host cache once more, in the plainest form."""

    def __init__(self, capacity: int, arc: bool) -> None:
        self.capacity, self.arc = capacity, arc
        self.lists: list[dict[int, list[int]]] = [{}, {}, {}, {}]  # key: [slot, pins]
        self.rank: dict[int, tuple[int, int]] = {}
        self.fresh, self.freed = 0, []
        self.number, self.target = 0, 0.0

    def chunk(self, key: int) -> list[int] | None:
        return self.lists[0].get(key) or self.lists[1].get(key)

    def meet(self, state: dict[str, Any]) -> None:
        if not state["number"]:
            self.number += 1
            state["number"] = self.number

    def touch(self, state: dict[str, Any], place: int) -> None:
        key = state["keys"][place]
        self.rank[key] = max(self.rank.get(key, (0, 0)), (state["number"], -place))

    def reuse(self, state: dict[str, Any], place: int) -> None:
        self.meet(state)
        if place not in state["stored"]:
            state["reused"].add(place)
        self.touch(state, place)

    def offer(self, state: dict[str, Any], first: int, stop: int) -> list[int] | None:
        keys, offered = state["keys"], range(first, stop)
        missing = [p for p in offered if self.chunk(keys[p]) is None]
        for p in offered:
            found = self.chunk(keys[p])
            if found is not None and found[1] >= 0:
                self.reuse(state, p)
        for p in reversed(missing):
            self.meet(state)
            if p not in state["missed"]:
                state["missed"].add(p)
                self.learn(keys[p])
        need = len(missing) - (self.capacity - len(self.lists[0]) - len(self.lists[1]))
        if not self.evict(max(need, 0), {keys[p] for p in offered}):
            return None
        slots = []
        for p in missing:
            for ghosts in self.lists[2:]:
                ghosts.pop(keys[p], None)
            slot = self.fresh if self.fresh < self.capacity else self.freed.pop()
            self.fresh += slot == self.fresh
            self.lists[0][keys[p]] = [slot, -1]
            self.rank.pop(keys[p], None)
            state["stored"].add(p)
            self.touch(state, p)
            slots.append(slot)
        return slots

    def learn(self, key: int) -> None:
        if not self.arc:
            return
        one, two = len(self.lists[2]), len(self.lists[3])
        if key in self.lists[2]:
            self.target = min(self.target + max(1.0, two / one), self.capacity)
            self.lists[2][key] = self.lists[2].pop(key)
        elif key in self.lists[3]:
            self.target = max(self.target - max(1.0, one / two), 0)
            self.lists[3][key] = self.lists[3].pop(key)

    def evict(self, count: int, kept: set[int]) -> bool:
        gone: list[int] = []
        for _ in range(count):
            free = [
                [k for k, (_, pins) in one.items() if not pins and k not in kept and k not in gone]
                for one in self.lists[:2]
            ]
            if not free[0] and not free[1]:
                return False
            if self.arc:
                recent = len(self.lists[0]) - sum(k in self.lists[0] for k in gone)
                first = free[0] if recent >= int(self.target) else []
                gone.append((first or free[1] or free[0])[0])
            else:
                gone.append(min(free[0], key=lambda k: self.rank[k]))
        for key in gone:
            at = 0 if key in self.lists[0] else 1
            self.freed.append(self.lists[at].pop(key)[0])
            if self.arc:
                self.lists[at + 2][key] = []
        for ghosts in self.lists[2:] if count else []:
            for key in list(ghosts)[: max(len(ghosts) - self.capacity, 0)]:
                del ghosts[key]
        return True

    def end(self, state: dict[str, Any]) -> None:
        for p in range(len(state["keys"]) - 1, -1, -1):
            if p not in state["missed"] | state["reused"] | state["stored"]:
                continue
            key = state["keys"][p]
            if not self.arc:
                if self.chunk(key) is not None:
                    self.number += 1
                    self.rank[key] = (self.number, -p)
                continue
            for at, one in enumerate(self.lists[:2]):
                if key in one:
                    self.lists[1 if p in state["reused"] else at][key] = one.pop(key)
                    break


@pytest.mark.parametrize("seed", range(40))
def test_the_host_cache_does_what_a_plain_model_does(seed):
    draw = random.Random(seed)
    arc, capacity = bool(seed % 2), draw.randrange(1, 12)
    store = Store(capacity, eviction_policy="arc" if arc else "lru")
    model = Model(capacity, arc)
    live: list[tuple[OffloadState, dict[str, Any]]] = []
    writing: list[int] = []
    reading: list[tuple[int, int]] = []
    for _ in range(400):
        if not live or draw.random() < 0.2:
            family = draw.randrange(4)
            keys = [family * 1000 + p + 1 for p in range(draw.randrange(1, MOST))]
            sets: dict[str, Any] = {name: set() for name in ("missed", "reused", "stored")}
            live.append((store.request(keys), {"keys": keys, "number": 0, **sets}))
        at = draw.randrange(len(live))
        state, twin = live[at]
        action = draw.random()
        if action < 0.5:
            first = draw.randrange(len(twin["keys"]))
            stop = draw.randrange(first, len(twin["keys"])) + 1
            slots = model.offer(twin, first, stop)
            before = store.host.num_writing
            assert store.offer(state, first, stop) == slots
            writing += [
                k for k, (_, pins) in model.lists[0].items() if pins < 0 and k not in writing
            ]
            assert store.host.num_writing - before == len(slots or [])
        elif action < 0.7 and writing:
            key = writing.pop(draw.randrange(len(writing)))
            store.write(key)
            model.lists[0 if key in model.lists[0] else 1][key][1] = 0
        elif action < 0.8:
            place = draw.randrange(len(twin["keys"]))
            found = model.chunk(twin["keys"][place])
            if found is not None and found[1] >= 0:
                found[1] += 1
                model.reuse(twin, place)
                reading.append((store.load(state, place), twin["keys"][place]))
        elif action < 0.9 and reading:
            k, key = reading.pop(draw.randrange(len(reading)))
            rules.unpin(store.host, k)
            found = model.chunk(key)
            assert found is not None
            found[1] -= 1
        else:
            live.pop(at)
            store.end(state)
            model.end(twin)
        assert store.host.num_chunks == len(model.lists[0]) + len(model.lists[1])
        if arc:
            assert [store.keys_in(p) for p in range(4)] == [list(one) for one in model.lists]
            assert store.host.target == model.target
