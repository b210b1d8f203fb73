"""Growth of the lists of SGLang's scheduler that have one record per request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.engines.sglang.records.scheduler import Progress
from kvsim.engines.sglang.records.states import Holding
from kvsim.engines.sglang.records.storage import Read
from kvsim.records.queue import Neighbours

if TYPE_CHECKING:
    from kvsim.records.engine import Replica
    from kvsim.records.memory import Memory


def more_progress(state: Replica, memory: Memory, n: int, count: int) -> None:
    """Add the scheduler's records for ``count`` more requests."""
    scheduler = state.engines.sglang
    more_rows(state, memory, scheduler, "progress", Progress, n, count)
    if state.kv.radix.has_states:
        more_rows(state, memory, scheduler, "held", Holding, n, count)
    if state.storage.is_on:
        for name, kind in (("reads", Read), ("places", Neighbours)):
            more_rows(state, memory, state.storage, name, kind, n, count)
    for name in ("order_now", "merged"):
        memory.replace(scheduler, **{name: memory.ints(n + count)})


def more_rows(
    state: Replica, memory: Memory, owner: Any, name: str, kind: Any, n: int, count: int
) -> None:
    """Add ``count`` records to a list that has one record per request."""
    known: Any = getattr(owner, name)
    if not memory.compiled:
        known.extend(memory.records(kind, count))
    elif n + count > len(known):
        room: Any = memory.blank(kind, len(state.requests))
        if n:
            room.array[:n] = known[:n].array
        memory.replace(owner, **{name: room})
