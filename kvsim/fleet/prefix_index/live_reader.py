"""A delayed index of the replicas' blocks without a table: look-ups read the replicas' pools."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.compiled import live_blocks
from kvsim.compiled.loops import translated
from kvsim.compiled.variants import variant_of
from kvsim.fleet.prefix_index.event_reader import EventReader
from kvsim.records.events import STORED, UPDATE
from kvsim.rules.events import is_short_of_room

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.engine.replica import Replica

#: Longest delay, seconds; each look-up reads and undoes all events of the last ``delay`` seconds.
LONGEST_DELAY = 0.05


def is_live(replicas: Sequence[Any], delay: float) -> bool:
    """Return True if look-ups can read the pools: short delay, one group, LRU eviction."""
    there = [one for one in replicas if one.address]
    return delay <= LONGEST_DELAY and all(variant_of(one.state) == "with-events" for one in there)


class LiveIndex:
    """Gives the same results as a ``PrefixIndex`` that events update.

    Parameters
    ----------
    replicas : the replicas, by slot; the replica in a slot may change
    """

    def __init__(self, replicas: Sequence[Any]) -> None:
        self._match, self._deepest, self._learn, self._held_by = map(
            translated,
            (live_blocks.match_live, live_blocks.deepest, live_blocks.learn, live_blocks.held_by),
        )
        self._replicas = replicas
        self.guesses = np.zeros(len(replicas), np.int64)  # of the depth of each match
        self.known = np.zeros(len(replicas), np.int64)  # number of known events of each log
        self.until = -np.inf
        self._matched, self._most, self._places, now_held = np.zeros((4, len(replicas)), np.int64)
        self._unseen, seen, due = np.full((3, len(replicas)), np.nan)
        self._looked = self.guesses, now_held, np.full(len(replicas), -1), seen, due
        self._look_up()

    def _look_up(self) -> None:
        """Update the addresses of the replicas. Mutates."""
        self._addresses = np.array([one.address for one in self._replicas], np.int64)

    def forget(self, replica: int) -> None:
        """Read a new replica in this slot. Mutates."""
        self.known[replica] = 0
        self._look_up()

    def take(self, *args: object) -> None:
        """Do nothing: the pools have the content that events report."""

    def match(self, keys: Iterable[int], now: float = 0.0) -> list[int]:
        """Return the number of leading keys that each replica holds."""
        del now
        path = keys if isinstance(keys, np.ndarray) else np.array(list(keys), np.int64)
        self._most[:] = len(path)
        self._looked[3][:] = self._looked[4][:] = np.nan  # a replica may have changed since
        self._match(
            *(self._addresses, self._unseen, self.known, float(self.until), path, self._most),
            *(self._looked, self._matched, self._places),
        )
        found: list[int] = self._matched.tolist()
        return found

    def deepest(self, path: NDArray[np.int64]) -> int:
        """Return the replica with the longest prefix of a path now; pending events count, too."""
        return self._deepest(self._addresses, path, self.guesses)

    def learn(self, place: int, until: float) -> None:
        """Mark a replica's events up to a time as known. Mutates."""
        address = self._addresses[place]
        self.known[place] = self._learn(address, self.known[place], until)

    def holders(self, key: int) -> int:
        """Return the replicas that hold an entry, as a bit mask: bit ``i`` is replica ``i``."""
        held = np.zeros(len(self._addresses), np.bool_)
        self._apply_all()
        self._held_by(self._addresses, self.known, key, held)
        return sum(1 << place for place in np.flatnonzero(held).tolist())

    def size(self, replica: int) -> int:
        if not self._addresses[replica]:
            return 0
        self._apply_all()
        pool = self._replicas[replica].state.kv.pool
        blocks = pool.blocks.array
        numbers = Counter(blocks["key"][blocks["hashed"] != 0].tolist())
        log = pool.log
        for event in log.events.array[self.known[replica] : log.num_events]:
            if event["kind"] == UPDATE:
                continue
            first = int(event["first_key"])
            for key in log.keys[first : first + int(event["key_count"])]:
                numbers[key] += -1 if event["kind"] == STORED else 1
        return sum(number > 0 for number in numbers.values())

    def _apply_all(self) -> None:
        for place in np.flatnonzero(self._addresses).tolist():
            self.learn(place, self.until)


class LiveReader(EventReader):
    """Applies and copies no events, but tracks how many events of each log are known.

    Listeners receive nothing. A full log drops the events that are known.
    """

    index: LiveIndex

    def __init__(self, replicas: Sequence[Replica], *args: Any, **options: Any) -> None:
        self._shown = list(replicas)
        super().__init__(replicas, *args, **options)
        self._replicas = self._shown
        for place, replica in enumerate(replicas):
            self._follow(place, replica)

    def _make_index(self, num_replicas: int, group: int) -> LiveIndex:
        del num_replicas, group
        return LiveIndex(self._shown)

    def _follow(self, place: int, replica: Any) -> None:
        if replica.address:
            replica.event_log.on_full = partial(self._free_unloaded, place, replica)

    def _free_unloaded(self, place: int, replica: Replica) -> None:
        """Make room in a replica's log. Mutates."""
        self.index.learn(place, replica.clock - self._delay)
        if is_short_of_room(replica.state.kv.pool.log):
            replica.event_log.widen()

    def replace(self, place: int, replica: Replica) -> None:
        if self._shown[place].address:
            self._shown[place].event_log.on_full = None  # the log is not read any more
        super().replace(place, replica)
        self._follow(place, replica)

    def update(self, now: float) -> None:
        self.index.until = now - self._delay

    @property
    def names_whole_blocks(self) -> bool:
        """Return True if every entry is one block, with a key that covers no later tokens."""
        return self._per_entry == 1 and self._ahead == 0

    def columns(self) -> tuple[Any, ...]:
        """Return the number of known events of each log, guesses of match depths, and the delay."""
        return self.index.known, self.index.guesses, self._delay

    def deepest(self, request: IncomingRequest) -> int:
        """Return the replica with the longest prefix of a prompt; pending events count, too."""
        return self.index.deepest(self.entry_path(request))
