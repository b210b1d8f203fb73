"""Random draws from given words: the sequence of ``numpy.random.Generator`` over PCG64."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.record import NONE

if TYPE_CHECKING:
    from kvsim.records.routing import Draws


def next_half(draws: Draws) -> int:
    """Return 32 random bits: those left of the last word, or the lower half of the next."""
    if draws.upper != NONE:
        half = draws.upper
        draws.upper = NONE
        return half
    half = draws.halves[2 * draws.next_word]
    draws.upper = draws.halves[2 * draws.next_word + 1]
    draws.next_word += 1
    return half


def random_below(draws: Draws, number: int) -> int:
    """Draw an integer from 0 to below a number (Lemire, arXiv 1805.10941), as ``integers``."""
    if number == 1:
        return 0
    product = next_half(draws) * number
    if product % 2**32 < number:
        least = (2**32 - number) % number
        while product % 2**32 < least:
            product = next_half(draws) * number
    return product // 2**32


def random_share(draws: Draws) -> float:
    """Draw a float from 0 to below 1, as ``random``; an unused half word is kept."""
    lower, upper = draws.halves[2 * draws.next_word], draws.halves[2 * draws.next_word + 1]
    draws.next_word += 1
    return (upper * 2**21 + lower // 2**11) / 2.0**53
