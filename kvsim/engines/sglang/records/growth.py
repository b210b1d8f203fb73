"""Making room for more requests in the records of SGLang's scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.engines.sglang.records.scheduler import Progress
from kvsim.engines.sglang.records.storage import Read
from kvsim.records.queue import Neighbours

if TYPE_CHECKING:
    from kvsim.records.engine import Replica
    from kvsim.records.memory import Memory


def more_progress(state: Replica, memory: Memory, n: int, count: int) -> None:
    """Make the scheduler's records of more requests."""
    scheduler = state.engines.sglang
    if memory.compiled:
        if n + count > len(scheduler.progress):
            room: Any = memory.blank(Progress, len(state.requests))
            if n:
                room.array[:n] = scheduler.progress[:n].array  # type: ignore[attr-defined]
            memory.replace(scheduler, progress=room)
    else:
        scheduler.progress.extend(memory.records(Progress, count))
    if state.storage.is_on:
        more_reads(state, memory, n, count)
    for name in ("order_now", "merged"):
        memory.replace(scheduler, **{name: memory.ints(n + count)})


def more_reads(state: Replica, memory: Memory, n: int, count: int) -> None:
    """Make the records of reads from storage."""
    storage = state.storage
    for name, kind in (("reads", Read), ("places", Neighbours)):
        known: Any = getattr(storage, name)
        if not memory.compiled:
            known.extend(memory.records(kind, count))
            continue
        room: Any = memory.blank(kind, len(state.requests))
        if n:
            room.array[:n] = known[:n].array
        memory.replace(storage, **{name: room})
