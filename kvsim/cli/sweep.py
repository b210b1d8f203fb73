"""The command ``kvsim sweep``: run many configurations, and continue an interrupted sweep."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvsim.api.requests import requests_of
from kvsim.cli.answers import JSON, OUT, check_targets, print_answer, progress_bar
from kvsim.cli.options import PRICE, SectionedCommand, config_options, options_given
from kvsim.cli.report import REPORT, check_report, write_report

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kvsim.api.sweep_cells import Planned
    from kvsim.api.sweep_result import Sweep
    from kvsim.study.plan import Study

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
@PRICE
@REPORT
@OUT
@JSON
def sweep(
    what: str | None,
    replications: int | None,
    price: tuple[str, ...],
    workers: int | None,
    dask: str | None,
    retry_failed: bool,
    figures: bool,
    report_file: str | None,
    out: str | None,
    json_file: str | None,
    **options: Any,
) -> None:
    """Run every combination of option values.

    Values of an option are separated by commas.

    Finished runs are stored in DIR; the same command continues an interrupted sweep.
    """
    from kvsim.api.sweep_cells import plan_cells, results_of

    if out is None:
        raise ValueError("sweep needs --out DIR, the folder that stores finished cells")
    check_targets(out, json_file)
    check_report(report_file)
    if dask is not None and workers is not None:
        raise ValueError("--workers and --dask exclude each other: the cluster has its own workers")
    study = _study(what, replications, options)
    planned = plan_cells(study, requests_of, out, retry_failed, price)
    for problem in planned.progress.corrupt:
        click.echo(f"note: {problem}; it is run again", err=True)
    left = len(planned.progress.todo)
    click.echo(f"{planned.progress.num_done:,} done, {left:,} to do", err=True)
    _run(planned, workers, dask, json_file)
    found = results_of(planned)
    try:
        _answer(found, Path(out), figures, report_file, json_file)
    except OSError as error:
        raise ValueError(f"--out {out}: {error.strerror or error}") from None


def _study(what: str | None, replications: int | None, options: dict[str, Any]) -> Study:
    from dataclasses import replace

    from kvsim.study.plan import Study as Asked
    from kvsim.study.sweep_spec import read_study, values_of, with_options

    given = {name: values_of(name, value) for name, value in options_given(options).items()}
    study = Asked()
    if what is not None and what.lower().endswith(".toml"):
        study = read_study(what)
    elif what is not None and given.setdefault("model", [what]) != [what]:
        raise ValueError(f"{what}: conflicts with --model {','.join(given['model'])}")
    study = with_options(study, given)
    return study if replications is None else replace(study, replications=replications)


def _run(planned: Planned, workers: int | None, dask: str | None, json_file: str | None) -> None:
    """Run the remaining cells; if the user stops them, print the number of unfinished cells."""
    from kvsim.api.sweep_cells import num_left, run_cells

    if not planned.progress.todo:
        return
    try:
        with progress_bar("cells", len(planned.progress.todo), json_file) as tick:
            run_cells(planned, workers, dask, tick)
    except KeyboardInterrupt:
        left = num_left(planned)
        click.echo(f"note: {left:,} cells are left; run the command again to continue", err=True)
        raise


def _answer(
    found: Sweep, folder: Path, figures: bool, report_file: str | None, json_file: str | None
) -> None:
    from kvsim.api.sweep_cells import was_cut
    from kvsim.report.sweep import overload_lines, sweep_table

    notes, answer = list(found.notes), found.to_dict()
    if figures:
        notes += _draw(found, folder)
    told = [*overload_lines(found.shown_rows, found.varied), *notes]
    rows, header = answer.get("means", answer["cells"]), "; ".join(found.header)
    page = (rows, found.varied, told, header)
    notes += write_report(report_file, lambda compose: compose.sweep_page(*page))

    def table() -> RenderableType:
        return sweep_table(found.shown_rows, found.varied, found.header)

    print_answer(answer, json_file, table, notes, str(folder))
    if was_cut(found.cells):
        raise SystemExit(1)  # a cell has no result, as its workers died


def _draw(found: Sweep, folder: Path) -> list[str]:
    """Draw the figure, or return the reason why there is none."""
    from kvsim.files import write_whole

    try:
        figure = found.plot()
    except ValueError as error:
        return [f"no figure: {error}"]
    write_whole(
        folder / "study.png",
        lambda file: figure.savefig(file, dpi=130, format="png"),
        follow_link=False,
    )
    return []
