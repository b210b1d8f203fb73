"""The content of a prefix cache: read from a block pool, filled into one, and saved as a file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.errors import FieldError
from kvsim.files import write_whole
from kvsim.kv.block_hash import block_keys
from kvsim.kv.block_pool import BlockPool
from kvsim.records.memory import column
from kvsim.records.request import Request, Segment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

#: Version of the file format.
FORMAT = 2
#: Most requests of a saved cache; twice this number does not overflow, either.
MOST_REQUESTS = 1 << 48


@dataclass(frozen=True, eq=False)
class SavedCache:
    """The cached blocks of a replica, the next victim first.

    Attributes
    ----------
    key, group : key and group of layers of each block, int64, shape (blocks,)
    facts : properties that a run with this cache must have, by name
    num_requests : requests that filled the cache; new contents of a run get higher numbers
    contents : digests of the traces whose contents filled it, by ``kvsim.trace.cuts``
    """

    key: NDArray[np.int64]
    group: NDArray[np.int64]
    facts: dict[str, Any]
    num_requests: int
    contents: Sequence[str]


def facts_of(kv: Any, model: str, kv_cache_dtype: str) -> dict[str, Any]:
    """Return the properties on which a cache's keys depend; ``keys`` is the key of a test block."""
    groups = [kv.groups[place] for place in range(kv.num_groups)]
    known = block_keys(Request(0, 0.0, 65, 1, [Segment(1, 0, 64)], 2), 2, 16)
    return {
        "model": model,
        "kv_cache_dtype": kv_cache_dtype,
        "block_size": [int(one.block_size) for one in groups],
        "attention": [[int(one.kind), int(one.window)] for one in groups],
        "keys": known[-1],
    }


def cache_of(
    kv: Any, facts: dict[str, Any], num_requests: int, contents: Sequence[str]
) -> SavedCache:
    """Return the cached blocks of a pool, those in use last."""
    view, pool = BlockPool.over(kv), kv.pool
    hashed = np.array(column(pool.blocks, "hashed"), bool)
    key = np.array(column(pool.blocks, "key"), np.int64)
    group = np.array(column(pool.blocks, "group"), np.int64)
    free = np.array([k for k in view.free_queue() if hashed[k]], np.int64)
    hashed[free] = False
    order = np.concatenate((free, np.flatnonzero(hashed)))
    return SavedCache(key[order], group[order], facts, num_requests, contents)


def fill(kv: Any, saved: SavedCache) -> int:
    """Cache the newest blocks that fit into an empty pool; return their number. Mutates."""
    pool = BlockPool.over(kv)
    number = min(pool.num_usable, len(saved.key))
    rows = zip(saved.key[-number:].tolist(), saved.group[-number:].tolist(), strict=True)
    for key, group in rows if number > 0 else ():
        (block,) = pool.get(1, group)
        pool.cache(block, key)
        pool.free([block])
    for place in range(kv.num_groups):
        kv.groups[place].num_table_blocks = 0  # no request has held these blocks
    return number


def write_cache(path: str | Path, saved: SavedCache) -> None:
    """Write a cache to a file, which is complete or not written at all.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    about = {"format": FORMAT, "num_requests": saved.num_requests, **saved.facts}
    about["contents"] = list(saved.contents)
    text = np.frombuffer(json.dumps(about).encode(), np.uint8)
    group = saved.group.astype(np.int16)
    write_whole(
        Path(path), lambda file: np.savez_compressed(file, about=text, key=saved.key, group=group)
    )


def read_cache(path: str | Path) -> SavedCache:
    """Read a cache from a file, without executing code from it.

    Raises
    ------
    FieldError
        Naming the file and the error.
    """
    try:
        with Path(path).open("rb") as file:
            found: Any = np.load(file, allow_pickle=False)
            about = json.loads(found["about"].tobytes())
            key, group = found["key"], found["group"].astype(np.int64)
        if about.pop("format") != FORMAT:
            raise ValueError("of another version of kvsim")
        number, contents = int(about.pop("num_requests")), list(map(str, about.pop("contents")))
        if not 0 <= number < MOST_REQUESTS:
            raise ValueError("its number of requests is out of range")
        if key.dtype != np.int64 or key.ndim != 1 or key.shape != group.shape:
            raise ValueError("its arrays differ in shape")
        if len(group) and not 0 <= group.min() <= group.max() < len(about["block_size"]):
            raise ValueError("it has blocks of no group of layers")
    except OSError as error:
        raise FieldError("load_cache", f"{path}: {error.strerror or 'not a saved cache'}") from None
    except Exception as error:  # a damaged archive raises errors of zip, zlib and NumPy's parser
        said = error if type(error) is ValueError and "pickle" not in str(error) else "damaged"
        raise FieldError("load_cache", f"{path}: not a saved cache ({said})") from None
    return SavedCache(key, group, about, number, contents)
