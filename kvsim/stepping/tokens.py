"""Token ids of prompts as spans of contents: equal beginnings get equal spans.

A prefix cache compares prompts from their first token on. So it is enough that two prompts name
the same contents up to the first token that differs; :class:`PromptTree` finds that token.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from kvsim.trace import MAX_TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    #: Content, first token and number of tokens of a part of a prompt.
    Span = tuple[int, int, int]


def names_of(content_id: int, start: int, num_tokens: int) -> Ints:
    """Return ids of tokens of a content; the ids are negative, unlike a model's."""
    return -(content_id * MAX_TOKENS + np.arange(start, start + num_tokens)) - 1


def named_spans(ids: Ints) -> list[Span]:
    """Return the spans that negative ids name."""
    places = -(ids + 1)
    cuts = np.flatnonzero((np.diff(places) != 1) | (places[1:] % MAX_TOKENS == 0)) + 1
    firsts = np.concatenate(([0], cuts))
    lengths = np.diff(np.concatenate((firsts, [len(ids)])))
    contents, starts = np.divmod(places[firsts], MAX_TOKENS)
    return list(zip(contents.tolist(), starts.tolist(), lengths.tolist(), strict=True))


class Edge:
    """Tokens between two branches of the tree, their spans, and the next edges by first token."""

    __slots__ = ("ids", "next", "spans")

    def __init__(self, ids: Ints, spans: list[Span], following: dict[int, Edge]) -> None:
        self.ids = ids
        self.spans = spans
        self.next = following


class PromptTree:
    """A prefix tree of all prompts that were given as token ids."""

    def __init__(self) -> None:
        self._root: dict[int, Edge] = {}

    def spans(self, ids: Ints, fresh: int) -> list[Span]:
        """Return the spans of a prompt, and add it to the tree. Mutates.

        Tokens after the longest prefix shared with an earlier prompt get the content ``fresh``,
        except for negative ids, which name a content themselves.
        """
        found: list[Span] = []
        branches, place = self._root, 0
        while place < len(ids):
            edge = branches.get(int(ids[place]))
            if edge is None:
                rest = ids[place:]
                spans = new_spans(rest, fresh)
                branches[int(ids[place])] = Edge(rest.copy(), spans, {})
                found += spans
                break
            common = num_common(edge.ids, ids[place:])
            if common < len(edge.ids):
                split(edge, common)
            found += edge.spans
            branches, place = edge.next, place + common
        return joined(found)


def num_common(a: Ints, b: Ints) -> int:
    """Return the length of the longest common prefix."""
    most = min(len(a), len(b))
    differs = a[:most] != b[:most]
    return int(differs.argmax()) if differs.any() else most


def split(edge: Edge, count: int) -> None:
    """Cut an edge after its first ``count`` tokens. Mutates."""
    before, after = cut(edge.spans, count)
    rest = Edge(edge.ids[count:], after, edge.next)
    edge.ids, edge.spans, edge.next = edge.ids[:count], before, {int(rest.ids[0]): rest}


def cut(spans: Sequence[Span], count: int) -> tuple[list[Span], list[Span]]:
    """Return the spans of the first ``count`` tokens, and the spans of the remaining tokens."""
    before: list[Span] = []
    after: list[Span] = []
    for content, start, length in spans:
        taken = min(length, count)
        count -= taken
        if taken:
            before.append((content, start, taken))
        if taken < length:
            after.append((content, start + taken, length - taken))
    return before, after


def new_spans(ids: Ints, fresh: int) -> list[Span]:
    """Return the spans of tokens that no earlier prompt has at this position."""
    found: list[Span] = []
    named = ids < 0
    cuts = np.flatnonzero(np.diff(named)) + 1
    for first, stop in pairwise([0, *cuts.tolist(), len(ids)]):
        if named[first]:
            found += named_spans(ids[first:stop])
        else:
            found.append((fresh, first, stop - first))
    return found


def joined(spans: Sequence[Span]) -> list[Span]:
    """Return the same tokens with adjacent spans merged."""
    found: list[Span] = []
    for content, start, length in spans:
        if found and found[-1][0] == content and sum(found[-1][1:]) == start:
            found[-1] = (content, found[-1][1], found[-1][2] + length)
        else:
            found.append((content, start, length))
    return found


def names_content(ids: Ints) -> int:
    """Return the highest content number that negative ids name."""
    return int((-(ids + 1) // MAX_TOKENS).max())
