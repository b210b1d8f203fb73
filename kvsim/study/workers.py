"""Workers that run cells: this process, a pool of processes, or a Dask cluster.

Each function yields the digest of every cell when the cell has ended, or None if its worker died. A
worker stores its cell itself, so that finished cells survive any crash. :func:`in_order` runs the
configurations of a search, and yields results in their order.
"""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from kvsim.study.run_cell import Cell, run_cell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

T = TypeVar("T")

#: Command that installs the packages for several processes and for Dask.
INSTALL = "pip install 'kvsim[study]'"
#: Environment variable that keeps Python from putting the current folder on a new process's path,
#: where a file could shadow an installed package.
SAFE_PATH = "PYTHONSAFEPATH"
#: Seconds to wait for the answer of a Dask scheduler.
PATIENCE = 10


def num_workers(asked: int | None, num_cells: int) -> int:
    """Return the number of processes: the requested one, else one per core if joblib is installed.

    Raises
    ------
    ValueError
        If several are requested and joblib is not installed.
    """
    has_joblib = find_spec("joblib") is not None
    if asked is not None and asked > 1 and not has_joblib:
        raise ValueError(f"--workers {asked} needs joblib: {INSTALL}, or --workers 1")
    if asked is None:
        asked = _cores() if has_joblib else 1
    return max(1, min(asked, num_cells))


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_process(cells: Path, todo: Sequence[Cell]) -> Iterator[str | None]:
    """Run cells one after another in this process."""
    for cell in todo:
        yield run_cell(cells, cell)


def in_processes(cells: Path, todo: Sequence[Cell], workers: int) -> Iterator[str | None]:
    """Run cells in ``workers`` processes of this machine.

    Raises
    ------
    ValueError
        If one of them dies, for example out of memory.
    """
    if not _is_compiled():  # else every process would compile the same rules
        yield run_cell(cells, todo[-1])
        todo = todo[:-1]
    yield from _pooled(run_cell, [(cells, cell) for cell in todo], workers, "generator_unordered")


def in_order(
    function: Callable[..., T], arguments: Sequence[tuple[Any, ...]], workers: int
) -> Iterator[T]:
    """Call a function with each of several arguments, and yield the results in order.

    Raises
    ------
    ValueError
        If a process dies, for example out of memory.
    """
    first = len(arguments) if workers == 1 else int(not _is_compiled())
    for one in arguments[:first]:
        yield function(*one)
    if arguments[first:]:
        yield from _pooled(function, arguments[first:], workers, "generator")


def _pooled(
    function: Callable[..., T], arguments: Sequence[tuple[Any, ...]], workers: int, return_as: str
) -> Iterator[T]:
    joblib: Any = import_module("joblib")
    loky: Any = import_module("joblib.externals.loky.process_executor")

    # Loky mistakes the memory of loaded rules for a leak, and replaces the worker.
    warnings.filterwarnings("ignore", message="A worker stopped while some jobs")
    pool = joblib.Parallel(n_jobs=workers, batch_size=1, return_as=return_as)
    safe = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield from pool(joblib.delayed(function)(*one) for one in arguments)
    except loky.TerminatedWorkerError:
        raise ValueError(
            "a worker died, possibly out of memory; run the command again to continue, "
            "with --workers 1 to use one process"
        ) from None
    finally:
        if safe is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = safe


def _is_compiled() -> bool:
    from kvsim.compiled.cache import cache_folder

    return any(cache_folder().glob("serve-*.code"))


def on_dask(cells: Path, todo: Sequence[Cell], address: str) -> Iterator[str | None]:
    """Run cells on a Dask cluster that sees the same folders.

    Raises
    ------
    ValueError
        If Dask is not installed, or no scheduler answers.
    """
    if find_spec("distributed") is None:
        raise ValueError(f"--dask needs dask.distributed: {INSTALL}")
    distributed: Any = import_module("distributed")

    try:
        client = distributed.Client(address, timeout=PATIENCE)
    except (OSError, ValueError) as error:
        what = " ".join(str(error).split()) or "no answer"
        raise ValueError(f"--dask {address}: no Dask scheduler at this address: {what}") from None
    with client:
        futures = [client.submit(run_cell, cells, cell, pure=False) for cell in todo]
        try:
            for future in distributed.as_completed(futures):
                try:
                    yield future.result()
                except distributed.KilledWorker:  # several workers died while they ran the cell
                    yield None
        finally:
            client.cancel([future for future in futures if not future.done()])
