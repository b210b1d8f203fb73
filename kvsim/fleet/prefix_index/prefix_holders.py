"""Prompt tokens that are really in a fleet's caches: for a run's statistics, not for routers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.rules.engine import LOOK_UP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.engine.incoming import IncomingRequest


class PrefixHolders:
    """Looks up prompts at the replicas in some slots; one call looks up all compiled replicas.

    Parameters
    ----------
    replicas : the replicas, by slot; the replica in a slot may change
    """

    def __init__(self, replicas: Sequence[Any]) -> None:
        self._replicas = replicas
        self._places: Sequence[int] = range(len(replicas))
        self._is_looked_up = False
        self._look_up: Any = None  # an unused look-up need not be compiled

    def show(self, places: Sequence[int]) -> None:
        """Restrict look-ups to some slots. Mutates."""
        self._places = places
        self._is_looked_up = False

    def most(self, request: IncomingRequest, place: int | None = None) -> int:
        """Return the longest cached prefix of a prompt on any replica, in tokens. Mutates itself.

        If the replica in slot ``place`` is known to hold it, only this replica is looked up.
        """
        if place is not None:
            return int(self._replicas[place].num_cached_tokens(request))
        if not self._is_looked_up:
            asked = [self._replicas[place] for place in self._places]
            self._entries = np.array([getattr(r, "entry_address", 0) for r in asked], np.int64)
            self._addresses = np.array([r.address for r in asked], np.int64)
            self._is_looked_up = True
        if not self._entries.all():
            found = [self._replicas[place].num_cached_tokens(request) for place in self._places]
            return max(map(int, found))
        if self._look_up is None:
            from kvsim.compiled import loops, replica_set

            self._look_up = loops.translated(replica_set.look_up)
        return int(self._look_up(self._entries, self._addresses, LOOK_UP, request.request_id))
