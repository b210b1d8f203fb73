"""The command that runs many configurations, and resumes where it was stopped."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvsim.cli.answers import JSON, OUT, check_targets, print_answer, progress_bar
from kvsim.cli.options import SectionedCommand, config_options, options_given
from kvsim.cli.report import REPORT, check_report, write_sweep_report
from kvsim.cli.requests import requests_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvsim.config import RunConfig
    from kvsim.study.cell import Stored
    from kvsim.study.plan import Point, Study
    from kvsim.study.run_cell import Cell
    from kvsim.study.sweep import Progress
    from kvsim.trace import Trace

#: Options of outputs that a cell does not store.
NOT_KEPT = ("kv_events_config", "record_steps", "record_memory_map", "record_block_events")


@click.command(cls=SectionedCommand)
@click.argument("what", metavar="[STUDY.toml | MODEL]", required=False)
@config_options(leave_out=NOT_KEPT, lists=True)
@click.option(
    "--replications", type=click.IntRange(1), help="number of runs, with seed, seed + 1, ... [1]"
)
@click.option("--workers", type=click.IntRange(1), help="number of processes [one per core]")
@click.option("--dask", metavar="ADDRESS", help="Dask scheduler of a cluster to run on")
@click.option("--retry-failed", is_flag=True, help="run failed cells again")
@click.option("--figures", is_flag=True, help="draw study.png, for one or two varied options")
@REPORT
@OUT
@JSON
def sweep(
    what: str | None,
    replications: int | None,
    workers: int | None,
    dask: str | None,
    retry_failed: bool,
    figures: bool,
    report_file: str | None,
    out: str | None,
    json_file: str | None,
    **options: Any,
) -> None:
    """Run every combination of option values; values of an option are separated by commas.

    Finished runs are stored in DIR; the same command continues an interrupted sweep.
    """
    from kvsim.fleet.simulate import describe
    from kvsim.study.plan import plan
    from kvsim.study.sweep import look, prepare

    if out is None:
        raise ValueError("sweep needs --out DIR, the folder that stores finished cells")
    check_targets(out, json_file)
    check_report(report_file)
    if dask is not None and workers is not None:
        raise ValueError("--workers and --dask exclude each other: the cluster has its own workers")
    points = plan(_study(what, replications, options))
    notes: dict[str, None] = {}
    described: list[dict[str, Any]] = []

    def load(config: RunConfig) -> Trace:
        requests, said = requests_of(config)
        notes.update(dict.fromkeys(said))
        described.append(describe(requests))
        return requests

    folder = Path(out)
    try:
        cells = prepare(points, load, folder)
        progress = look(cells, folder, retry_failed=retry_failed)
        for problem in progress.corrupt:
            click.echo(f"note: {problem}; it is run again", err=True)
        click.echo(f"{progress.num_done:,} done, {len(progress.todo):,} to do", err=True)
        _run(progress, folder, workers, dask, json_file)
        _answer(points, cells, folder, described, figures, report_file, json_file, list(notes))
    except OSError as error:
        raise ValueError(f"--out {out}: {error.strerror or error}") from None


def _study(what: str | None, replications: int | None, options: dict[str, Any]) -> Study:
    """Put a file and the command line together."""
    from dataclasses import replace

    from kvsim.study.plan import Study as Asked
    from kvsim.study.sweep_spec import read_study, values_of, with_options

    given = {name: values_of(name, value) for name, value in options_given(options).items()}
    study = Asked()
    if what is not None and what.lower().endswith(".toml"):
        study = read_study(what)
    elif what is not None and given.setdefault("model", [what]) != [what]:
        raise ValueError(f"{what}: a second model beside --model {','.join(given['model'])}")
    study = with_options(study, given)
    return study if replications is None else replace(study, replications=replications)


def _run(
    progress: Progress, folder: Path, workers: int | None, dask: str | None, json_file: str | None
) -> None:
    """Run the remaining cells; a stopped sweep keeps its finished cells."""
    from kvsim.study.sweep import CELLS
    from kvsim.study.workers import in_process, in_processes, num_workers, on_dask

    todo, cells = progress.todo, folder.absolute() / CELLS
    number = num_workers(workers, len(todo))
    ended: Iterator[str | None]
    if not todo:
        return
    if dask is not None:
        ended = on_dask(cells, todo, dask)
    elif number > 1:
        ended = in_processes(cells, todo, number)
    else:
        ended = in_process(cells, todo)
    count = 0
    try:
        with progress_bar("cells", len(todo), json_file) as tick:
            for digest in ended:
                count += digest is not None
                tick(count)
    except KeyboardInterrupt:
        left = sum(not (cells / cell.digest).is_dir() for cell in todo)
        click.echo(f"note: {left:,} cells are left; the same command goes on", err=True)
        raise
    except RuntimeError as error:
        raise ValueError(str(error)) from None


def _answer(
    points: list[Point],
    cells: list[Cell],
    folder: Path,
    described: list[dict[str, Any]],
    figures: bool,
    report_file: str | None,
    json_file: str | None,
    notes: list[str],
) -> None:
    """Build the tables from disk, and list the cells that could not run."""
    from kvsim.report.sweep import overload_lines, sweep_table
    from kvsim.report.title import deployments, workloads
    from kvsim.study.table import (
        NOT_RUN,
        means_rows,
        read_all,
        save_csv,
        save_parquet,
        table_rows,
    )

    stored = read_all(cells, folder)
    rows = table_rows(points, cells, stored)
    save_csv(rows, folder / "table.csv")
    save_parquet(rows, folder / "table.parquet")
    varied, shown = list(points[0].varied), rows
    if "seed" in varied and points[0].config.seed != points[-1].config.seed:
        shown = means_rows(points, stored)
        save_csv(shown, folder / "means.csv")
        varied.remove("seed")
    notes = [*_notes(points, stored, varied), *notes]
    errors = [row for row in rows if row["error"] is not None]
    if len(errors) == len(rows):
        raise ValueError(f"no cell could run: {errors[0]['error']}")
    if errors:
        first = f"cell {errors[0]['cell']}: {errors[0]['error']}"
        also = "" if len(errors) == 1 else f", and {len(errors) - 1:,} more"
        notes = [*notes, f"could not run: {first}{also}; --retry-failed tries again"]
    ran = [
        (point.config, one.summary)
        for point, one in zip(points, stored, strict=True)
        if one.summary is not None
    ]
    header = [deployments(ran), workloads(described)]
    if figures:
        notes += _draw(shown, varied, folder, "\n".join(header))
    told = [*overload_lines(shown, varied), *notes]
    notes += write_sweep_report(_finite(shown), varied, report_file, told, "; ".join(header))
    answer = {"cells": _finite(rows)} | ({"means": _finite(shown)} if shown is not rows else {})
    print_answer(answer, json_file, lambda: sweep_table(shown, varied, header), notes, str(folder))
    if any(row["error"] == NOT_RUN for row in errors):
        raise SystemExit(1)  # workers died over it


def _notes(points: list[Point], stored: Sequence[Stored], varied: Sequence[str]) -> list[str]:
    """Return the notes of the cells, once each, with the cells concerned if not all."""
    from kvsim.report.paired import title_of
    from kvsim.results.notes import merged, shared
    from kvsim.study.table import shown

    of_cells: dict[str, list[Sequence[str]]] = {}
    for point, one in zip(points, stored, strict=True):
        name = title_of({key: shown(point.varied[key]) for key in varied})
        of_cells.setdefault(name, [])
        if one.summary is not None:
            of_cells[name].append(one.notes)
    return shared({name: merged(several) for name, several in of_cells.items() if several})


def _finite(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows as JSON can hold them: an infinite rate is a text there."""
    return [
        {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        for row in rows
    ]


def _draw(rows: list[dict[str, Any]], varied: list[str], folder: Path, head: str) -> list[str]:
    """Draw the figure, or return the reason why there is none."""
    from kvsim.files import write_whole
    from kvsim.report.plots.sweep import axes_of
    from kvsim.report.plots.sweep import sweep as draw

    try:
        x, lines = axes_of(rows, varied)
    except ValueError as error:
        return [f"no figure: {error}"]
    figure = draw(rows, x, lines, head)
    write_whole(
        folder / "study.png",
        lambda file: figure.savefig(file, dpi=130, format="png"),
        follow_link=False,
    )
    return []
