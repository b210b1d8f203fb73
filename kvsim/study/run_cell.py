"""One cell of a sweep: its inputs, and its run on any worker."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvsim.engine.shortage import why_none
from kvsim.fleet.simulate import run
from kvsim.results.cost import num_cached_tokens
from kvsim.study.cell import store_cell
from kvsim.study.digest import physics_revision
from kvsim.study.traces import take_again

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kvsim.config import RunConfig
    from kvsim.results.result import Result
    from kvsim.study.plan import Slice


@dataclass(frozen=True)
class Cell:
    """Inputs of a cell.

    Parameters
    ----------
    digest : the cell's name
    ingredients : inputs of the digest
    config : configuration of the run
    rows : the rows that ``trace_file`` holds, as a slice of the whole trace; None: all rows
    trace_file : the requests, as :func:`kvsim.study.traces.hand_over` writes them
    expected : estimate of the run's duration, relative to other cells
    """

    digest: str
    ingredients: Mapping[str, Any]
    config: RunConfig
    rows: Slice | None
    trace_file: Path
    expected: float


#: A worker may have several threads, but runs one cell at a time.
_ONE_AT_A_TIME = threading.Lock()


def run_cell(cells: Path, cell: Cell) -> str:
    """Run a cell and store its result or error; return its digest.

    Raises
    ------
    RuntimeError
        If this worker's kvsim differs from that of the plan.
    OSError
        If the requests cannot be read, or the cell cannot be written.
    """
    if physics_revision() != cell.ingredients["physics_revision"]:
        raise RuntimeError("a worker has another version of kvsim; restart it")
    with _ONE_AT_A_TIME:
        trace = take_again(cell.trace_file)
        result: Result | None = None
        error = None
        try:
            result = run(cell.config, trace)
            if result.summary["num_rejected"] == len(trace):
                raise ValueError(why_none(result))
        except Exception as problem:  # after any error, the other cells continue
            error = _line(problem)
    digest = f'trace_digest = "{trace.digest}"\n'
    store_cell(
        cells,
        cell.digest,
        config=digest + cell.config.model_copy(update={"trace_digest": None}).to_toml(),
        provenance={
            "digest": cell.digest,
            "ingredients": cell.ingredients,
            "slice": cell.rows,
            "run": None if result is None or error else result.provenance,
            "num_cached_tokens": None if result is None else num_cached_tokens(result.requests),
        },
        summary=None if result is None else result.summary,
        error=error,
    )
    return cell.digest


def _line(problem: Exception) -> str:
    """Return an error as one line, with its type unless it is a user's mistake."""
    said = " ".join(str(problem).split())
    return said if isinstance(problem, ValueError) else f"{type(problem).__name__}: {said}"
