"""All block tables of a replica, read from objects or from flat memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from kvsim.records.kv import FORKED
from kvsim.records.memory import View, Views, column
from kvsim.records.record import NONE

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kvsim.records.engine import Replica

    Ints = NDArray[np.int64]


class BlockTables:
    """Block tables of Python objects."""

    def __init__(self, state: Replica) -> None:
        self._state = state

    def rows(self) -> Ints:
        """Return the trace row of the request of each RequestBlocks record, NONE if unused."""
        state = self._state
        places = column(state.kv.request_blocks, "request")
        rows = [state.requests[k].request_id if k != NONE else NONE for k in places]
        return np.array(rows, np.int64)

    def lengths(self) -> Ints:
        """Return the lengths of block tables, shape (records, groups or sequences)."""
        request_blocks = self._state.kv.request_blocks
        return np.array(
            [[table.length for table in one.tables] for one in request_blocks], np.int64
        )

    def blocks(self, own_blocks: int, table: int, first: int, stop: int) -> list[int]:
        """Return the entries of a block table from ``first`` to before ``stop``."""
        blocks = self._state.kv.request_blocks[own_blocks].tables[table].blocks
        return [blocks[place] for place in range(first, stop)]

    def keys(self) -> Ints:
        """Return the key of each block, 0 for none."""
        pool = self._state.kv.pool
        blocks = (pool.blocks[k] for k in range(pool.num_usable + 1))
        return np.array([block.key if block.hashed else 0 for block in blocks], np.int64)

    def num_tables(self, own_blocks: int) -> int:
        """Return the number of block tables that a record uses."""
        kv = self._state.kv
        if kv.manager != FORKED:
            return kv.num_groups
        return self._state.requests[kv.request_blocks[own_blocks].request].num_samples


class FlatTables(BlockTables):
    """Block tables in flat memory, as views that are made once."""

    def __init__(self, state: Replica) -> None:
        super().__init__(state)
        request_blocks: Any = state.kv.request_blocks
        tables: Any = request_blocks[0].tables
        blocks = tables[0].blocks.array
        shape = (len(request_blocks), len(tables))
        # All tables are contiguous in memory, and so are their entries: see Flat.share_out.
        every = as_strided(tables.array, (shape[0] * shape[1],), tables.array.strides)
        self._lengths: Ints = every["length"].reshape(shape)
        self._blocks: Ints = as_strided(
            blocks,
            (*shape, len(blocks)),
            (len(tables) * blocks.nbytes, blocks.nbytes, blocks.itemsize),
        )
        self._places: Ints = request_blocks.array["request"]
        pool: Any = state.kv.pool
        self._keys = pool.blocks.array[: pool.num_usable + 1]

    def rows(self) -> Ints:
        places, requests = self._places, self._state.requests
        assert isinstance(requests, Views)
        ids = requests.array["request_id"]
        return np.where(places == NONE, NONE, ids[places])

    def lengths(self) -> Ints:
        return self._lengths.copy()

    def blocks(self, own_blocks: int, table: int, first: int, stop: int) -> list[int]:
        found: list[int] = self._blocks[own_blocks, table, first:stop].tolist()
        return found

    def keys(self) -> Ints:
        keys: Ints = self._keys["key"] * self._keys["hashed"]
        return keys


def tables_of(state: Replica) -> BlockTables:
    return FlatTables(state) if isinstance(state.kv.request_blocks, Views) else BlockTables(state)


def live(record: Any, name: str) -> Callable[[], Any]:
    """Return a fast function that reads the current value of a record's field."""
    if isinstance(record, View):
        read: Callable[[], Any] = object.__getattribute__(record, "_array")[name].item
        return read
    return lambda: getattr(record, name)
