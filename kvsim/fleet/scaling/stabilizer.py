"""Limits on the size and the frequency of changes by AIBrix's autoscalers."""

from __future__ import annotations

import math


class Stabilizer:
    """Limits decisions: at most double or half the replicas, and a cool-down before shrinking.

    Source: aibrix at e3e10f9e, podautoscaler/algorithm.

    Parameters
    ----------
    cooldown : seconds from the last growth until the pool may shrink
    """

    def __init__(self, cooldown: float) -> None:
        self._cooldown = cooldown
        self._last_growth = -math.inf

    def allow(self, now: float, current: int, wanted: int, *, may_shrink: bool = True) -> int:
        """Return the allowed number of replicas closest to ``wanted``. Mutates."""
        wanted = max(min(wanted, 2 * current), current // 2)
        if wanted > current:
            self._last_growth = now
        elif not may_shrink or now - self._last_growth < self._cooldown:
            return current
        return wanted
