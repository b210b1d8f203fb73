"""The highest rate that passes: the rate is doubled until it fails, then bisected.

A search uses only the results of ``passes``. Searches with a strict and a loose target try the same
rates in the same order until their results differ; at that rate only the loose target passes. So a
loose target never gets a lower rate, even if passing is not monotone in the rate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

#: Width at which the bracket is closed, as a share of its upper end.
TOLERANCE = 0.025
#: Maximum number of doublings or halvings of the guess before the search gives up.
MAX_DOUBLINGS = 20
#: Shares by which an end of the bracket moves outward until all seeds agree.
WIDER = (0.025, 0.05, 0.1, 0.2, 0.4)


class Bracket(NamedTuple):
    """The highest rate that passed and the lowest above it that failed, requests per second.

    ``low`` is 0 if no rate passed; ``high`` is infinite if no rate failed.
    """

    low: float
    high: float


def highest_rate(
    passes: Callable[[float], bool],
    guess: float,
    *,
    tolerance: float = TOLERANCE,
    max_doublings: int = MAX_DOUBLINGS,
) -> Bracket:
    """Find the highest rate that passes, and the lowest rate above it that fails.

    Parameters
    ----------
    passes : returns True if a rate meets all targets
    guess : first rate; must not depend on the targets
    tolerance : width of the bracket, as a share of its upper end
    max_doublings : largest number of doublings or halvings from the guess

    Examples
    --------
    >>> highest_rate(lambda rate: rate <= 10, 1.0)
    Bracket(low=10.0, high=10.25)
    """
    low, high = guess, float("inf")
    if passes(guess):
        for _ in range(max_doublings):
            if not passes(2 * low):
                high = 2 * low
                break
            low = 2 * low
        else:
            return Bracket(low, high)
    else:
        low, high = 0.0, guess
        for _ in range(max_doublings):
            if passes(high / 2):
                low = high / 2
                break
            high /= 2
        else:
            return Bracket(0.0, high)
    while high - low > tolerance * high:
        middle = (low + high) / 2
        low, high = (middle, high) if passes(middle) else (low, middle)
    return Bracket(low, high)


def fewest(passes: Callable[[int], bool], most: int) -> int | None:
    """Find the fewest replicas that pass, from 1 to ``most``; None if not even ``most`` pass.

    Examples
    --------
    >>> fewest(lambda number: number >= 5, 8)
    5
    """
    low, high = 0, 1
    while not passes(high):
        if high == most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    return high


def interval(passes: Callable[[float, int], bool], bracket: Bracket, seeds: int) -> Bracket:
    """Widen a bracket until every seed passes at its low end and fails at its high end.

    The search itself used seed 0 of ``seeds``. Each end is run with the other seeds. Until they
    agree, the end moves outward: by 2.5 %, 5 %, 10 %, 20 % and 40 % of its first value.
    """

    def moved(end: float, sign: int) -> float:
        if end in (0.0, float("inf")):
            return end
        for share in (0.0, *WIDER):
            found = end * (1 + sign * share)
            if all(passes(found, seed) is (sign < 0) for seed in range(1, seeds)):
                break
        return found

    return Bracket(moved(bracket.low, -1), moved(bracket.high, 1))
