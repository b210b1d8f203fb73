"""``kvsim.sweep``: every combination of options."""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Unpack

from kvsim.api.progress import progress_bar
from kvsim.api.requests import source_of
from kvsim.api.sweep_cells import plan_cells, results_of, run_cells
from kvsim.errors import FieldError
from kvsim.parametric import is_part, text_of
from kvsim.study.plan import Study

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kvsim.api.sweep_result import Sweep
    from kvsim.options import RunOptions
    from kvsim.results.cost import Prices
    from kvsim.study.plan import Slice
    from kvsim.trace import Trace


def sweep(
    requests: Trace | str | None,
    options: Mapping[str, Sequence[Any]],
    *,
    zip: Mapping[str, Sequence[Any]] | None = None,
    slices: Sequence[Slice] = (),
    replications: int = 1,
    out: str | Path | None = None,
    workers: int | None = 1,
    dask: str | None = None,
    retry_failed: bool = False,
    price: Prices | None = None,
    **shared: Unpack[RunOptions],
) -> Sweep:
    """Run every combination of options.

    Parameters
    ----------
    requests : a trace, which ``num_requests`` cuts and ``request_rate`` scales; or a workload,
        ``"sharegpt"``; or None, if options name workloads or trace files
    options : values by option; all combinations run. A part is a name or an object,
        ``{"scheduler": ["vllm", ShortestFirst(ageing=5)]}``
    zip : values by option; one run has the first value of every option, the next run the second,
        and so on
    slices : rows of the trace, ``(first, end)``; each slice is a separate run
    replications : number of runs, with seed, seed + 1, ...
    out : directory that keeps the runs; the same call continues an interrupted sweep
    workers : processes; None: one per core
    dask : address of a Dask scheduler; its workers replace the processes
    retry_failed : run the cells again that failed before
    price : dollars per GPU-hour by GPU, as for :func:`kvsim.simulate`; adds columns ``cost...`` to
        the tables
    **shared : options of all runs

    Raises
    ------
    ValueError
        For unknown names, wrong values, and if no combination can run.

    Examples
    --------
    >>> import kvsim, workloads
    >>> trace = workloads.fixed(prompt=100, output=10, num_requests=8, request_rate=1.0)
    >>> found = kvsim.sweep(trace, {"block_size": [16, 32]}, model="llama-3-8b", backend="python")
    >>> found.table["block_size"], found.table["completed"]
    (array([16, 32]), array([8, 8]))
    """
    if dask is not None and workers != 1:
        raise ValueError("--workers and --dask exclude each other: the cluster has its own workers")
    if requests is not None and not isinstance(requests, str) and replications > 1:
        raise ValueError("replications: a trace has no seed; replicate a generated workload")
    crossed, zipped = _listed(options), _listed(zip or {})
    source, named = source_of(requests, {**shared, **crossed, **zipped})
    for name in shared:
        if name in crossed or name in zipped:
            raise FieldError(
                name, "is given both as varied and as an option of all runs; choose one"
            )
    one = {name: [value] for name, value in (named | {**shared}).items()}
    study = Study(one | crossed, zipped, slices, replications)
    with TemporaryDirectory() as temporary:
        planned = plan_cells(study, source, temporary if out is None else out, retry_failed, price)
        with progress_bar("cells", len(planned.progress.todo)) as tick:
            run_cells(planned, workers, dask, tick)
        return results_of(planned)


def _listed(options: Mapping[str, Any]) -> dict[str, list[Any]]:
    listed: dict[str, list[Any]] = {}
    for name, value in options.items():
        if isinstance(value, str) or not hasattr(value, "__iter__"):
            raise FieldError(name, f"is {value!r}: must be a list of values")
        values = value.tolist() if hasattr(value, "tolist") else list(value)
        listed[name] = [text_of(one) if is_part(one) else one for one in values]
    return listed
