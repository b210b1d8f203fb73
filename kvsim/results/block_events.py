"""What became of every KV block: events, and the stretches between them."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class BlockEvent(IntEnum):
    """What happens to a block, or to all that a request holds."""

    ALLOC = 0  # a request takes a block whose content it will write
    HIT = 1  # a request takes a block for its content
    REF_ADD = 2  # one more sequence holds a block
    REF_DROP = 3  # one fewer holds it, others still do
    FREE = 4  # nobody holds it any more
    STORE = 5  # its content has got a key: others can hit it
    EVICT = 6  # its content cannot be hit any more
    PREEMPT = 7  # a request loses all its blocks
    ADMIT = 8  # a request joins the batch; place holds the tokens it hit
    RECV = 9  # a request waits for KV to arrive in its blocks
    SEND = 10  # a request has ended, and its blocks are kept to be read
    LOAD = 11  # its content comes from host memory, where it stays
    COPY = 12  # its content is copied to host memory


class BlockState(IntEnum):
    """What a block is between two events."""

    FREE = 0  # without content
    RUNNING = 1
    SHARED = 2  # by several sequences
    CACHED_FREE = 3  # nobody's, and can be hit
    IN_TRANSFER = 4
    HOST_COPY = 5  # nobody's, can be hit, and was copied to or from host memory


#: One row per event, in order of time. request, block and place are -1 where there is none; place
#: counts the blocks of a request's table, all groups and sequences one after another; of a STORE in
#: a radix tree it is the block before; key names the content of STORE, EVICT and HIT.
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

#: One row per stretch of a block in one state: seconds, the request that has held it longest (-1
#: for none), how many hold it, a BlockState.
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
    """Return what every block was from event to event, stretches of no length left out.

    Parameters
    ----------
    events : rows of :data:`BLOCK_EVENTS`
    end_time : when the last stretches end, seconds

    Returns
    -------
    Rows of :data:`BLOCK_RUNS` by replica, block and time. A block that nothing has happened to has
    none; free memory without content has none either.
    """
    rows: list[tuple[Any, ...]] = []
    for replica in np.unique(events["replica"]).tolist():
        rows += _runs_of(events[events["replica"] == replica], replica, end_time)
    table = np.array(rows, dtype=BLOCK_RUNS)
    return table[np.lexsort((table["start"], table["block"], table["replica"]))]


class _Now:
    """What a block is now, and since when."""

    __slots__ = ("cached", "copied", "holders", "since")

    def __init__(self) -> None:
        self.holders: list[int] = []
        self.cached = self.copied = False
        self.since = 0.0


def _runs_of(events: NDArray[Any], replica: int, end_time: float) -> list[tuple[Any, ...]]:
    """Return the stretches of one replica's blocks."""
    blocks: dict[int, _Now] = {}
    rows: list[tuple[Any, ...]] = []
    waits: set[int] = set()  # requests whose KV is under way
    held: dict[int, set[int]] = {}

    def end(block: int, now: _Now, time: float) -> None:
        """Write the stretch that ends now, if there was any."""
        if time > now.since and (now.holders or now.cached):
            owner = now.holders[0] if now.holders else -1
            count = len(now.holders)
            if not count:
                state = BlockState.HOST_COPY if now.copied else BlockState.CACHED_FREE
            elif owner in waits:
                state = BlockState.IN_TRANSFER
            else:
                state = BlockState.SHARED if count > 1 else BlockState.RUNNING
            rows.append((replica, block, now.since, time, owner, count, int(state)))
        now.since = time

    for time, _, kind, request, block, _, _ in events.tolist():
        if block < 0:
            if kind not in (BlockEvent.RECV, BlockEvent.SEND) and request not in waits:
                continue
            for one in held.get(request, ()):
                end(one, blocks[one], time)
            (waits.discard if kind in (BlockEvent.ADMIT, BlockEvent.PREEMPT) else waits.add)(
                request
            )
            continue
        now = blocks.setdefault(block, _Now())
        end(block, now, time)
        if kind in TAKES:
            now.copied &= kind != BlockEvent.ALLOC
            now.holders.append(request)
            held.setdefault(request, set()).add(block)
        elif kind in DROPS:
            now.holders.remove(request)
            if request not in now.holders:
                held[request].discard(block)
        elif kind in (BlockEvent.LOAD, BlockEvent.COPY):
            now.copied = True
        else:
            now.cached = kind == BlockEvent.STORE
            now.copied &= now.cached
    for block, now in blocks.items():
        end(block, now, end_time)
    return rows


Floats = NDArray[np.float64]


class Residency(NamedTuple):
    """How long evicted content was there, seconds.

    ``ends`` says when it went, ``lives`` how long it was there, ``idles`` how long since it was
    last touched; ``gaps`` lie between touches of content that went at ``gap_ends``. A touch is a
    hit. Taking a block for new content begins its life, or naming content that came back from the
    host into a radix tree.
    """

    ends: Floats
    lives: Floats
    idles: Floats
    gaps: Floats
    gap_ends: Floats


def residency(events: NDArray[Any]) -> Residency:
    """Return vLLM's residency metrics of one replica's blocks, all of them, not a sample."""
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
