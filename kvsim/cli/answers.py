"""Output of every command: check the output paths, print the answer, write it, save runs."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from rich.console import RenderableType

    from kvsim.results.comparison import Comparison
    from kvsim.results.result import Result

#: Endings of files; a value of ``--out`` with one of them is a mistake.
FILE_SUFFIXES = {".html", ".json", ".png", ".pdf", ".csv", ".parquet", ".toml", ".gz"}

OUT = click.option("--out", type=click.Path(), metavar="DIR", help="folder for tables and figures")
JSON = click.option("--json", "json_file", metavar="FILE", help="file for JSON; - prints only JSON")


def check_targets(out: str | None, json_file: str | None) -> None:
    """Refuse output paths that cannot be written, before anything runs."""
    if "" in (out, json_file):
        raise ValueError(
            f"{'--out' if not out and out is not None else '--json'} is empty: give a path"
        )
    if out is not None:
        with _told(f"--out {out}: cannot create this directory"):
            _check_directory(out)
    if json_file not in (None, "-"):
        check_file("--json", str(json_file))


def _check_directory(out: str) -> None:
    suffix = Path(out).suffix.lower()
    if suffix in FILE_SUFFIXES and not Path(out).is_dir():
        raise ValueError(f"{suffix} is the name of a file; --out must be a directory")
    Path(out).exists()  # raises OSError for a name that is too long
    existing = next(p for p in (Path(out), *Path(out).absolute().parents) if os.path.lexists(p))
    existing.stat()  # raises OSError for a link without a target
    if not existing.is_dir():
        raise ValueError(f"{existing} is a file")
    if not os.access(existing, os.W_OK):
        raise ValueError(f"{existing} is not writable")


def check_file(option: str, file: str) -> None:
    """Refuse a file that cannot be written."""
    with _told(f"{option} {file}: cannot be written"):
        if not Path(file).absolute().parent.is_dir():
            raise ValueError("no such directory")
        if Path(file).is_dir():
            raise ValueError("it is a directory")
        target = Path(file).resolve(strict=False)
        if target.is_symlink():
            raise ValueError("it is a symbolic link to itself")
        if not os.access(target if target.exists() else target.parent, os.W_OK):
            raise ValueError("permission denied")


def check_single(
    option: str, file: str, replications: int, why: str = "a file holds one run"
) -> None:
    """Refuse a file that cannot be written, or that would hold several runs."""
    check_file(option, file)
    if replications > 1:
        raise ValueError(f"{option}: {why}; omit --replications")


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Turn an error of the file system or of a check into one line."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"{what}: {error.strerror or error}") from None
    except (RuntimeError, ValueError) as error:  # pathlib: RuntimeError for a loop of links
        raise ValueError(f"{what}: {error}") from None


def show(renderable: RenderableType) -> None:
    """Print a table as wide as the terminal; print a text unchanged, so that it can be copied."""
    if isinstance(renderable, str):
        click.echo(renderable)
        return
    from rich.console import Console

    console = Console(soft_wrap=False)
    console.on_broken_pipe = _reader_has_gone  # type: ignore[method-assign]
    if not console.is_terminal and console.width < 100:
        console.width = 100  # a pipe has no width of its own
    console.print(renderable, highlight=False)


def _reader_has_gone() -> NoReturn:
    raise BrokenPipeError  # rich would exit with 1


def say(text: str, notes: Sequence[str] = ()) -> None:
    """Print a line, and notes to standard error."""
    click.echo(text)
    say_notes(notes)


def say_notes(notes: Sequence[str]) -> None:
    for note in notes:
        click.echo(f"note: {note}", err=True)


def print_answer(
    answer: Mapping[str, Any],
    json_file: str | None,
    render: Callable[[], RenderableType],
    notes: Sequence[str] = (),
    out: str | None = "",
) -> None:
    """Print an answer, as JSON or as text, and name the files that were or can be written."""
    if json_file == "-":
        click.echo(json.dumps(answer, indent=2, allow_nan=False))
        return
    if json_file is not None:
        from kvsim.files import write_json

        write_json(Path(json_file), answer)
    show(render())
    say_notes(notes)
    if out is None:
        click.echo("--out DIR saves tables and figures, --json FILE saves the numbers.")
    elif out:
        click.echo(f"Tables and figures are in {out}.")


def save_all(
    runs: Sequence[Result | Comparison], out: str | None, answers: Mapping[str, Any]
) -> None:
    """Write runs with their figures, each of several runs into its own folder."""
    from kvsim.report.files import save_with_figures

    if out is None:
        return
    if len(runs) == 1:
        save_with_figures(runs[0], Path(out))
        return
    save_named({f"replication-{index}": one for index, one in enumerate(runs)}, out, answers)


def save_named(
    runs: Mapping[str, Result | Comparison], out: str | None, answers: Mapping[str, Any]
) -> None:
    """Write runs with their figures into folders by name, and the answers as files next to them."""
    from kvsim.files import whole_folder, write_json
    from kvsim.report.files import save_with_figures
    from kvsim.results.comparison import directory_name
    from kvsim.results.result import make_directory

    if out is None:
        return
    make_directory(Path(out))
    with whole_folder(Path(out)) as temporary:
        for name, one in runs.items():
            save_with_figures(one, temporary / directory_name(name))
        for name, answer in answers.items():
            write_json(temporary / name, answer)


def progress_bar(
    what: str, total: int, json_file: str | None
) -> AbstractContextManager[Callable[[int], object]]:
    """Show a progress bar on a terminal, but not in a pipe or when JSON is printed."""
    from kvsim.api.progress import progress_bar as shown

    return shown(what, total, silent=json_file == "-")
