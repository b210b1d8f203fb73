"""History of every KV block: events, and the intervals between them."""

from __future__ import annotations

from collections import defaultdict
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterable


class BlockEvent(IntEnum):
    """Event of a block, or of all blocks that a request holds."""

    ALLOC = 0  # a request allocates a block to write new content
    HIT = 1  # a request finds a block in the prefix cache, and holds it
    REF_ADD = 2  # one more sequence holds a block
    REF_DROP = 3  # one sequence fewer holds a block, others still do
    FREE = 4  # no request holds a block any more
    STORE = 5  # the content of a block gets a key: other requests can hit it
    EVICT = 6  # the content of a block cannot be hit any more
    PREEMPT = 7  # a request loses all its blocks
    ADMIT = 8  # a request joins the batch; place holds the number of tokens it hit
    RECV = 9  # a request waits for KV to arrive in its blocks
    SEND = 10  # a request has ended, and its blocks stay until their KV has been read
    LOAD = 11  # the content of a block comes from host memory, where it stays, too
    COPY = 12  # the content of a block is copied to host memory


class BlockState(IntEnum):
    """State of a block between two events."""

    FREE = 0  # without content
    RUNNING = 1
    SHARED = 2  # by several sequences
    CACHED_FREE = 3  # held by no request, can be hit
    IN_TRANSFER = 4
    HOST_COPY = 5  # held by no request, can be hit, and was copied to or from host memory


#: One row per event, in order of time. request, block and place are -1 if there is none. place is
#: the block's index in the request's tables, all groups and sequences one after another; for a
#: STORE in a radix tree it is the preceding block. key names the content of STORE, EVICT and HIT.
BLOCK_EVENTS = np.dtype(
    [
        ("time", "f8"),
        ("replica", "i4"),
        ("kind", "i1"),
        ("request", "i8"),
        ("block", "i4"),
        ("place", "i4"),
        ("key", "i8"),
    ]
)

#: One row per interval of a block in one state: start and end in seconds, the request that has held
#: the block longest (-1 for none), the number of holders, and a BlockState.
BLOCK_RUNS = np.dtype(
    [
        ("replica", "i4"),
        ("block", "i4"),
        ("start", "f8"),
        ("end", "f8"),
        ("request", "i8"),
        ("num_refs", "i4"),
        ("state", "i1"),
    ]
)

TAKES = (BlockEvent.ALLOC, BlockEvent.HIT, BlockEvent.REF_ADD)
DROPS = (BlockEvent.REF_DROP, BlockEvent.FREE)


def block_runs(events: NDArray[Any], end_time: float) -> NDArray[Any]:
    """Return the state of every block between events, without empty intervals.

    Parameters
    ----------
    events : rows of :data:`BLOCK_EVENTS`
    end_time : end of the last intervals, seconds

    Returns
    -------
    Rows of :data:`BLOCK_RUNS` by replica, block and time; none for a block without events or for
    free memory without content.
    """
    rows: list[tuple[Any, ...]] = []
    for replica in np.unique(events["replica"]).tolist():
        rows += _runs_of(events[events["replica"] == replica], replica, end_time)
    table = np.array(rows, dtype=BLOCK_RUNS)
    return table[np.lexsort((table["start"], table["block"], table["replica"]))]


class _Block:
    """The state of a block, and its start time."""

    __slots__ = ("cached", "copied", "holders", "since")

    def __init__(self) -> None:
        self.holders: list[int] = []
        self.cached = self.copied = False
        self.since = 0.0

    def state(self, waits: set[int]) -> BlockState:
        """Return the state, given the requests with KV in transfer."""
        if not self.holders:
            return BlockState.HOST_COPY if self.copied else BlockState.CACHED_FREE
        if self.holders[0] in waits:
            return BlockState.IN_TRANSFER
        return BlockState.SHARED if len(self.holders) > 1 else BlockState.RUNNING

    def update(self, kind: int, request: int) -> None:
        if kind in TAKES:
            self.copied &= kind != BlockEvent.ALLOC
            self.holders.append(request)
        elif kind in DROPS:
            self.holders.remove(request)
        elif kind in (BlockEvent.LOAD, BlockEvent.COPY):
            self.copied = True
        else:
            self.cached = kind == BlockEvent.STORE
            self.copied &= self.cached


def _runs_of(events: NDArray[Any], replica: int, end_time: float) -> list[tuple[Any, ...]]:
    """Return the intervals of one replica's blocks."""
    blocks: defaultdict[int, _Block] = defaultdict(_Block)
    held: defaultdict[int, set[int]] = defaultdict(set)  # blocks by request
    waits: set[int] = set()  # requests with KV in transfer
    rows: list[tuple[Any, ...]] = []

    def end(numbers: Iterable[int], time: float) -> None:
        """Write the intervals that end now."""
        for number in numbers:
            block = blocks[number]
            if time > block.since and (block.holders or block.cached):
                owner = block.holders[0] if block.holders else -1
                state = int(block.state(waits))
                rows.append((replica, number, block.since, time, owner, len(block.holders), state))
            block.since = time

    for time, _, kind, request, number, _, _ in events.tolist():
        if number >= 0:
            end((number,), time)
            blocks[number].update(kind, request)
            holds = request in blocks[number].holders
            (held[request].add if holds else held[request].discard)(number)
        elif kind in (BlockEvent.RECV, BlockEvent.SEND) or request in waits:
            end(held[request], time)
            goes_on = kind in (BlockEvent.ADMIT, BlockEvent.PREEMPT)
            (waits.discard if goes_on else waits.add)(request)
    end(blocks, end_time)
    return rows


Floats = NDArray[np.float64]


class Residency(NamedTuple):
    """Lifetimes of evicted content, seconds.

    ``ends`` are the eviction times, ``lives`` the times in the cache, ``idles`` the times since the
    last touch; ``gaps`` are the times between touches of content that was evicted at ``gap_ends``.
    A touch is a hit. A life begins when a block is allocated for new content, or when content
    fetched from the host gets its key in a radix tree.
    """

    ends: Floats
    lives: Floats
    idles: Floats
    gaps: Floats
    gap_ends: Floats


def residency(events: NDArray[Any]) -> Residency:
    """Return vLLM's residency metrics of one replica's blocks; every block counts, not a sample."""
    ends, lives, idles = [], [], []
    gaps: list[float] = []
    gap_ends: list[float] = []
    born: dict[int, float] = {}
    touched: dict[int, list[float]] = {}
    kinds = BlockEvent.ALLOC, BlockEvent.STORE, BlockEvent.HIT, BlockEvent.EVICT
    wanted = events[np.isin(events["kind"], kinds)]
    for time, _, kind, _, block, _, _ in wanted.tolist():
        if kind == BlockEvent.ALLOC or (kind == BlockEvent.STORE and block not in born):
            born[block], touched[block] = time, []
        elif kind == BlockEvent.HIT:
            touched[block].append(time)
        elif kind == BlockEvent.EVICT and block in born:
            touches, begin = touched.pop(block), born.pop(block)
            ends.append(time)
            lives.append(time - begin)
            idles.append(time - (touches[-1] if touches else begin))
            gaps += np.diff(touches).tolist()
            gap_ends += [time] * max(len(touches) - 1, 0)
    return Residency(*(np.array(one, np.float64) for one in (ends, lives, idles, gaps, gap_ends)))
