"""Ranks of request ids in text order, independent of later ids.

vLLM breaks ties between requests by their ids, which are texts: 10 before 9, and ``1_7``, the
second sample of request 7, between 19 and 2.
"""

from __future__ import annotations

from bisect import bisect_left

from kvsim.records.samples import MAX_SAMPLES

#: Maximum number of digits of a request id; with more, its rank would not fit into 32 bits.
DIGITS = 7
MOST_RANKED = 10**DIGITS
#: Prefixes of the ids of samples, sorted as texts; ids with the same prefix are adjacent.
BEGINNINGS = sorted(f"{number}_" for number in range(MAX_SAMPLES))


def num_texts(digits: int) -> int:
    """Return the number of texts of at most ``digits`` digits, the empty text included."""
    return int((10 ** (digits + 1) - 1) // 9)


def place_of(text: str) -> int:
    """Return the rank of a string of digits among all of up to :data:`DIGITS` digits."""
    place = 0
    for at, digit in enumerate(text):
        place += 1 + int(digit) * num_texts(DIGITS - at - 1)
    return place


def id_rank(request: int, sample: int | None = None) -> int:
    """Return a number below 2**31; these numbers order ids as their texts do.

    Examples
    --------
    >>> sorted([9, 10, 1, 100], key=id_rank)
    [1, 10, 100, 9]
    >>> id_rank(19) < id_rank(7, sample=1) < id_rank(2)
    True
    """
    if sample is None:
        text = str(request)
        return place_of(text) + num_texts(DIGITS) * bisect_left(BEGINNINGS, text)
    number = str(sample)
    before = num_texts(DIGITS) * bisect_left(BEGINNINGS, f"{number}_")
    last = place_of(number) + num_texts(DIGITS - len(number)) - 1
    return last + before + 1 + place_of(str(request))
