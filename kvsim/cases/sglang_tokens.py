"""Tokens of SGLang's recorded cases as contents.

Token i of segment s is ``10 + (s x 1000003 + i x 7919) mod 31990``, so segments share tokens here
and there, and a radix tree over single tokens sees it. Multiplied by the inverse of 7919 they all
lie on one ring: a stretch of any segment is a stretch of the ring's numbers, and equal tokens have
equal numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.engine.contents import segment_rows

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from numpy.typing import NDArray

RING = 31990
#: How far the first tokens of neighbouring segments stand apart on the ring.
PER_SEGMENT = 1000003 * pow(7919, -1, RING) % RING
#: The contents: the ring, and the end-of-sequence token, which no segment has.
TOKENS, END_OF_SEQUENCE = 0, 1

Piece = tuple[int, int, int]


def pieces(segment: int, start: int, num_tokens: int) -> list[Piece]:
    """Return a stretch of a segment as stretches of the ring, cut where it closes."""
    found, at = [], (segment * PER_SEGMENT + start) % RING
    while num_tokens > 0:
        taken = min(num_tokens, RING - at)
        found.append((TOKENS, at, taken))
        num_tokens -= taken
        at = 0
    return found


def spans(segments: Iterable[list[int]]) -> list[tuple[int, int, int]]:
    """Return segments as written, [segment, n] or [segment, start, n], with their starts."""
    return [(s[0], s[1], s[2]) if len(s) > 2 else (s[0], 0, s[1]) for s in segments]


def token(segment: int, index: int) -> int:
    """Return a token of a segment."""
    return 10 + (segment * 1000003 + index * 7919) % RING


def numbers(keys: Iterable[Hashable]) -> list[int]:
    """Number namespaces from 1 on; none of them is 0."""
    known: dict[Hashable, int] = {}
    return [0 if key is None else known.setdefault(key, len(known) + 1) for key in keys]


def rows_of(contents: list[list[Piece]]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the pieces of all requests one after another, and where each one's begin."""
    flat = [piece for one in contents for piece in one]
    columns = zip(*flat, strict=True) if flat else ((), (), ())
    return segment_rows(*columns), np.cumsum([0, *map(len, contents)])
