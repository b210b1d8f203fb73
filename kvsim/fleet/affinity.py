"""llm-d's filter: keep to the replicas that hold most of a prompt, while they are not too busy."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def sticky(hit_rates: Sequence[float], least: float) -> list[int]:
    """Return the replicas that hold at least a share of a prompt; all, if none does."""
    found = [place for place, rate in enumerate(hit_rates) if rate >= least]
    return found or list(range(len(hit_rates)))


def is_released(loads: Sequence[float], warm: Sequence[int], most_apart: float) -> bool:
    """Whether the least loaded sticky replica is too far above the least loaded other one."""
    cold = [load for place, load in enumerate(loads) if place not in warm]
    return bool(cold) and min(loads[place] for place in warm) - min(cold) >= most_apart
