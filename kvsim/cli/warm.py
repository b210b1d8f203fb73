"""Options of ``kvsim run`` for warm starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kvsim.cli.answers import check_single

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.engine.warm_start import Warmth

OPTIONS = (
    click.option(
        "--load-cache", metavar="FILE", help="saved content of the prefix cache, from the start on"
    ),
    click.option(
        "--same-contents",
        is_flag=True,
        help="another trace filled the loaded cache, and numbers the same contents alike",
    ),
    click.option(
        "--save-cache", metavar="FILE", help="file for the content of the prefix cache at the end"
    ),
    click.option(
        "--warmup-requests",
        type=click.IntRange(0),
        default=0,
        metavar="N",
        help="first requests, which fill the cache and do not count; the others come after them",
    ),
)


def warm_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--load-cache``, ``--save-cache`` and what belongs to them to a command."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def warmth_of(options: dict[str, Any], replications: int, case_file: str | None) -> Warmth:
    """Take the options of a warm start from those of a command. Mutates.

    Raises
    ------
    ValueError
        For a file that cannot be written, several runs into one file, or a recorded schedule.
    """
    from kvsim.engine.warm_start import COLD, Warmth

    names = ("load_cache", "save_cache", "warmup_requests", "same_contents")
    found = Warmth(*(options.pop(name) for name in names))
    if found != COLD and case_file is not None:
        raise ValueError("--record: conflicts with warm starts; a case begins with an empty cache")
    if found.save is not None:
        check_single("--save-cache", str(found.save), replications)
    return found
