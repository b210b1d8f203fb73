"""llm-d's scorers, which score each replica between 0 and 1.

Source: llm-d-inference-scheduler at 520af478, pkg/epp/framework/plugins/scheduling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Tokens in flight at which the token load scores 0.
MOST_TOKENS = 4_194_304
#: Waiting requests at which the load-aware score is 0.
MOST_WAITING = 128


def least_is_best(values: Sequence[float]) -> list[float]:
    """Score queues or running requests: from 1 for the fewest to 0 for the most; 1 if equal."""
    low, high = min(values), max(values)
    if high == low:
        return [1.0] * len(values)
    return [(high - value) / (high - low) for value in values]


def among_holders(matched: Sequence[int]) -> list[float]:
    """Score matched prefixes: from 0 for the shortest to 1 for the longest; 0 without a match.

    1 if all matches are equal. llm-d's scorer of the precise index did so in 2025
    (llm-d-inference-scheduler at c8e1e2a8, pkg/plugins/scorer/utils.go); today's uses the share of
    the prompt.
    """
    held = [number for number in matched if number]
    low, high = min(held, default=0), max(held, default=0)
    if high == low:
        return [float(number > 0) for number in matched]
    return [(number - low) / (high - low) if number else 0.0 for number in matched]


def active_requests(
    in_flight: Sequence[int], *, idle_threshold: int = 0, most_when_busy: float = 1.0
) -> list[float]:
    """Score requests in flight: 1 if idle, else by distance from the busiest."""
    most = max(in_flight)
    return [
        1.0 if number <= idle_threshold else (most - number) / most * most_when_busy
        for number in in_flight
    ]


def token_load(in_flight: Sequence[int]) -> list[float]:
    """Score tokens in flight."""
    return [1 - min(1.0, tokens / MOST_TOKENS) for tokens in in_flight]


def load_aware(waiting: Sequence[int]) -> list[float]:
    """Score waiting requests: 0.5 if none waits."""
    return [0.5 * (1 - min(number, MOST_WAITING) / MOST_WAITING) for number in waiting]


class NoHitLru:
    """Spreads prompts that no replica holds: to replicas that never had one, then to the LRU one.

    Scores are ranks among the candidates: from 1 for the first to 0 for the last.
    """

    def __init__(self) -> None:
        self._order: list[int] = []  # replicas that got such prompts, the oldest first

    def score(self, matched: Sequence[int], among: Sequence[int]) -> list[float]:
        """Score some replicas for a prompt: 0.5 for all if any replica holds a part of it."""
        if any(matched):
            return [0.5] * len(among)
        fresh = [replica for replica in among if replica not in self._order]
        used = [replica for replica in self._order if replica in among]
        rank = {replica: place for place, replica in enumerate([*fresh, *used])}
        steps = max(len(among) - 1, 1)
        return [1 - rank[replica] / steps for replica in among]

    def sent(self, replica: int, matched: Sequence[int]) -> None:
        """Record the replica of a prompt that none holds. Mutates."""
        if not any(matched):
            self.forget(replica)
            self._order.append(replica)

    def forget(self, replica: int) -> None:
        """Remove a replica that is gone: a new one in its slot has had no prompt. Mutates."""
        if replica in self._order:
            self._order.remove(replica)
