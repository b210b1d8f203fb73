"""Look-up of a prompt's blocks in the hash maps of compiled replicas.

This is not a rule of the simulation; ``PrefixIndex``, which applies events, does the same in
Python. With full attention and LRU eviction, a pool that holds a block of a path holds all blocks
before it: a request frees its blocks last to first, so a later block is evicted before an earlier
one. Events that the reader has not received yet are subtracted.
"""

from __future__ import annotations

import math

from kvsim.compiled.key_table import EMPTY, _replica, find_due
from kvsim.records.events import STORED, UPDATE
from kvsim.records.record import NONE
from kvsim.rules.fetching import prefetch_item

#: If a log has this number of known events, its other events are moved to its beginning.
MANY_KNOWN = 1 << 6


def num_blocks(pool, key):
    """Return the number of blocks that have a key now."""
    k = pool.buckets[key & pool.bucket_mask]
    while k != NONE and pool.blocks[k].key != key:
        k = pool.blocks[k].chain
    number = 0
    while k != NONE:
        number += 1
        k = pool.blocks[k].copy
    return number


def num_unknown(log, first, key):
    """Return the net number of blocks that got a key since event ``first``, inclusive."""
    number = 0
    for at in range(first, log.num_events):
        event = log.events[at]
        if event.kind == UPDATE:
            continue
        change = 1 if event.kind == STORED else -1
        for k in range(event.first_key, event.first_key + event.key_count):
            if log.keys[k] == key:
                number += change
    return number


def holds(pool, first, key):
    """Return True if a pool held a key before event ``first`` of its log."""
    number = num_blocks(pool, key)
    if first < pool.log.num_events:
        number -= num_unknown(pool.log, first, key)
    return number > 0


def may_have_changed(log, first, path, depth):
    """Return True if events from index ``first`` on may have changed the held depth of a path.

    They have not if they contain neither the last held key nor the first missing one, because the
    held keys of a path have no gaps.
    """
    while first < log.num_events and log.events[first].kind == UPDATE:
        first += 1
    if first == log.num_events:
        return False
    last = path[depth - 1] if depth > 0 else EMPTY
    after = path[depth] if depth < len(path) else EMPTY
    found = False
    for k in range(log.events[first].first_key, log.num_keys):
        found |= (log.keys[k] == last) | (log.keys[k] == after)
    return found


def depth_of(pool, first, path, most, guess):
    """Return the number of leading keys of a path that a pool held, at most ``most``.

    The search starts at ``guess``.
    """
    low, high = 0, most
    guess = min(guess, high)
    if guess > 0:
        if holds(pool, first, path[guess - 1]):
            low = guess
        else:
            high = guess - 1
    if low == guess and low < high:
        if holds(pool, first, path[low]):
            low += 1
        else:
            high = low
    while low < high:
        middle = (low + high + 1) // 2
        if holds(pool, first, path[middle - 1]):
            low = middle
        else:
            high = middle - 1
    return low


def remove_known(log, known):
    """Remove the first ``known`` events if they are many or all; return the number of them left."""
    if known == log.num_events:
        log.num_events = log.num_keys = 0
        return 0
    if known < MANY_KNOWN:
        return known
    first_key = log.num_keys
    for at in range(known, log.num_events):
        if log.events[at].kind != UPDATE:
            first_key = min(first_key, log.events[at].first_key)
    for at in range(known, log.num_events):
        event, to = log.events[at], log.events[at - known]
        to.kind = event.kind
        to.group = event.group
        to.row = event.row
        to.block_size = event.block_size
        to.first = event.first
        to.stop = event.stop
        to.has_parent = event.has_parent
        to.key = event.key
        to.first_key = event.first_key - first_key
        to.key_count = event.key_count
        to.time = event.time
    for k in range(first_key, log.num_keys):
        log.keys[k - first_key] = log.keys[k]
        log.places[k - first_key] = log.places[k]
    log.num_events -= known
    log.num_keys -= first_key
    return 0


def learn(address, known, until):
    """Find a log's known events at a time, and remove them if many; return the number left."""
    log = _replica(address).kv.pool.log
    if log.num_events == known:
        return remove_known(log, known)
    return remove_known(log, find_due(log, known, until)[0])


def due_of(address, known):
    """Return the time of the next update in a replica's log, or infinity."""
    log = _replica(address).kv.pool.log
    for at in range(known, log.num_events):
        if log.events[at].kind == UPDATE:
            return log.events[at].time
    return math.inf


def prefetch_depth(pool, path, most, guess, is_second):
    """Prefetch the memory of the first look-ups of :func:`depth_of`: buckets, then blocks."""
    for at in range(max(min(guess, most) - 1, 0), min(guess + 1, most)):
        bucket = path[at] & pool.bucket_mask
        if is_second:
            prefetch_item(pool.blocks, pool.buckets[bucket])
        else:
            prefetch_item(pool.buckets, bucket)


def match_live(addresses, times, known, until, path, most, looked, matched, places):
    """Count the leading keys of a path that each replica held, by its events up to a time.

    Parameters
    ----------
    addresses : address of each replica
    times : time of each replica's next event; nan if its state may have changed
    known : by replica: number of known events of its log
    until : time up to which events are known
    path : the keys
    most : by replica: limit on its leading keys
    looked : five arrays by replica, from the last call: depth by known events, depth now, last key
        of the search, value of ``times``, and time of the next unknown update
    matched : set to the number of leading keys of each replica
    places : scratch memory, by replica

    Returns
    -------
    The most leading keys that any replica holds now.
    """
    depths, depths_now, ends, seen, due = looked
    number = 0
    for place in range(len(addresses)):
        address = addresses[place]
        if address == 0:
            matched[place] = 0
            continue
        if times[place] != seen[place] or until >= due[place]:
            known[place] = learn(address, known[place], until)
            due[place] = due_of(address, known[place])
            seen[place], ends[place] = times[place], EMPTY
        if most[place] > 0 and path[most[place] - 1] != ends[place]:
            places[number] = place
            number += 1
            pool = _replica(address).kv.pool
            prefetch_depth(pool, path, most[place], depths[place], False)
    for at in range(number):
        place = places[at]
        pool = _replica(addresses[place]).kv.pool
        prefetch_depth(pool, path, most[place], depths[place], True)
    for at in range(number):
        place = places[at]
        pool = _replica(addresses[place]).kv.pool
        depth = depth_of(pool, pool.log.num_events, path, most[place], depths[place])
        depths_now[place], ends[place] = depth, path[most[place] - 1]
        if may_have_changed(pool.log, known[place], path, depth):
            depth = depth_of(pool, known[place], path, most[place], depth)
        depths[place] = depth
    held = 0
    for place in range(len(addresses)):
        if addresses[place] != 0:
            matched[place] = depths[place] if most[place] > 0 else 0
            held = max(held, depths_now[place] if most[place] > 0 else 0)
    return held


def deepest(addresses, path, guesses):
    """Return the replica that holds the most leading keys of a path now."""
    best, most = 0, -1
    for place in range(len(addresses)):
        if addresses[place] == 0:
            continue
        pool = _replica(addresses[place]).kv.pool
        depth = depth_of(pool, pool.log.num_events, path, len(path), guesses[place])
        if depth > most:
            best, most = place, depth
    return best


def held_by(addresses, known, key, held):
    for place in range(len(addresses)):
        held[place] = False
        if addresses[place] != 0:
            held[place] = holds(_replica(addresses[place]).kv.pool, known[place], key)
