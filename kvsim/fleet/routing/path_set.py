"""Paths of block keys, and how many different blocks they have together."""

from __future__ import annotations

from bisect import bisect_left

#: Bytes of a key.
KEY = 8


class PathSet:
    """Paths in the order of their bytes; one may be there several times.

    A key covers all keys before it, so paths share what they begin with and nothing else; of all
    others, neighbours share most with a path. Nothing is kept by key: prompts have thousands.
    """

    def __init__(self) -> None:
        self._paths: list[bytes] = []

    def add(self, path: bytes) -> int:
        """Take in a path; returns how many of its keys no other path has. Mutates."""
        place = bisect_left(self._paths, path)
        number = self._num_own(path, place)
        self._paths.insert(place, path)
        return number

    def remove(self, path: bytes) -> int:
        """Take a path out; returns how many of its keys no other path has. Mutates.

        Raises
        ------
        ValueError
            If it is not there.
        """
        place = bisect_left(self._paths, path)
        if self._paths[place : place + 1] != [path]:
            raise ValueError("path: is not there")
        del self._paths[place]
        return self._num_own(path, place)

    def clear(self) -> None:
        """Forget everything. Mutates."""
        self._paths.clear()

    def _num_own(self, path: bytes, place: int) -> int:
        """Count the keys of a path that those beside a place, which is its own, have not."""
        shared = 0
        for other in self._paths[max(place - 1, 0) : place + 1]:
            shared = max(shared, num_shared(path, other))
        return len(path) // KEY - shared


def num_shared(path: bytes, other: bytes) -> int:
    """Return how many keys two paths begin with together."""
    low, high = 0, min(len(path), len(other)) // KEY
    while low < high:
        middle = (low + high + 1) // 2
        if path.startswith(other[: KEY * middle]):
            low = middle
        else:
            high = middle - 1
    return low
