"""The commands without a simulation: closed forms of memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kvsim.cli.answers import JSON, OUT, check_targets, print_answer
from kvsim.cli.options import (
    ENGINE_SECTIONS,
    SectionedCommand,
    TrainingCommand,
    config_options,
    options_given,
    training_options,
    with_beginning,
    with_model,
)
from kvsim.config import Config, RunConfig

#: Options that affect the arithmetic intensity of a step, apart from its requests.
ROOFLINE_FIELDS = {
    *("model", "gpu", "dtype", "quantization", "tensor_parallel_size", "kv_cache_dtype")
}


def _save(answer: Any, out: str | None, name: str, drawn: Any) -> None:
    """Write an answer, and the figure that the function ``name`` of kvsim.plot draws."""
    if out is None:
        return
    from kvsim.report import plot
    from kvsim.report.files import save_answer

    save_answer(answer.to_dict(), lambda: getattr(plot, name)(drawn), Path(out), name)


@click.command(cls=SectionedCommand)
@click.argument("what", metavar="[CONFIG.toml | MODEL]", required=False)
@config_options(
    only=(
        *("Model and GPU", "KV memory", "Scheduler limits", "Speculation and adapters"),
        *ENGINE_SECTIONS,
    )
)
@OUT
@JSON
def capacity(what: str | None, out: str | None, json_file: str | None, **options: Any) -> None:
    """Compute the memory budget and the requests that fit.

    The result is a closed form; nothing is simulated.
    """
    from kvsim.engine.capacity import capacity as capacity_of
    from kvsim.report.capacity import capacity_table

    check_targets(out, json_file)
    given = with_beginning(what, options_given(options))
    answer = capacity_of(**{k: v for k, v in given.items() if k in Config.model_fields})
    _save(answer, out, "capacity", answer)
    print_answer(answer.to_dict(), json_file, lambda: capacity_table(answer), out=out)


@click.command("train-memory", cls=TrainingCommand)
@click.argument("what", metavar="[MODEL]", required=False)
@training_options
@OUT
@JSON
def train_memory(what: str | None, out: str | None, json_file: str | None, **options: Any) -> None:
    """Compute the memory of training, and the changes that would make it fit.

    The result is a closed form per component; nothing is simulated.
    """
    from kvsim.report.training import training_table
    from kvsim.training.remedies import train_memory as train_memory_of

    check_targets(out, json_file)
    found = train_memory_of(**with_model(what, options_given(options)))
    _save(found, out, "training_memory", {found.model: found})
    print_answer(found.to_dict(), json_file, lambda: training_table(found), out=out)


@click.command(cls=SectionedCommand)
@click.argument("what", metavar="[CONFIG.toml | MODEL]", required=False)
@config_options(leave_out=RunConfig.model_fields.keys() - ROOFLINE_FIELDS)
@click.option(
    "--batch-size", type=click.IntRange(1), default=32, show_default=True, help="requests per step"
)
@click.option(
    "--context-len",
    type=click.IntRange(1),
    default=2048,
    show_default=True,
    help="tokens per request",
)
@OUT
@JSON
def roofline(
    what: str | None,
    batch_size: int,
    context_len: int,
    out: str | None,
    json_file: str | None,
    **options: Any,
) -> None:
    """Compute whether memory or arithmetic limits prefill and decode on a GPU.

    The result is a closed form; nothing is simulated.
    """
    from kvsim.intensity.roofline import roofline as roofline_of
    from kvsim.report.roofline import roofline_tables

    check_targets(out, json_file)
    given = with_beginning(what, options_given(options))
    given = {name: value for name, value in given.items() if name in ROOFLINE_FIELDS}
    found = roofline_of(batch_size=batch_size, context_len=context_len, **given)
    if out is not None:
        found.save(out)
    print_answer(found.to_dict(), json_file, lambda: roofline_tables(found), out=out)
