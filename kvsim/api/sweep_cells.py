"""The steps of a sweep: plan its cells, run the unfinished ones, read their results."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kvsim.api.sweep_result import Sweep, save_tables
from kvsim.fleet.simulate import describe
from kvsim.parametric import IN_ONE_PROCESS, only_here
from kvsim.report.paired import title_of
from kvsim.report.title import deployments, workloads
from kvsim.results.cost import RULE, cost_of, prices_of
from kvsim.results.notes import merged, shared
from kvsim.study.plan import plan
from kvsim.study.run_cell import Cell
from kvsim.study.sweep import CELLS, look, prepare
from kvsim.study.table import NOT_RUN, means_rows, read_all, shown, table_rows
from kvsim.study.workers import in_process, in_processes, num_workers, on_dask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kvsim.api.requests import Source
    from kvsim.config import RunConfig
    from kvsim.results.cost import Prices
    from kvsim.study.cell import Stored
    from kvsim.study.plan import Point, Study
    from kvsim.study.sweep import Progress
    from kvsim.trace import Trace

    Row = dict[str, Any]


class Planned(NamedTuple):
    """A sweep before its runs: a point and a cell (stored run) per combination, and progress.

    ``described`` has the facts of each trace; ``notes`` state its origin.
    """

    points: list[Point]
    cells: list[Cell]
    progress: Progress
    out: str | Path
    described: list[dict[str, Any]]
    notes: list[str]
    prices: dict[str, float]


def plan_cells(
    study: Study,
    source: Source,
    out: str | Path,
    retry_failed: bool = False,
    price: Prices | None = None,
) -> Planned:
    """Plan a sweep in a directory, and find its finished cells."""
    points = plan(study)
    prices = prices_of(price, [point.config for point in points])
    notes: dict[str, None] = {}
    described: list[dict[str, Any]] = []

    def load(config: RunConfig) -> Trace:
        requests, said = source(config)
        notes.update(dict.fromkeys(said))
        described.append(describe(requests))
        return requests

    with _writing(out):
        cells = prepare(points, load, Path(out))
        progress = look(cells, Path(out), retry_failed=retry_failed)
    return Planned(points, cells, progress, out, described, list(notes), prices)


def run_cells(
    planned: Planned, workers: int | None, dask: str | None, on_done: Callable[[int], object]
) -> None:
    """Run the remaining cells; a stopped sweep keeps its finished cells.

    ``on_done`` is called with the number of cells that have ended.
    """
    todo, local = planned.progress.todo, list[Cell]()
    number = num_workers(workers, len(todo))
    if not todo:
        return
    if number > 1 or dask is not None:
        todo, local, notes = _split(todo)
        planned.notes.extend(notes)
    with _writing(planned.out):
        cells = Path(planned.out).absolute() / CELLS
        ended: Iterator[str | None]
        if not todo:
            ended = iter(())
        elif dask is not None:
            ended = on_dask(cells, todo, dask)
        elif number > 1:
            ended = in_processes(cells, todo, number)
        else:
            ended = in_process(cells, todo)
        count = 0
        try:
            for digest in chain(in_process(cells, local), ended):
                count += digest is not None
                on_done(count)
        except RuntimeError as error:
            raise ValueError(str(error)) from None


def _split(todo: Sequence[Cell]) -> tuple[list[Cell], list[Cell], list[str]]:
    """Return the cells for workers, the cells with parts that only this process has, and a note."""
    apart: list[Cell] = []
    local: list[Cell] = []
    names: dict[str, None] = {}
    for cell in todo:
        found = [n for text in vars(cell.config).values() for n in only_here(text)]
        names |= dict.fromkeys(found)
        (local if found else apart).append(cell)
    return apart, local, [f"{IN_ONE_PROCESS}: {', '.join(names)}"] if names else []


def num_left(planned: Planned) -> int:
    """Count the cells that are still to be run."""
    cells = Path(planned.out) / CELLS
    return sum(not (cells / cell.digest).is_dir() for cell in planned.progress.todo)


def results_of(planned: Planned) -> Sweep:
    """Read the cells, and write their tables into the directory.

    Raises
    ------
    ValueError
        If every cell failed, or the directory cannot be written.
    """
    points = planned.points
    with _writing(planned.out):
        read = read_all(planned.cells, Path(planned.out))
        stored = [_priced(*one, planned.prices) for one in zip(points, read, strict=True)]
        rows = table_rows(points, planned.cells, stored)
        varied, means = list(points[0].varied), []
        if "seed" in varied and points[0].config.seed != points[-1].config.seed:
            means = means_rows(points, stored)
            varied.remove("seed")
        save_tables(rows, means, Path(planned.out))
    errors = [row for row in rows if row["error"] is not None]
    if len(errors) == len(rows):
        raise ValueError(f"every cell failed: {errors[0]['error']}")
    ran = [
        (point.config, one.summary)
        for point, one in zip(points, stored, strict=True)
        if one.summary is not None
    ]
    header = (deployments(ran), workloads(planned.described))
    notes = (*_notes(points, stored, varied), *planned.notes, *_failed(errors))
    if planned.prices:
        notes += (f"cost: {RULE}",)
    return Sweep(rows, means, tuple(varied), header, notes)


def _priced(point: Point, one: Stored, prices: Mapping[str, float]) -> Stored:
    """Return a cell with the cost of its run, which is computed when the cell is read."""
    if one.summary is None or not prices:
        return one
    cost = cost_of(one.summary, one.num_cached_tokens, point.config, prices)
    return replace(one, summary={**one.summary, "cost": cost})


def was_cut(rows: Sequence[Row]) -> bool:
    """Return True if a cell has no result because its workers died."""
    return any(row["error"] == NOT_RUN for row in rows)


@contextmanager
def _writing(out: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ValueError(f"--out {out}: {error.strerror or error}") from None


def _failed(errors: Sequence[Row]) -> list[str]:
    if not errors:
        return []
    also = "" if len(errors) == 1 else f", and {len(errors) - 1:,} more"
    first = f"cell {errors[0]['cell']}: {errors[0]['error']}"
    return [f"could not run: {first}{also}; --retry-failed runs them again"]


def _notes(points: list[Point], stored: Sequence[Stored], varied: Sequence[str]) -> list[str]:
    """Return each note once, with the names of its cells unless all cells have it."""
    of_cells: dict[str, list[Sequence[str]]] = {}
    for point, one in zip(points, stored, strict=True):
        name = title_of({key: shown(point.varied[key]) for key in varied})
        of_cells.setdefault(name, [])
        if one.summary is not None:
            of_cells[name].append(one.notes)
    return shared({name: merged(several) for name, several in of_cells.items() if several})
