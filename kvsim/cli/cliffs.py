"""Values of an option between which the hit rate or the time to first token jumps."""

from __future__ import annotations

from typing import Any

import click

from kvsim.api.requests import requests_of
from kvsim.cli.answers import JSON, check_targets, print_answer, progress_bar
from kvsim.cli.options import SectionedCommand, config_options, options_given, with_beginning


@click.command(cls=SectionedCommand)
@click.argument("what", metavar="[CONFIG.toml | MODEL]", required=False)
@config_options(
    leave_out=("kv_events_config", "record_steps", "record_memory_map", "record_block_events")
)
@click.option(
    "--vary",
    metavar="OPTION=LO:HI[:STEP]",
    required=True,
    help="option, or workload.PARAMETER, and its range",
)
@click.option("--max-runs", type=click.IntRange(9), default=60, help="maximum number of runs [60]")
@JSON
def cliffs(
    what: str | None, vary: str, max_runs: int, json_file: str | None, **options: Any
) -> None:
    """Find option values between which the hit rate or the TTFT jumps.

    A jump is 10 points of hit rate, or a factor of 2 in TTFT, between two neighbouring values. The
    answer names the mechanism of each jump, and an option that removes the jump in a run, if any.
    """
    from kvsim.cliffs.cliffs import find_cliffs
    from kvsim.cliffs.table import cliffs_table

    check_targets(None, json_file)
    given = with_beginning(what, options_given(options))
    with progress_bar("simulating", max_runs, json_file) as tick:
        answer = find_cliffs(vary, given, requests_of, most=max_runs, on_progress=tick)
    print_answer(answer, json_file, lambda: cliffs_table(answer), answer["notes"])
