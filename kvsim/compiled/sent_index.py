"""Compiled index of the prefixes that a router has sent, with LRU eviction per replica.

The results are those of :class:`kvsim.fleet.prefix_index.index.PrefixIndex`. An entry is a key on a
replica. A table holds by key the replicas with an entry, one bit each; a second one holds the link
of each entry. Links form a list per replica, from the least to the most recently used entry.
"""

from __future__ import annotations

import numpy as np

from kvsim.compiled.key_table import EMPTY, drop, find, is_empty, of_place

#: Columns of a link: its key, the link before it, the link after it; 0 is no link.
#: Counters: rows of both tables, links made, and the first free link.
KEY, BEFORE, AFTER = range(3)
NUM_HELD, NUM_NAMED, NUM_LINKS, FREE = range(4)


def has_room(index, number):
    keys, _, names, _, links, _, counters, _ = index
    enough = 2 * (counters[NUM_HELD] + number) <= len(keys)
    enough &= 2 * (counters[NUM_NAMED] + number) <= len(names)
    return enough and counters[NUM_LINKS] + number < len(links)


def unlink(links, ends, place, first, last):
    """Take the links from ``first`` to ``last`` out of a replica's list."""
    before, after = links[first, BEFORE], links[last, AFTER]
    if before:
        links[before, AFTER] = after
    else:
        ends[place, 0] = after
    if after:
        links[after, BEFORE] = before
    else:
        ends[place, 1] = before


def append(links, ends, place, first, last):
    """Put a chain of links, from ``first`` to ``last``, at the end of a replica's list."""
    end = ends[place, 1]
    links[first, BEFORE], links[last, AFTER] = end, 0
    if end:
        links[end, AFTER] = first
    else:
        ends[place, 0] = first
    ends[place, 1] = last


def new_link(links, counters, key):
    """Return an unused link, and set its key."""
    link = counters[FREE]
    if link:
        counters[FREE] = links[link, AFTER]
    else:
        counters[NUM_LINKS] += 1
        link = counters[NUM_LINKS]
    links[link, KEY] = key
    return link


def evict_first(index, place):
    """Remove the least recently used entry of a replica."""
    keys, holders, names, slots, links, ends, counters, sizes = index
    link = ends[place, 0]
    key = links[link, KEY]
    unlink(links, ends, place, link, link)
    links[link, AFTER] = counters[FREE]
    counters[FREE] = link
    drop(names, slots, find(names, of_place(key, place)))
    counters[NUM_NAMED] -= 1
    row = find(keys, key)
    holders[row, place // 64] &= ~(np.int64(1) << np.int64(place % 64))
    if is_empty(holders, row):
        drop(keys, holders, row)
        counters[NUM_HELD] -= 1
    sizes[place] -= 1


def shrink(index, place, number):
    """Evict the least recently used entries of a replica until ``number`` are left."""
    sizes = index[7]
    while sizes[place] > number:
        evict_first(index, place)


def has_entry(keys, holders, key, place):
    bit = np.int64(1) << np.int64(place % 64)
    return holders[find(keys, key), place // 64] & bit != 0


def held_depth(keys, holders, path, place, guess):
    """Return the number of leading keys of a path that a replica holds; ``guess`` is tried first.

    A replica that holds an entry holds those before it: they were used later.
    """
    low, high = 0, len(path)
    guess = min(guess, high)
    if guess > 0:
        if has_entry(keys, holders, path[guess - 1], place):
            low = guess
        else:
            high = guess - 1
    if low == guess and low < high:
        if has_entry(keys, holders, path[low], place):
            low += 1
        else:
            high = low
    while low < high:
        middle = (low + high + 1) // 2
        if has_entry(keys, holders, path[middle - 1], place):
            low = middle
        else:
            high = middle - 1
    return low


def match_sent(keys, holders, path, matched):
    """Set ``matched`` to the number of leading keys of a path that each replica holds."""
    guess = 0
    for place in range(len(matched)):
        guess = held_depth(keys, holders, path, place, guess)
        matched[place] = guess


def insert(index, place, path, number, has_limits):
    """Enter the first ``number`` keys of a path for a replica, the last key first.

    Without limits nothing is ever evicted, so no links are made. Keys of an earlier path are mostly
    still linked in its order; they move together.
    """
    keys, holders, names, slots, links, ends, counters, sizes = index
    word, bit = place // 64, np.int64(1) << np.int64(place % 64)
    k = number
    while k > 0:
        k -= 1
        key = path[k]
        row = find(keys, key)
        if keys[row] == EMPTY:
            keys[row] = key
            counters[NUM_HELD] += 1
        is_new = holders[row, word] & bit == 0
        holders[row, word] |= bit
        sizes[place] += is_new
        if not has_limits:
            continue
        at = find(names, of_place(key, place))
        if is_new:
            names[at] = of_place(key, place)
            counters[NUM_NAMED] += 1
            slots[at, 0] = new_link(links, counters, key)
            append(links, ends, place, slots[at, 0], slots[at, 0])
            continue
        first = last = slots[at, 0]
        while k > 0 and links[last, AFTER] and links[links[last, AFTER], KEY] == path[k - 1]:
            last = links[last, AFTER]
            k -= 1
        unlink(links, ends, place, first, last)
        append(links, ends, place, first, last)
