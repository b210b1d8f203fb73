"""Python's own random number generator, with which SGLang shuffles its queue.

It is the Mersenne Twister of Matsumoto and Nishimura (1998): 624 words of 32 bits, which are
replaced when all have been drawn. No intermediate number reaches 2**47.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.engines.sglang.records.scheduler import Sglang

#: Words of the generator, and the distance of a word to the one that is mixed into it.
NUM_WORDS, DISTANCE = 624, 397
#: Masks of a word's lower 31 bits and of its highest bit, and the matrix of the recurrence.
LOWER, HIGHEST, MATRIX = 0x7FFFFFFF, 0x80000000, 0x9908B0DF


def make_words(words: list[int]) -> None:
    """Make the next 624 words, in place."""
    for k in range(NUM_WORDS):
        mixed = (words[k] & HIGHEST) | (words[(k + 1) % NUM_WORDS] & LOWER)
        words[k] = words[(k + DISTANCE) % NUM_WORDS] ^ (mixed >> 1)
        if mixed % 2 == 1:
            words[k] ^= MATRIX


def draw_word(scheduler: Sglang) -> int:
    """Draw 32 bits."""
    if scheduler.num_drawn == NUM_WORDS:
        make_words(scheduler.words)
        scheduler.num_drawn = 0
    word = scheduler.words[scheduler.num_drawn]
    scheduler.num_drawn += 1
    word ^= word >> 11
    word ^= (word << 7) & 0x9D2C5680
    word ^= (word << 15) & 0xEFC60000
    return word ^ (word >> 18)


def draw_below(scheduler: Sglang, count: int) -> int:
    """Draw a number from 0 to ``count`` - 1: draw its bits again until they are in range."""
    num_bits, drawn = 0, count
    while count >> num_bits > 0:
        num_bits += 1
    while drawn >= count:
        drawn = draw_word(scheduler) >> (32 - num_bits)
    return drawn
