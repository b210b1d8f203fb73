"""Random draws from given words, equal to those of ``numpy.random.Generator`` over PCG64."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.record import NONE

if TYPE_CHECKING:
    from kvsim.records.routing import Draws


def next_half(draws: Draws) -> int:
    """Return 32 random bits: the last word's upper half if unused, else the next word's lower."""
    if draws.upper != NONE:
        half = draws.upper
        draws.upper = NONE
        return half
    half = draws.halves[2 * draws.next_word]
    draws.upper = draws.halves[2 * draws.next_word + 1]
    draws.next_word += 1
    return half


def random_below(draws: Draws, number: int) -> int:
    """Draw an integer from 0 to ``number - 1`` (Lemire, arXiv 1805.10941), as ``integers`` does."""
    if number == 1:
        return 0
    product = next_half(draws) * number
    if product % 2**32 < number:
        least = (2**32 - number) % number
        while product % 2**32 < least:
            product = next_half(draws) * number
    return product // 2**32


def random_share(draws: Draws) -> float:
    """Draw a float in [0, 1), as ``random`` does; an unused half word stays for later draws."""
    lower, upper = draws.halves[2 * draws.next_word], draws.halves[2 * draws.next_word + 1]
    draws.next_word += 1
    return (upper * 2**21 + lower // 2**11) / 2.0**53
