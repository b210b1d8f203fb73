"""llm-d's filter: prefer replicas that hold most of a prompt, unless they are too busy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def sticky(hit_rates: Sequence[float], least: float) -> list[int]:
    """Return the indices of the hit rates of at least ``least``; all indices if there are none."""
    found = [place for place, rate in enumerate(hit_rates) if rate >= least]
    return found or list(range(len(hit_rates)))


def lead(loads: Sequence[float], warm: Sequence[int]) -> float:
    """Return the least load of the ``warm`` replicas minus the least load of the others.

    Minus infinity if there is no other replica.
    """
    cold = [load for place, load in enumerate(loads) if place not in warm]
    return min(loads[place] for place in warm) - min(cold) if cold else -math.inf
