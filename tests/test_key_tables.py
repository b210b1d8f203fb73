"""Compiled tables of keys answer as dictionaries do."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from kvsim.compiled.loops import translated
from kvsim.compiled.sent_index import match_sent
from kvsim.fleet.prefix_index.event_index import PlainEventIndex
from kvsim.fleet.prefix_index.index import PrefixIndex
from kvsim.fleet.prefix_index.key_tables import CompiledEventIndex, SentIndex
from kvsim.records.events import REMOVED, STORED, UPDATE, Event

MATCH = translated(match_sent)


def events_of(rng: random.Random, keys: list[int], held: list[int]) -> tuple[Any, Any]:
    """Draw events of one replica; sometimes of another group, sometimes of what nobody has."""
    rows = np.zeros(12, Event.dtype())
    told: list[int] = []
    for row in rows:
        row["group"] = rng.random() < 0.1
        kind = rng.choice((STORED, STORED, REMOVED, UPDATE))
        row["kind"] = kind
        if kind == STORED:
            stored = rng.choices(keys, k=rng.randint(1, 5))
            row["first_key"], row["key_count"] = len(told), len(stored)
            told += stored
            held += stored
        elif kind == REMOVED:
            row["first_key"], row["key_count"] = len(told), rng.randint(1, 3)
            told += rng.choices(held or keys, k=int(row["key_count"]))
    return rows, np.array(told, np.int64)


@pytest.mark.parametrize("num_replicas", [1, 3, 64, 70])
def test_an_index_by_events_is_that_in_plain_python(num_replicas: int) -> None:
    rng = random.Random(num_replicas)
    # Keys that begin at few places: long runs of rows that are taken.
    keys = [(k << 20) + rng.randint(0, 3) for k in range(300)]
    keys = [key + (4093 if rng.random() < 0.3 else 0) for key in keys]
    plain, compiled = PlainEventIndex(num_replicas, 0), CompiledEventIndex(num_replicas, 0)
    held: list[list[int]] = [[] for _ in range(num_replicas)]
    for step in range(600):
        place = rng.randrange(num_replicas)
        rows, told = events_of(rng, keys, held[place])
        start = rng.randint(0, 3)
        for index in (plain, compiled):
            index.take(place, rows, told, start, len(rows))
        if rng.random() < 0.02:
            plain.forget(place)
            compiled.forget(place)
        path = rng.sample(keys, 5)
        assert compiled.match(path) == plain.match(path), step
        assert compiled.holders(path[0]) == plain.holders(path[0])
        assert compiled.size(place) == plain.size(place)


@pytest.mark.parametrize("num_replicas", [3, 70])
def test_an_index_of_sent_prefixes_is_that_in_plain_python(num_replicas: int) -> None:
    rng = random.Random(num_replicas)
    plain = PrefixIndex(num_replicas, max_entries=40)
    compiled = SentIndex(num_replicas, max_entries=40)
    paths = [[rng.getrandbits(62) for _ in range(20)] for _ in range(12)]
    paths += [path[:9] + [rng.getrandbits(62) for _ in range(30)] for path in paths]
    for step in range(1500):
        place, path = rng.randrange(num_replicas), rng.choice(paths)
        sent = path[: rng.randint(0, len(path))]
        gone = rng.randrange(num_replicas) if rng.random() < 0.02 else place
        for index in (plain, compiled):
            index.insert(place, sent)
            index.shrink(gone, 3 if gone != place else 40)
        assert compiled.match(path) == plain.match(path), step
        assert match_by_halves(compiled, path, num_replicas) == plain.match(path), step
        assert compiled.holders(path[0]) == plain.holders(path[0])
        assert compiled.size(place) == plain.size(place)


def match_by_halves(index: SentIndex, path: list[int], num_replicas: int) -> list[int]:
    matched = np.full(num_replicas, -1)
    keys, holders, *_ = index.columns()
    MATCH(keys, holders, np.array(path, np.int64), matched)
    found: list[int] = matched.tolist()
    return found


def test_prefixes_that_grow_by_turns_are_evicted_in_the_order_of_plain_python() -> None:
    """Runs of a session's keys that are still linked move together; others lie between them."""
    rng = random.Random(7)
    plain, compiled = PrefixIndex(2, max_entries=90), SentIndex(2, max_entries=90)
    sessions = [[rng.getrandbits(62) for _ in range(8)] for _ in range(6)]
    for step in range(800):
        path = rng.choice(sessions)
        if rng.random() < 0.3:
            path += [rng.getrandbits(62) for _ in range(rng.randint(1, 6))]
        if rng.random() < 0.1:
            del path[rng.randint(1, len(path)) :]
        place, sent = rng.randrange(2), path[: rng.choice((len(path), rng.randint(0, len(path))))]
        for index in (plain, compiled):
            index.insert(place, sent)
        assert order_of(compiled, place) == list(plain._used[place]), step


def order_of(index: SentIndex, place: int) -> list[int]:
    """Return the keys of a replica, the least recently used first."""
    _, _, _, _, links, ends, _, _ = index.columns()
    found, link, before = [], int(ends[place, 0]), 0
    while link:
        key, last, after = links[link].tolist()
        assert last == before
        found.append(key)
        before, link = link, after
    assert before == ends[place, 1]
    return found


def test_many_keys_make_a_table_grow() -> None:
    plain, compiled = PlainEventIndex(2, 0), CompiledEventIndex(2, 0)
    rng = random.Random(5)
    told = np.array([rng.getrandbits(62) for _ in range(20_000)], np.int64)
    rows = np.zeros(1, Event.dtype())
    rows["key_count"] = len(told)
    for index in (plain, compiled):
        index.take(1, rows, told, 0, 1)
    assert compiled.size(1) == plain.size(1) == 20_000
    path = told.tolist()
    assert compiled.match([*path[:7000], 5, *path[7000:]]) == [0, 7000]
