"""The commands ``kvsim replay-case`` and ``kvsim replay-live``: serve a record again."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.command("replay-case")
@click.argument("files", metavar="CASE.json...", nargs=-1, required=True)
@click.option(
    "--backend", type=click.Choice(["python", "compiled"]), help="backend that replays [both]"
)
def replay_case(files: Sequence[str], backend: str | None) -> None:
    """Replay recorded schedules under both backends, or one.

    Exits with 0 if all schedules are identical; else prints the first differences, exits with 1.
    """
    from kvsim.cases.recorded import read_case
    from kvsim.cases.replay import refuses, replay

    any_different = False
    for file in files:
        case = read_case(file)
        backends, left_out = [backend or "python"], ""
        if backend is None:
            reason = refuses(case)
            backends += [] if reason else ["compiled"]
            left_out = f"; not compiled: {reason}" if reason else ""
        for one in backends:
            difference = replay(case, backend=one)
            if difference is not None:
                any_different = True
                engine = "compiled engine: " if one == "compiled" else ""
                click.echo(f"{file}: {engine}{difference}")
                break
        else:
            click.echo(f"{file}: identical ({len(case.steps):,} steps{left_out})")
    sys.exit(int(any_different))


@click.command(name="replay-live")
@click.argument("file", metavar="FILE")
def replay_live(file: str) -> None:
    """Serve a record of kvsim serve again, and compare both runs.

    Prints the first difference and exits with 1; exits with 0 if there is none.
    """
    from kvsim.serve.replaying import first_difference

    difference, number = first_difference(file)
    if difference is not None:
        click.echo(difference)
        sys.exit(1)
    click.echo(f"{number} requests, nothing differs")
