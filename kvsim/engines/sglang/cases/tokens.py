"""Tokens of SGLang's recorded cases as contents.

Token i of segment s is ``10 + (s x 1000003 + i x 7919) mod 31990``, so different segments have some
equal tokens, which a radix tree over single tokens can match. Multiplied by the inverse of 7919,
all tokens lie on one ring of numbers: a span of any segment is a span of the ring, and equal tokens
have equal numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.cases.rows import span

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvsim.cases.rows import Span

RING = 31990
#: Distance on the ring between the first tokens of neighbouring segments.
PER_SEGMENT = 1000003 * pow(7919, -1, RING) % RING
#: The contents: the ring, and the end-of-sequence token, which no segment has.
TOKENS, END_OF_SEQUENCE = 0, 1


def pieces(segment: int, start: int, num_tokens: int) -> list[Span]:
    """Return a part of a segment as spans of the ring, cut where the ring closes."""
    found, at = [], (segment * PER_SEGMENT + start) % RING
    while num_tokens > 0:
        taken = min(num_tokens, RING - at)
        found.append((TOKENS, at, taken))
        num_tokens -= taken
        at = 0
    return found


def prompt_pieces(segments: Iterable[Sequence[int]]) -> list[Span]:
    """Return the segments of a prompt as spans of the ring."""
    return [piece for segment in segments for piece in pieces(*span(segment))]


def token(segment: int, index: int) -> int:
    return 10 + (segment * 1000003 + index * 7919) % RING
