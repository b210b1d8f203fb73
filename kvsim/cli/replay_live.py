"""The command ``kvsim replay-live``: a recorded live run, served again."""

from __future__ import annotations

import sys

import click


@click.command(name="replay-live")
@click.argument("file", metavar="FILE")
def replay_live(file: str) -> None:
    """Serve a record of kvsim serve again, and compare.

    Exits with 1 after the first difference, else with 0.
    """
    from kvsim.serve.replaying import first_difference

    difference, number = first_difference(file)
    if difference is not None:
        click.echo(difference)
        sys.exit(1)
    click.echo(f"{number} requests, nothing differs")
