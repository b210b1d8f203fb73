"""A sweep's folder: its planned, finished and remaining cells."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from kvsim import files
from kvsim.study.cell import CorruptError, read_cell
from kvsim.study.digest import REQUESTS, digest_of, ingredients_of
from kvsim.study.run_cell import Cell
from kvsim.study.traces import hand_over

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from kvsim.config import RunConfig
    from kvsim.study.plan import Point
    from kvsim.trace import Trace

#: Folders inside a sweep's own.
CELLS, TRACES = "cells", "traces"
#: Rate above which a higher rate does not lengthen a run, requests per second.
_FASTEST = 1000.0


@dataclass(frozen=True)
class Progress:
    """Progress of a plan.

    Parameters
    ----------
    todo : cells to run, the longest first, so that workers end at about the same time
    num_done : number of cells that have a result or an error
    num_failed : number of these with an error
    corrupt : the defect of each damaged cell, which is run again
    """

    todo: Sequence[Cell]
    num_done: int
    num_failed: int
    corrupt: Sequence[str]


def prepare(
    points: Iterable[Point], load: Callable[[RunConfig], Trace], folder: Path
) -> list[Cell]:
    """Return the cell of each point; write the requests of the cells for the workers.

    Parameters
    ----------
    points : the plan
    load : reads or generates the requests of a configuration
    folder : folder of the sweep

    Raises
    ------
    ValueError
        If the requests cannot be read or made, or a slice holds none.
    OSError
        If the folder cannot be written.
    """
    made: dict[object, tuple[str, Path, float]] = {}

    @lru_cache(maxsize=1)
    def loaded(key: object) -> Trace:  # slices of one trace follow each other
        return load(asked[key])

    asked: dict[object, RunConfig] = {}
    cells = []
    for point in points:
        key = tuple(getattr(point.config, name) for name in sorted({*REQUESTS, "seed"}))
        asked[key] = point.config
        if (key, point.rows) not in made:
            trace = _sliced(loaded(key), point.rows)
            path = hand_over(trace, folder.absolute() / TRACES)
            size = len(trace) * min(trace.request_rate, _FASTEST)
            made[key, point.rows] = trace.digest, path, size
        trace_digest, path, size = made[key, point.rows]
        ingredients = ingredients_of(point.config, trace_digest)
        expected = size * _replicas(point.config)
        cells.append(
            Cell(digest_of(ingredients), ingredients, point.config, point.rows, path, expected)
        )
    return cells


def _sliced(trace: Trace, rows: tuple[int, int] | None) -> Trace:
    if rows is None:
        return trace
    if rows[0] >= len(trace):
        raise ValueError(f"slices: {list(rows)} begins after the last of {len(trace):,} requests")
    return trace[rows[0] : rows[1]]


def _replicas(config: RunConfig) -> int:
    apart = (config.num_prefill_workers or 0) + (config.num_decode_workers or 0)
    pools = sum(pool.replicas for pool in config.pool or ())
    return pools or apart or config.data_parallel_size


def look(cells: Iterable[Cell], folder: Path, *, retry_failed: bool = False) -> Progress:
    """Return the progress of a plan: the cells to run, and the numbers of the others.

    Parameters
    ----------
    cells : cells of the plan; equal ones count once
    folder : folder of the sweep
    retry_failed : include cells that could not run
    """
    files.sweep(folder / CELLS)
    distinct = {cell.digest: cell for cell in cells}
    todo, corrupt, failed = [], [], 0
    for digest, cell in distinct.items():
        try:
            stored = read_cell(folder / CELLS / digest)
        except CorruptError as error:
            corrupt.append(f"cell {digest}: {error}")
            stored = None
        if stored is None or (retry_failed and stored.error is not None):
            todo.append(cell)
        else:
            failed += stored.error is not None
    todo.sort(key=lambda cell: -cell.expected)
    return Progress(todo, len(distinct) - len(todo), failed, corrupt)
