"""Paths of block keys, and the number of their different blocks."""

from __future__ import annotations

from bisect import bisect_left

#: Bytes of a key.
KEY = 8


class PathSet:
    """Paths in the order of their bytes; duplicates are allowed.

    A path is the keys of a prompt's blocks. A key covers all keys before it, so two paths share
    only a prefix, and a path shares its longest prefix with a neighbour. So the set needs no table
    of single keys, of which a prompt has thousands.
    """

    def __init__(self) -> None:
        self._paths: list[bytes] = []

    def add(self, path: bytes) -> int:
        """Insert a path; return the number of its keys that no other path has. Mutates."""
        place = bisect_left(self._paths, path)
        number = self._num_own(path, place)
        self._paths.insert(place, path)
        return number

    def remove(self, path: bytes) -> int:
        """Remove a path; return the number of its keys that no other path has. Mutates.

        Raises
        ------
        ValueError
            If the set has no such path.
        """
        place = bisect_left(self._paths, path)
        if self._paths[place : place + 1] != [path]:
            raise ValueError("path: is not there")
        del self._paths[place]
        return self._num_own(path, place)

    def clear(self) -> None:
        self._paths.clear()

    def _num_own(self, path: bytes, place: int) -> int:
        """Count the keys of a path for index ``place`` that neither neighbour has."""
        shared = 0
        for other in self._paths[max(place - 1, 0) : place + 1]:
            shared = max(shared, num_shared(path, other))
        return len(path) // KEY - shared


def num_shared(path: bytes, other: bytes) -> int:
    """Return the number of leading keys that two paths share."""
    low, high = 0, min(len(path), len(other)) // KEY
    while low < high:
        middle = (low + high + 1) // 2
        if path.startswith(other[: KEY * middle]):
            low = middle
        else:
            high = middle - 1
    return low
