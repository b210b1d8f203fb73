"""Prompts as slices of one list of texts, so that turns of a session share texts without copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Slices(Sequence[list[tuple[int, int, int]]]):
    """Lists of (content_id, start, num_tokens), each made of consecutive texts.

    Attributes
    ----------
    content_id, num_tokens : content and length of every text, shape (texts,)
    first, end : index of each prompt's first text, and one past its last text, shape (n,)
    cut : tokens cut from the front of each prompt's first text, shape (n,)
    """

    content_id: Ints
    num_tokens: Ints
    first: Ints
    end: Ints
    cut: Ints

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, row: int) -> list[tuple[int, int, int]]:  # type: ignore[override]
        _, content, start, length = self.take([row]).flat()
        return list(zip(content.tolist(), start.tolist(), length.tolist(), strict=True))

    def take(self, rows: ArrayLike) -> Slices:
        """Return the prompts of some rows, in that order."""
        order = np.asarray(rows)
        return replace(self, first=self.first[order], end=self.end[order], cut=self.cut[order])

    def flat(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Return offsets by prompt, shape (n + 1,), and content, start and length by segment."""
        sizes = self.end - self.first
        offsets = np.concatenate(([0], np.cumsum(sizes)))
        text = np.arange(offsets[-1]) + np.repeat(self.first - offsets[:-1], sizes)
        start, length = np.zeros(len(text), np.int64), self.num_tokens[text]
        front = offsets[:-1][sizes > 0]
        start[front] = self.cut[sizes > 0]
        length[front] -= start[front]
        return offsets, self.content_id[text], start, length
