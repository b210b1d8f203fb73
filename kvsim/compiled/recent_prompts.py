"""The recent prompts of preble in the loop over arrivals; its rules count their misses."""

from __future__ import annotations

import math

from kvsim.compiled.key_table import find, name_path
from kvsim.compiled.translation.calls import record_at
from kvsim.records.routing import PrebleCosts
from kvsim.rules.blocks.keys import FIRST_KEY
from kvsim.rules.fetching import prefetch_item
from kvsim.rules.routing.preble import WORD, count_use, note_output

_costs = record_at(PrebleCosts)


def has_records(router, number):
    """Return True if there is memory for a number of further entries."""
    misses = _costs(router[1]).misses
    return misses.num_made + 1 + number <= misses.room


def count_prompt(misses, index, path, num_cached, change):
    """Add or remove the uses of a prompt's entries, of which the first ``num_cached`` were hits."""
    for k in range(len(path)):
        prefetch_item(misses.buckets, path[k] & misses.bucket_mask)
    for k in range(len(path)):
        prefetch_item(misses.uses, misses.buckets[path[k] & misses.bucket_mask])
    for k in range(len(path)):
        row = find(index[0], path[k])
        for word in range(misses.num_words):
            bits = index[1][row, word // 2] >> WORD * (word % 2)
            misses.asked[word] = bits & (1 << WORD) - 1
        count_use(misses, path[k], change, int(k >= num_cached))


def count_sent(router, index, path, tokens, size):
    """Count the entries of a prompt that was sent, ``tokens`` of which were cached."""
    count_prompt(_costs(router[1]).misses, index, path, tokens // size, 1)


def forget_prompts(router, index, prompts, rows, times, predicted, size, number, now, keys):
    """Remove the uses of the prompts, of the first ``number`` sent, that have left the window."""
    contents, starts, lengths, offsets, salts = prompts[:5]
    costs = _costs(router[1])
    while costs.num_forgotten < number:
        row = rows[costs.num_forgotten]
        if times[costs.num_forgotten] > now - costs.window:
            return
        first, stop = offsets[row], offsets[row + 1]
        its = contents[first:stop], starts[first:stop], lengths[first:stop]
        length = name_path(its[0], its[1], its[2], size, FIRST_KEY, salts[row], keys)
        count_prompt(costs.misses, index, keys[:length], predicted[row] // size, -1)
        costs.num_forgotten += 1


def is_later(told, at, time, row):
    return told[0][at] > time or (told[0][at] == time and told[1][at, 1] > row)


def sort_ends(told, number):
    """Sort the ends among the first ``number`` events by time, then by request; return theirs."""
    times, events = told
    ends = 0
    for k in range(number):
        if not events[k, 0]:
            continue
        time, row, at = times[k], events[k, 1], ends
        while at > 0 and is_later(told, at - 1, time, row):
            times[at], events[at, 1] = times[at - 1], events[at - 1, 1]
            at -= 1
        times[at], events[at, 1] = time, row
        ends += 1
    return ends


def record_ends(router, place, told, number, first_tokens, num_output_tokens):
    """Handle the ends among the events of a replica; the events are lost."""
    costs, ends = _costs(router[1]), sort_ends(told, number)
    for k in range(ends):
        row, end = told[1][k, 1], told[0][k]
        first = end if math.isnan(first_tokens[row]) else first_tokens[row]
        note_output(costs, place, num_output_tokens[row], end - first)
