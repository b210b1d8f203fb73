"""The sorted prompts on each replica, and the number of their distinct blocks.

The compiled form of ``PathSet``. Prompts are compared by their contents, so no keys are stored.
"""

from __future__ import annotations


def num_shared(prompts, one, other):
    """Return (tokens of the common prefix of two prompts, True if the first one is smaller).

    Prompts are ordered by salt, then by content and position token by token, then by length, then
    by number. So a prompt has its longest common prefix with one of its neighbours.
    """
    contents, starts, lengths, offsets, salts = prompts
    if salts[one] != salts[other]:
        return 0, salts[one] < salts[other]
    a, a_stop, b, b_stop = offsets[one], offsets[one + 1], offsets[other], offsets[other + 1]
    a_done, b_done, number = 0, 0, 0
    while a < a_stop and b < b_stop:
        if contents[a] != contents[b]:
            return number, contents[a] < contents[b]
        if starts[a] + a_done != starts[b] + b_done:
            return number, starts[a] + a_done < starts[b] + b_done
        both = min(lengths[a] - a_done, lengths[b] - b_done)
        number, a_done, b_done = number + both, a_done + both, b_done + both
        if a_done == lengths[a]:
            a, a_done = a + 1, 0
        if b_done == lengths[b]:
            b, b_done = b + 1, 0
    if a < a_stop or b < b_stop:
        return number, a == a_stop
    return number, one < other


def place_of(prompts, there, count, row):
    """Return the index of a prompt in a sorted list, or the index at which to insert it."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if num_shared(prompts, there[middle], row)[1]:
            low = middle + 1
        else:
            high = middle
    return low


def num_own(prompts, there, count, at, row, size):
    """Return the number of a prompt's full blocks that its neighbours in the list lack."""
    shared = 0
    for beside in range(max(at - 1, 0), min(at + 1, count)):
        shared = max(shared, num_shared(prompts, there[beside], row)[0])
    lengths, offsets, tokens = prompts[2], prompts[3], 0
    for segment in range(offsets[row], offsets[row + 1]):
        tokens += lengths[segment]
    return tokens // size - shared // size


def add_prompt(prompts, there, counts, place, row, size):
    """Add a prompt to a replica's list; return how many of its full blocks the list lacked."""
    count = counts[place]
    at = place_of(prompts, there[place], count, row)
    number = num_own(prompts, there[place], count, at, row, size)
    for k in range(count, at, -1):
        there[place, k] = there[place, k - 1]
    there[place, at] = row
    counts[place] = count + 1
    return number


def remove_prompt(prompts, there, counts, place, row, size):
    """Remove a prompt from a replica's list; return how many of its full blocks are gone."""
    count = counts[place] - 1
    at = place_of(prompts, there[place], count + 1, row)
    for k in range(at, count):
        there[place, k] = there[place, k + 1]
    counts[place] = count
    return num_own(prompts, there[place], count, at, row, size)
