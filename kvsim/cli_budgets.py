"""The commands that simulate nothing: closed forms of memory."""

from __future__ import annotations

from typing import Any

import click

from kvsim.cli_answers import JSON, print_answer
from kvsim.cli_options import SectionedCommand, config_options, options_given


@click.command(cls=SectionedCommand)
@config_options(only=("Model and GPU", "KV memory", "Scheduler limits"))
@JSON
def capacity(json_file: str | None, **options: Any) -> None:
    """Compute the memory budget, the KV blocks and the requests that fit: no simulation."""
    from kvsim.kv.capacity import capacity as capacity_of
    from kvsim.report.terminal import capacity_table

    answer = capacity_of(**options_given(options))
    print_answer(answer.to_dict(), json_file, lambda: capacity_table(answer))
