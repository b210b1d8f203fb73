"""Native CPU offloading: the host cache against a plain model of the rules, and rules by hand."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kvsim.cases.case import CaseConfig
from kvsim.cases.group import Group
from kvsim.kv.paged import PagedManager
from kvsim.records.host_cache import (
    FREQUENT,
    FREQUENT_GHOST,
    HOST_ARC,
    HOST_LRU,
    NO_CHUNK,
    RECENT,
    RECENT_GHOST,
    HostCache,
)
from kvsim.records.memory import Objects
from kvsim.records.offloading import Offer, OffloadGroup, Offloading, OffloadState
from kvsim.records.record import NONE
from kvsim.records.request import Request
from kvsim.rules.blocks.attention import cdiv
from kvsim.rules.blocks.keys import mix
from kvsim.rules.offloading import host_cache as rules
from kvsim.rules.offloading.lookup import find_offloaded
from kvsim.rules.offloading.request import (
    chunk_order,
    compute_keys,
    key_of,
    last_marked,
    meet,
    reuse,
    touch_at_end,
)
from kvsim.rules.offloading.scheduler import is_target, loads_with_step
from kvsim.rules.offloading.store import last_to_store, offer_group, prepare_store
from kvsim.sched.offloading import (
    add_states,
    init_host_cache,
    init_offloading,
)

#: Tokens of a chunk, and chunks of a request at most.
SIZE, MOST = 4, 12


class Store:
    """A host cache with one group of full attention, driven by hand."""

    def __init__(self, capacity: int, **options: Any) -> None:
        self.offloading = Offloading(num_groups=1)
        self.offloading.groups = [OffloadGroup(chunk_tokens=SIZE)]
        self.offloading.offers = [Offer() for _ in range(MOST)]
        settings = HostCache(capacity=capacity, **options)
        init_host_cache(self.host, Objects(), settings, orders=SIZE * MOST + 2)

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
            offer.order = chunk_order(self.offloading, self.offloading.groups[0], 0, place)
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
        rules.pin_chunk(self.host, k)
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
    rules.unpin_chunk(store.host, k)
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
    store = Store(4, threshold=2)
    one, other = store.request([11, 12]), store.request([11, 13])
    assert store.offer(one, 0, 2) == []
    assert store.offer(other, 0, 2) == [0]
    assert store.has(11)
    assert not store.has(12)
    assert store.offer(one, 1, 2) == [1]


def test_what_was_not_offered_for_longest_is_no_longer_counted():
    store = Store(4, threshold=2)
    store.host.most_offers = 2
    for key in (11, 12, 11, 13):  # 12 is forgotten for 13
        store.offer(store.request([key]), 0, 1)
    assert store.has(11)
    store.offer(store.request([12]), 0, 1)
    assert not store.has(12)


def test_arc_moves_what_is_used_again_at_the_end_of_a_request():
    store = Store(3, policy=HOST_ARC)
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
    store = Store(2, policy=HOST_ARC)
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


def test_arc_learns_more_from_the_rarer_ghosts():
    store = Store(3, policy=HOST_ARC)
    for key in (11, 12, 13):
        store.offer(store.request([key]), 0, 1)
        store.write(key)
    for key in (12, 13):
        again = store.request([key])
        store.offer(again, 0, 1)
        store.end(again)
    store.host.target = 3.0
    for key in (21, 22):
        store.offer(store.request([key]), 0, 1)
    store.host.target = 0.0
    store.offer(store.request([23]), 0, 1)
    assert (store.keys_in(RECENT_GHOST), store.keys_in(FREQUENT_GHOST)) == ([11], [12, 13])
    assert store.offer(store.request([11]), 0, 1) is None  # all others are being written
    assert store.host.target == 2.0
    assert store.offer(store.request([12]), 0, 1) is None
    assert store.host.target == 1.0


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
    store = Store(capacity, policy=HOST_ARC if arc else HOST_LRU)
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
            rules.unpin_chunk(store.host, k)
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


# -- look-ups and stores over groups, by hand -----------------------------------------------------


class Groups:
    """Offloading over a paged cache of some groups: (type, block size, window)."""

    def __init__(
        self,
        groups: list[tuple[str, int, int | None]],
        *,
        retention: int | None = 0,
        **options: Any,
    ) -> None:
        given = [{"type": kind, "block_size": size, "window": w} for kind, size, w in groups]
        config = CaseConfig(
            num_gpu_blocks=64,
            max_num_seqs=4,
            max_num_batched_tokens=64,
            max_model_len=128,
            groups=[Group(**one) for one in given],
            retention_interval=retention,
        )
        manager = PagedManager(config.kv_config)
        self.kv, self.own_blocks = manager.kv, manager.kv.request_blocks[0]
        self.offloading = Offloading()
        settings = Offloading(host=HostCache(capacity=400), **options)
        init_offloading(self.offloading, Objects(), settings, self.kv, 1)
        add_states(self.offloading, Objects(), self.kv, 2)
        self.boundary = 0  # of a shared prefix
        self.own_blocks.owner = 0
        self.own_blocks.num_keys = 128 // self.kv.hash_block_size
        for unit in range(self.own_blocks.num_keys):
            self.own_blocks.keys[unit] = mix(7, unit)

    def request(self, prompt: int) -> Request:
        """Make the one request."""
        return Request(0, 0.0, prompt, 8, place=0)

    def put(self, g: int, place: int, pins: int) -> None:
        """Have a chunk in host memory."""
        key = key_of(self.own_blocks, self.offloading.groups[g], g, place)
        k = rules.add_chunk(self.offloading.host, key, 0)
        self.offloading.host.chunks[k].pins = pins

    def find(self, num_tokens: int, local: int) -> int:
        """Look the request up."""
        request = self.request(num_tokens)
        return find_offloaded(self.kv, self.offloading, request, self.own_blocks, local)


def looked_up(groups: Groups, pins: dict[tuple[int, int], int], num_tokens: int, local: int) -> int:
    """Look up by the rules once more, in the plainest form."""
    chunks = [group.chunk_tokens for group in groups.offloading.groups[: groups.kv.num_groups]]
    windows = [groups.kv.groups[g].window for g in range(groups.kv.num_groups)]

    def needed(g: int, end: int) -> int:
        run = -(-windows[g] // chunks[g])
        return max(run, -(-(windows[g] - 1 + -end % chunks[g]) // chunks[g]))

    full = [g for g, window in enumerate(windows) if not window]
    by_window = sorted(
        (g for g, window in enumerate(windows) if window),
        key=lambda g: -cdiv(windows[g], chunks[g]),
    )
    most = num_tokens if len(chunks) == 1 and full else num_tokens - 1
    todo, unknown = full + by_window, False
    while todo:
        again: list[int] = []
        seen: list[int] = []
        for g in todo:
            most = min(most, num_tokens // chunks[g] * chunks[g])
            if most - local < chunks[g]:
                return 0
            first, last = local // chunks[g], -(-most // chunks[g])
            there = [place for place in range(first, last) if (g, place) in pins]
            if not windows[g]:
                run = []
                while first + len(run) in there:
                    run.append(first + len(run))
                if not run or min(most, (run[-1] + 1) * chunks[g]) - local < chunks[g]:
                    return 0
            else:
                ends = [
                    end
                    for end in range(last, first, -1)
                    if end - (size := needed(g, most) if end == last else needed(g, 0)) >= first
                    and all(place in there for place in range(end - size, end))
                ]
                leading = first
                while leading in there:
                    leading += 1
                end = ends[0] if ends else leading
                if end == first:
                    return 0
                size = needed(g, most) if end == last else needed(g, 0)
                run = list(range(max(end - size, first) if ends else first, end))
            result = min(most, (run[-1] + 1) * chunks[g])
            if result < most:
                if unknown:
                    unknown, again = False, full + by_window
                elif any(windows[other] for other in seen) and not again:
                    again = by_window
            most = result
            unknown |= any(pins[g, place] < 0 for place in run)
            seen.append(g)
        todo = again
    if unknown:
        return -1
    for g, size in enumerate(chunks):
        last = -(-most // size)
        first = local // size
        if windows[g]:
            first = max(first, last - needed(g, most))
        if any(pins.get((g, place), 0) > 0 for place in range(first, last)):
            return -1 if groups.kv.enable_prefix_caching else most - local
    return most - local


SHAPES = (
    [("full", 4, None)],
    [("full", 4, None), ("sliding_window", 4, 9)],
    [("sliding_window", 4, 5), ("full", 8, None), ("sliding_window", 4, 14)],
    [("full", 8, None), ("sliding_window", 4, 7)],
    [("full", 4, None), ("sliding_window", 8, 17), ("sliding_window", 8, 9)],
    [("sliding_window", 4, 8)],
    [("full", 4, None), ("sliding_window", 8, 14)],
    [("full", 4, None), ("sliding_window", 4, 18), ("sliding_window", 4, 6)],
)


@pytest.mark.parametrize("hundred", range(5))
def test_a_look_up_finds_what_the_rules_say(hundred):
    for seed in range(100 * hundred, 100 * hundred + 100):
        check_look_up(random.Random(seed))


def check_look_up(draw):
    groups = Groups(draw.choice(SHAPES), blocks_per_chunk=draw.choice((1, 1, 2)))
    groups.kv.enable_prefix_caching = draw.random() < 0.8
    num_tokens, pins = draw.randrange(9, 60), {}
    for g in range(groups.kv.num_groups):
        absent = draw.choice((0.02, 0.1, 0.3))
        for place in range(128 // groups.offloading.groups[g].chunk_tokens):
            if draw.random() > absent:
                pins[g, place] = draw.choice((0,) * 12 + (-1, 1))
                groups.put(g, place, pins[g, place])
    local = draw.randrange(num_tokens // groups.kv.alignment) * groups.kv.alignment
    assert groups.find(num_tokens, local) == looked_up(groups, pins, num_tokens, local)


def test_a_window_needs_a_longer_run_before_a_hit_inside_its_last_chunk():
    groups = Groups([("full", 4, None), ("sliding_window", 8, 14)])
    # Chunks of 4 in the full group, of 8 in the window; a hit of 28 ends inside the fourth of 8.
    for place in range(7):
        groups.put(0, place, 0)
    for place in (0, 2, 3):
        groups.put(1, place, 0)
    # Two chunks would end at 32, and 28 - 13 lies in the second of 8, which is missing.
    assert groups.find(40, 0) == 8
    groups.put(1, 1, 0)
    assert groups.find(40, 0) == 28


def test_own_copies_make_a_look_up_unknown_and_start_stores_anew():
    groups = Groups([("full", 4, None)])
    groups.put(0, 0, 0)
    assert groups.find(9, 0) == 4
    s = meet(groups.offloading, groups.request(9))
    state = groups.offloading.states[s]
    state.cursors[0], state.num_jobs = 2, 1
    assert groups.find(9, 0) == -1
    assert state.cursors[0] == 0


def offered(
    groups: Groups,
    table: dict[int, list[int]],
    tokens: int,
    prompt: int,
    *,
    ended: bool = False,
    cursor: int = 0,
) -> list[tuple[int, int]]:
    """List the chunks (group, place) that a request offers which knows so many tokens."""
    offloading, request = groups.offloading, groups.request(prompt)
    request.num_tokens = max(tokens, prompt)
    s = meet(offloading, request)
    state, count = offloading.states[s], 0
    request.shared_prefix_boundary = groups.boundary
    compute_keys(groups.kv, offloading, state, groups.own_blocks, request)
    for g, blocks in table.items():
        state.num_known[g], state.cursors[g] = len(blocks), cursor
        for place, block in enumerate(blocks):
            state.blocks[offloading.groups[g].first_block + place] = block
    for g in range(groups.kv.num_groups):
        last = last_to_store(offloading, state, g, tokens)
        count = offer_group(offloading, state, g, last, count, ended)
    return [(offloading.offers[at].group, offloading.offers[at].place) for at in range(count)]


def test_only_whole_chunks_of_known_blocks_and_tokens_are_offered():
    groups = Groups([("full", 4, None)], blocks_per_chunk=2)
    assert offered(groups, {0: [1, 2, 3, 4, 5]}, 30, 30) == [(0, 0), (0, 1)]
    assert offered(groups, {0: [1, 2, 3, 4, 5, 6]}, 23, 30) == [(0, 0), (0, 1)]


WINDOWED: list[tuple[str, int, int | None]] = [("full", 16, None), ("sliding_window", 4, 6)]
#: Known blocks of the window alone, so that nothing of the full group is offered.
IN_WINDOW = {0: [], 1: list(range(1, 17))}


@pytest.mark.parametrize(
    ("retention", "places"),
    [(0, [6, 7]), (16, [2, 3, 6, 7, 10, 11]), (32, [6, 7, 14, 15])],
)
def test_of_a_window_the_ends_of_segments_and_of_the_prompt_are_offered(retention, places):
    groups = Groups(WINDOWED, retention=retention)
    tokens = 48 if retention == 16 else 64
    assert offered(groups, IN_WINDOW, tokens, 48) == [(1, place) for place in places]


def test_of_a_window_the_end_of_a_shared_prefix_is_offered():
    groups = Groups(WINDOWED)
    groups.boundary = 16
    assert offered(groups, IN_WINDOW, 64, 48) == [(1, place) for place in (2, 3, 6, 7)]


def test_without_retention_the_incomplete_segment_of_the_prompt_counts_too():
    groups = Groups(WINDOWED, retention=None)
    ends = [2, 3, 6, 7]
    # The prompt ends in block 10, the segment began with block 8.
    assert offered(groups, IN_WINDOW, 40, 42) == [(1, place) for place in (*ends, 8, 9)]
    # Beyond the prompt there is no such end, until the request has finished.
    ends += [10, 11]
    assert offered(groups, IN_WINDOW, 56, 42) == [(1, place) for place in ends]
    whole = [(1, place) for place in (*ends, 12, 13)]
    assert offered(groups, IN_WINDOW, 56, 42, ended=True) == whole
    # Then what was passed over in the last segment is offered, and nothing twice.
    assert offered(groups, IN_WINDOW, 56, 42, ended=True, cursor=14) == whole[-2:]
    assert offered(groups, IN_WINDOW, 44, 42, ended=True, cursor=11) == []


def test_chunks_without_their_last_block_or_one_that_a_hit_needs_are_left_out():
    groups = Groups([("full", 8, None), ("sliding_window", 4, 6)], retention=16, blocks_per_chunk=2)
    blocks = list(range(1, 13))
    assert offered(groups, {0: [], 1: blocks}, 48, 48) == [(1, 1), (1, 3), (1, 5)]
    blocks[6] = 0  # a hit that ends with chunk 3 needs it
    assert offered(groups, {0: [], 1: blocks}, 48, 48) == [(1, 1), (1, 5)]
    groups = Groups([("full", 4, None), ("sliding_window", 4, 6)], retention=32, blocks_per_chunk=3)
    blocks = list(range(1, 16))
    assert offered(groups, {0: [], 1: blocks}, 60, 60) == [(1, 2), (1, 3), (1, 4)]
    blocks[8] = 0  # the last of chunk 2, whose first two a hit needs
    assert offered(groups, {0: [], 1: blocks}, 60, 60) == [(1, 3), (1, 4)]


def test_a_window_block_that_somebody_else_got_is_not_stored():
    groups = Groups(WINDOWED)
    groups.offloading.got[7] = 1  # block 6 of the request, in a later step than its own
    assert offered(groups, IN_WINDOW, 64, 48) == [(1, 7)]


def test_a_step_waits_for_small_loads_that_leave_a_token_to_compute():
    groups = Groups([("full", 4, None)], sync_load_budget=12)
    request = groups.request(17)
    assert loads_with_step(groups.offloading, request, 4, 8)
    assert not loads_with_step(groups.offloading, request, 4, 8)  # the step waits for 8 already
    assert loads_with_step(groups.offloading, request, 4, 4)
    groups.offloading.num_sync_tokens = 0
    request.num_tokens = 16
    assert not loads_with_step(groups.offloading, request, 8, 8)  # nothing would be left


def test_a_load_begins_with_a_block_that_has_no_name_yet():
    groups = Groups([("full", 4, None)])
    groups.kv.pool.blocks[5].hashed = True
    assert [is_target(groups.kv, block, False) for block in (0, 5, 6)] == [False, False, True]
    assert [is_target(groups.kv, block, True) for block in (0, 5, 6)] == [False, True, True]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([{"type": "chunked_local", "block_size": 4, "chunk": 8}], "offloading of chunked_local"),
        ([{"type": "sliding_window", "block_size": 4, "window": 8, "replay": True}], "with replay"),
    ],
)
def test_groups_without_rules_are_refused(groups, message):
    with pytest.raises(ValueError, match=message):
        config(groups=[{"type": "full", "block_size": 4}, *groups])


def test_drafters_that_drop_a_block_are_refused():
    with pytest.raises(ValueError, match="offloading under eagle"):
        config(spec={"method": "eagle", "k": 2})
    config(spec={"method": "ngram", "k": 2})


def config(**more: Any) -> CaseConfig:
    """Configure a case with native offloading."""
    sizes = {"num_gpu_blocks": 8, "max_num_seqs": 2, "max_num_batched_tokens": 8}
    connector = {"kind": "offloading", "cpu_chunks": 8}
    return CaseConfig.model_validate(
        {**sizes, "max_model_len": 16, "block_size": 4, "connector": connector, **more}
    )
