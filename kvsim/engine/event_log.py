"""A replica's KV cache events: its log, and the events that the log had no room for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.kv.events import EventRows, take_events, widen

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.records.events import EventLog
    from kvsim.records.memory import Memory
    from kvsim.records.paged import BlockPool


class ReplicaEventLog:
    """The log of a replica's KV cache events, for its reader.

    Parameters
    ----------
    pool : the block pool that the log belongs to
    memory : memory of the log

    Attributes
    ----------
    spilled : events that were moved out of a full log before a reader took them
    on_full : called to make room in a full log; None moves its events to ``spilled``
    """

    def __init__(self, pool: BlockPool, memory: Memory) -> None:
        self._pool = pool
        self._memory = memory
        self._log: EventLog = pool.log  # the record stays at its address; its lists may move
        self.spilled: list[EventRows] = []
        self.on_full: Callable[[], None] | None = None

    @property
    def has_events(self) -> bool:
        """True if there are unread events."""
        return bool(self.spilled) or self._log.num_events > 0

    def take(self) -> list[EventRows]:
        """Return the events since the last call. Mutates."""
        taken = [*self.spilled, take_events(self._pool)]
        self.spilled.clear()
        return taken

    def make_room(self) -> None:
        if self.on_full is None:
            self.spilled.append(take_events(self._pool))
        else:
            self.on_full()

    def widen(self) -> None:
        """Enlarge the log, keeping its events. Mutates."""
        widen(self._pool, self._memory)
