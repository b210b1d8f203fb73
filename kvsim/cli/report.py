"""HTML pages: the option ``--report``, and the command ``kvsim report`` for a saved folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from kvsim.cli.answers import check_file, check_single, say
from kvsim.engine.given import recording

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from kvsim.config import RunConfig
    from kvsim.results.comparison import Comparison
    from kvsim.results.result import Result

REPORT = click.option("--report", "report_file", metavar="FILE.html", help="file for an HTML page")


def check_report(file: str | None, replications: int = 1) -> None:
    """Refuse a page that cannot be written, before anything runs."""
    if file is not None:
        check_single("--report", file, replications, "a page shows one run per configuration")


def with_records(config: RunConfig, report_file: str | None, out: str | None) -> RunConfig:
    """Return the configuration, set to record the tables of a requested page, or of figures."""
    if report_file is not None:
        return recording(config, "record_memory_map", "record_block_events")
    return config if out is None else recording(config, "record_memory_map")


def write_report(file: str | None, page: Callable[[ModuleType], str]) -> list[str]:
    """Write a page, if requested, and return its path as a note.

    ``page`` makes it; its argument is the module :mod:`kvsim.report.page.compose`.
    """
    if file is None:
        return []
    from kvsim.report.page import compose
    from kvsim.report.page.document import write_page

    write_page(page(compose), Path(file))
    return [f"report written to {file}: open it in a browser"]


@click.command()
@click.argument("folder", metavar="DIR")
@click.option(
    "-o", "--output", "file", metavar="FILE.html", required=True, help="file for the page"
)
def report(folder: str, file: str) -> None:
    """Make one HTML page of a finished run, comparison or sweep.

    DIR is the folder that --out DIR wrote. The page shows the recorded tables; the history of
    every block needs --record-block-events.
    """
    from kvsim.results.stored import StoredRun

    check_file("-o", file)
    path = Path(folder)
    if StoredRun(path).has("comparison.json"):
        told = StoredRun(path).record("comparison.json")
        if "differences" in told:
            runs = _varied(path, told)
            said = write_report(file, lambda compose: compose.varied_page(told, runs))
        else:
            said = write_report(file, lambda compose: compose.comparison_page(_comparison(path)))
    elif (path / "table.parquet").is_file():
        said = write_report(file, lambda compose: compose.sweep_page(*_sweep(path)))
    else:
        from kvsim.results.result import load

        said = write_report(file, lambda compose: compose.run_page(load(path)))
    say(said[0])


def _varied(folder: Path, told: Mapping[str, Any]) -> dict[str, Result]:
    """Read the runs that ``kvsim compare --vary --out`` wrote."""
    from kvsim.report.paired import title_of
    from kvsim.results.comparison import directory_name
    from kvsim.results.result import load
    from kvsim.results.stored import StoredRun

    try:
        names = [title_of(row["options"]) for row in told["rows"]]
        folders = {name: directory_name(name) for name in names}
        told["differences"][0]["against"], told["differences_are"], told["replications"]
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise ValueError(f"{folder}: comparison.json cannot be read: {error!r}") from None
    if {".", "..", ""} & set(folders.values()):
        raise ValueError(f"{folder}: comparison.json names a run outside of the folder")
    return {name: load(StoredRun(folder).find(run)) for name, run in folders.items()}


def _comparison(folder: Path) -> Comparison:
    """Read a comparison that ``kvsim compare --out`` wrote."""
    from kvsim.results.comparison import Comparison, directory_name
    from kvsim.results.result import load
    from kvsim.results.stored import StoredRun

    stored = StoredRun(folder)
    told = stored.record("comparison.json")
    try:
        workload, rows = dict(told["workload"]), told["rows"]
        engines = all("engine" in row for row in rows)
        by: Literal["allocator", "engine"] = "engine" if engines else "allocator"
        folders = {str(row[by]): directory_name(str(row[by])) for row in rows}
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError(f"{folder}: comparison.json cannot be read: {error!r}") from None
    if {".", "..", ""} & set(folders.values()):
        raise ValueError(f"{folder}: comparison.json names a run outside of the folder")
    if workload.get("replications", 1) != 1:
        raise ValueError(
            f"{folder}: holds the means of several comparisons; name one, such as replication-0"
        )
    runs = {name: load(stored.find(run)) for name, run in folders.items()}
    return Comparison(workload, runs, by)


def _sweep(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Read the table of a sweep, and the names of its varied options."""
    from pyarrow import parquet

    from kvsim.files import check_parquet

    try:
        check_parquet(parquet.read_metadata(folder / "table.parquet"))
        rows = parquet.read_table(folder / "table.parquet").to_pylist()
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder}: table.parquet cannot be read: {error}") from None
    if not rows:
        raise ValueError(f"{folder}: the sweep has no cells")
    keys = list(rows[0])
    first = keys.index("duration") if "duration" in keys else len(keys)
    return rows, [key for key in keys[:first] if key not in ("cell", "error")]
