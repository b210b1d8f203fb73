"""Files of requests that every worker reads: one per distinct trace, named by its digest."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import fields
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from kvsim.files import write_whole
from kvsim.trace import Trace

if TYPE_CHECKING:
    from pathlib import Path


def hand_over(trace: Trace, folder: Path) -> Path:
    """Write a trace atomically, unless its file exists undamaged; return the path."""
    path = folder / f"{trace.digest}.npz"
    if not _is_whole(path):
        folder.mkdir(parents=True, exist_ok=True)
        arrays = {f.name: getattr(trace, f.name) for f in fields(Trace)}
        write_whole(path, lambda file: np.savez_compressed(file, **arrays), follow_link=False)
    return path


def take(path: Path) -> Trace:
    """Read a trace that :func:`hand_over` wrote.

    Raises
    ------
    OSError
        If it is missing or damaged.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            read = {f.name: arrays[f.name] for f in fields(Trace)}
    except (ValueError, KeyError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise OSError(f"{path}: damaged") from error
    for array in read.values():
        array.flags.writeable = False  # as in every trace
    trace = Trace(**read)
    if trace.digest != path.stem:
        raise OSError(f"{path}: damaged")
    return trace


#: :func:`take` with a cache of a few traces, as a worker's cells often have the same requests.
take_again = lru_cache(maxsize=4)(take)


def _is_whole(path: Path) -> bool:
    try:
        take(path)
    except OSError:
        return False
    return True
