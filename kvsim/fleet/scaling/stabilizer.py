"""How far, and how soon again, AIBrix's autoscalers resize a pool."""

from __future__ import annotations

import math


class Stabilizer:
    """At most the double, at least the half per decision; a cool-down before it shrinks.

    Source: aibrix at e3e10f9e, podautoscaler/algorithm.

    Parameters
    ----------
    cooldown : seconds since the pool last grew, before it shrinks
    """

    def __init__(self, cooldown: float) -> None:
        self._cooldown = cooldown
        self._last_growth = -math.inf

    def allow(self, now: float, current: int, wanted: int, *, may_shrink: bool = True) -> int:
        """Return how many replicas there may be at a time, of ``current``. Mutates."""
        wanted = max(min(wanted, 2 * current), current // 2)
        if wanted > current:
            self._last_growth = now
        elif not may_shrink or now - self._last_growth < self._cooldown:
            return current
        return wanted
