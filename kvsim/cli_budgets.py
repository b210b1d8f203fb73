"""The commands that simulate nothing: closed forms of memory."""

from __future__ import annotations

from typing import Any

import click

from kvsim.cli_answers import JSON, check_targets, print_answer
from kvsim.cli_options import (
    SectionedCommand,
    TrainingCommand,
    config_options,
    options_given,
    training_options,
)


@click.command(cls=SectionedCommand)
@config_options(only=("Model and GPU", "KV memory", "Scheduler limits"))
@JSON
def capacity(json_file: str | None, **options: Any) -> None:
    """Compute the memory budget, the KV blocks and the requests that fit: no simulation."""
    from kvsim.kv.capacity import capacity as capacity_of
    from kvsim.report.terminal import capacity_table

    answer = capacity_of(**options_given(options))
    print_answer(answer.to_dict(), json_file, lambda: capacity_table(answer))


@click.command("train-memory", cls=TrainingCommand)
@training_options
@JSON
def train_memory(json_file: str | None, **options: Any) -> None:
    """Compute the memory of training by component, and what would make it fit: no simulation."""
    from kvsim.memory.remedies import train_memory as train_memory_of
    from kvsim.report.training import training_table

    check_targets(None, json_file)
    found = train_memory_of(**options_given(options))
    print_answer(found.to_dict(), json_file, lambda: training_table(found))
