"""The command ``kvsim replay-live``: serve a recorded live run again."""

from __future__ import annotations

import sys

import click


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
