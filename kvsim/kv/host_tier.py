"""Host memory behind the block pool: contents by key, the first of those put out leave first."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class HostTier:
    """Keeps the KV of up to ``num_blocks`` evicted blocks. What is fetched stays, too."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._keys: dict[int, None] = {}  # longest ago put out first
        self._pinned: set[int] = set()

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: int) -> bool:
        return key in self._keys

    def store(self, key: int) -> bool:
        """Take in a content; whether that takes a copy. Mutates.

        One that is held already counts as new but needs no copy; one for which only pinned
        contents could leave is dropped.
        """
        if key in self._keys:
            del self._keys[key]
            self._keys[key] = None
            return False
        if len(self._keys) >= self.num_blocks:
            oldest = next((k for k in self._keys if k not in self._pinned), None)
            if oldest is None:
                return False
            del self._keys[oldest]
        self._keys[key] = None
        return True

    def pin(self, keys: Iterable[int]) -> None:
        """Keep contents that are about to be read, and no others. Mutates."""
        self._pinned = set(keys)
