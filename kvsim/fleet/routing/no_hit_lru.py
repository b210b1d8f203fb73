"""llm-d's scorer that spreads the prompts that no replica has cached.

Source: llm-d-inference-scheduler at 520af478, pkg/epp/framework/plugins/scheduling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class NoHitLru:
    """Spreads prompts that no replica holds.

    Replicas that never received such a prompt come first, then the least recently used ones. Scores
    are ranks among the candidates: from 1 for the first to 0 for the last.
    """

    def __init__(self) -> None:
        self._order: list[int] = []  # replicas with such prompts, the least recently used first

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
        """Record the replica of a prompt that no replica holds. Mutates."""
        if not any(matched):
            self.forget(replica)
            self._order.append(replica)

    def forget(self, replica: int) -> None:
        """Remove a replica, so that a new one in its slot counts as unused. Mutates."""
        if replica in self._order:
            self._order.remove(replica)
