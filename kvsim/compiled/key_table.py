"""Compiled tables of block keys and the replicas that hold them.

A table is an array of keys and an array of values by row, with linear probing; the keys serve as
hashes. The table is not a rule of the simulation; ``PrefixIndex`` is the same in Python.
"""

from __future__ import annotations

import numpy as np

from kvsim.compiled.translation.calls import record_at
from kvsim.records.engine import Replica
from kvsim.records.events import REMOVED, STORED, UPDATE
from kvsim.rules.blocks.keys import mix, mix_span, times_plus

#: A row without a key; keys are not negative.
EMPTY = -1

_replica = record_at(Replica)


def find(keys, key):
    """Return the row of a key, or the empty row in which it would be inserted."""
    last = len(keys) - 1
    row = key & last
    while keys[row] != key and keys[row] != EMPTY:
        row = (row + 1) & last
    return row


def is_empty(values, row):
    bits = 0
    for column in range(values.shape[1]):
        bits |= values[row, column]
    return bits == 0


def copy_row(source, row, target, place):
    """Copy a row of values, one by one: a slice brings code for shapes that differ."""
    for column in range(source.shape[1]):
        target[place, column] = source[row, column]


def drop(keys, values, row):
    """Empty a row, and move rows that probing would otherwise no longer find."""
    last = len(keys) - 1
    gap, probe = row, (row + 1) & last
    while keys[probe] != EMPTY:
        home = keys[probe] & last
        if ((probe - home) & last) >= ((probe - gap) & last):
            keys[gap] = keys[probe]
            copy_row(values, probe, values, gap)
            gap = probe
        probe = (probe + 1) & last
    keys[gap] = EMPTY
    for column in range(values.shape[1]):
        values[gap, column] = 0


def refill(keys, values, new_keys, new_values):
    """Copy the rows with a nonzero value into an empty table; return their number."""
    number = 0
    for row in range(len(keys)):
        if keys[row] != EMPTY and not is_empty(values, row):
            place = find(new_keys, keys[row])
            new_keys[place] = keys[row]
            copy_row(values, row, new_values, place)
            number += 1
    return number


def count(keys, values, key, change):
    """Add ``change`` to the count of a key; return the change of the number of rows.

    A row is removed when its count falls to 0.
    """
    row = find(keys, key)
    if keys[row] == EMPTY:
        if change <= 0:
            return 0
        keys[row] = key
        values[row, 0] = change
        return 1
    values[row, 0] += change
    if values[row, 0] > 0:
        return 0
    drop(keys, values, row)
    return -1


def of_place(key, place):
    """Return a hash of a key and a replica; it collides as rarely as keys do."""
    z = times_plus(key ^ (place + 1), 0x9E3779B97F4A7C15, 0)
    z = times_plus(z ^ ((z >> 30) & (2**34 - 1)) ^ place, 0xBF58476D1CE4E5B9, 0)
    return ((z ^ ((z >> 27) & (2**37 - 1))) >> 1) & (2**63 - 1)


def store(key, place, keys, holders, more_keys, more, rows):
    """Record that a replica has one more block with a key; ``more`` counts all but the first."""
    word, bit = place // 64, np.int64(1) << np.int64(place % 64)
    row = find(keys, key)
    if keys[row] == EMPTY:
        keys[row] = key
        rows[0] += 1
    if holders[row, word] & bit:
        name = of_place(key, place)
        rows[1] += count(more_keys, more, name, 1)
        more[find(more_keys, name), 1] = place
    else:
        holders[row, word] |= bit
        rows[2] += 1


def remove(key, place, keys, holders, more_keys, more, rows):
    """Record that a replica has one block less with a key."""
    word, bit = place // 64, np.int64(1) << np.int64(place % 64)
    row = find(keys, key)
    if keys[row] == EMPTY or not holders[row, word] & bit:
        return
    name = of_place(key, place)
    if more_keys[find(more_keys, name)] != EMPTY:
        rows[1] += count(more_keys, more, name, -1)
        return
    holders[row, word] &= ~bit
    rows[2] -= 1
    if is_empty(holders, row):
        drop(keys, holders, row)
        rows[0] -= 1


def apply_events(events, told, start, stop, group, place, keys, holders, more_keys, more, rows):
    """Apply a replica's events, from an array or its log, to the tables of keys.

    ``told`` are the keys that the events refer to. If a replica has several blocks with one key,
    ``more`` has a row (number of blocks after the first, replica). The function adds to ``rows``
    the changes of three numbers: rows of each table, and keys that the replica holds.
    """
    for at in range(start, stop):
        event = events[at]
        if event.group != group:
            continue
        if event.kind == STORED:
            for k in range(event.first_key, event.first_key + event.key_count):
                store(told[k], place, keys, holders, more_keys, more, rows)
        elif event.kind == REMOVED:
            for k in range(event.first_key, event.first_key + event.key_count):
                remove(told[k], place, keys, holders, more_keys, more, rows)


def find_due(log, taken, until):
    """Return (index after the last update up to a time, number of keys stored before it)."""
    stop, num_keys, told = taken, 0, 0
    for at in range(taken, log.num_events):
        event = log.events[at]
        if event.kind == STORED:
            told += event.key_count
        elif event.kind == UPDATE:
            if event.time > until:
                break
            stop, num_keys = at + 1, told
    return stop, num_keys


def apply_logs(addresses, taken, until, group, keys, holders, more_keys, more, rows, sizes, first):
    """Apply the logs of compiled replicas up to a time, starting with replica ``first``.

    The first ``taken`` events of a log have been applied before; a log that is applied to its end
    is emptied. ``rows`` has the number of rows of both tables, and a scratch value. Returns -1, or
    the replica with events for which the tables lack room: ``rows[2]`` is then the number of keys.
    """
    for place in range(first, len(addresses)):
        if addresses[place] == 0:
            continue
        log = _replica(addresses[place]).kv.pool.log
        if log.num_events == taken[place]:
            continue
        stop, num_keys = find_due(log, taken[place], until)
        rows[2] = num_keys
        if 2 * (rows[0] + num_keys) > len(keys) or 2 * (rows[1] + num_keys) > len(more_keys):
            return place
        rows[2] = 0
        known = taken[place]
        apply_events(
            log.events, log.keys, known, stop, group, place, keys, holders, more_keys, more, rows
        )
        sizes[place] += rows[2]
        taken[place] = stop
        if stop == log.num_events:
            log.num_events = log.num_keys = taken[place] = 0
    return -1


def match(keys, holders, path, matched, left):
    """Set ``matched`` to the number of leading keys of a path that each replica holds.

    ``left`` is scratch memory, a word per 64 replicas.
    """
    for word in range(len(left)):
        left[word] = 0
    for place in range(len(matched)):
        left[place // 64] |= np.int64(1) << np.int64(place % 64)
    for depth in range(len(path)):
        row = find(keys, path[depth])
        some = False
        for word in range(len(left)):
            lost = left[word] & ~holders[row, word]  # an empty row has no holders
            if lost:
                end_at(matched, word, lost, depth)
                left[word] &= ~lost
            some |= left[word] != 0
        if not some:
            return
    for word in range(len(left)):
        end_at(matched, word, left[word], len(path))


def end_at(matched, word, lost, depth):
    """Set ``matched`` to ``depth`` for the replicas with their bits set in ``lost``."""
    for place in range(64 * word, min(64 * word + 64, len(matched))):
        if lost & (np.int64(1) << np.int64(place % 64)):
            matched[place] = depth


def name_path(contents, starts, lengths, size, key, salt, found):
    """Write the keys of the full blocks of a prompt to ``found``; return their number.

    ``key`` and ``salt`` start the chain.
    """
    key = mix(key, salt)
    number, filled = 0, 0
    content, start, length = np.int64(0), np.int64(0), np.int64(0)  # the open span
    for at in range(len(contents)):
        begin, left = starts[at], lengths[at]
        if length > 0 and (contents[at] != content or begin != start + length):
            key = mix_span(key, content, start, length)
            length = np.int64(0)
        while left > 0:
            if length == 0:
                content, start = contents[at], begin
            taken = min(left, size - filled)
            length, filled, begin, left = (
                length + taken,
                filled + taken,
                begin + taken,
                left - taken,
            )
            if filled == size:
                key = mix_span(key, content, start, length)
                found[number] = key
                number, filled, length = number + 1, 0, np.int64(0)
    return number
