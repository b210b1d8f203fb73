"""Lanes of clients: each serves one session, with its sub-agents, after the other."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from kvsim.trace.waits import roots_of

if TYPE_CHECKING:
    from kvsim.trace import Trace


class Lanes:
    """The sessions that have not begun, and the requests that each begun one still waits for.

    A request without a session counts as a session.

    Parameters
    ----------
    trace : the requests
    number : number of lanes
    """

    def __init__(self, trace: Trace, number: int) -> None:
        self.number = number
        root = roots_of(trace)
        root = np.where(root < 0, np.arange(len(trace)), root)
        _, first, tree, size = np.unique(
            root, return_index=True, return_inverse=True, return_counts=True
        )
        self._tree = tree.tolist()
        self._left = size.tolist()
        self._end = [-math.inf] * len(size)
        self._offset = (trace.arrival_time - trace.arrival_time[first][tree]).tolist()
        by_tree = np.split(np.argsort(tree, kind="stable"), np.cumsum(size)[:-1])
        self._next = iter([rows.tolist() for rows in by_tree])

    def take(self) -> list[tuple[int, float]]:
        """Return the next session's requests, and their planned seconds after its begin. Mutates.

        The list is empty if every session has begun.
        """
        return [(row, self._offset[row]) for row in next(self._next, ())]

    def ended(self, row: int, time: float) -> float | None:
        """Handle the end of a request; return that of its session, None if it goes on. Mutates."""
        tree = self._tree[row]
        self._left[tree] -= 1
        self._end[tree] = max(self._end[tree], time)
        return None if self._left[tree] else self._end[tree]
