"""The command ``kvsim search``: the highest rate or best configuration within latency targets."""

from __future__ import annotations

from typing import Any

import click

from kvsim.api.requests import requests_of
from kvsim.cli.answers import JSON, check_targets, print_answer
from kvsim.cli.options import (
    PRICE,
    SectionedCommand,
    config_options,
    options_given,
    take_own,
    with_beginning,
)
from kvsim.cli.report import REPORT, check_report, write_report


@click.command(cls=SectionedCommand)
@click.argument("what", metavar="[CONFIG.toml | MODEL]", required=False)
@config_options(
    leave_out=(
        *("max_concurrency", "lanes", "shuffle_sessions", "shared_prefix_tokens"),
        *("horizon", "kv_events_config"),
        *("record_steps", "record_memory_map", "record_block_events"),
    )
)
@click.option(
    "--slo",
    multiple=True,
    metavar="METRIC<=X ...",
    help="limits on metrics of the summary, e.g. p99_ttft_ms<=500",
)
@click.option("--attain", type=float, help="share of requests that must meet --goodput [0.95]")
@click.option(
    "--trim",
    type=click.FloatRange(0),
    default=0.0,
    help="seconds at both ends of a run; requests that arrive in them do not count",
    show_default=True,
)
@click.option("--over", multiple=True, metavar="OPTION=A,B ...", help="configurations to search")
@click.option("--max-gpus", type=click.IntRange(1), help="maximum number of GPUs per configuration")
@click.option(
    "--objective",
    default="rate",
    show_default=True,
    help="what to optimize: rate, gpus, cost or pareto",
)
@PRICE
@click.option(
    "--replications",
    type=click.IntRange(1),
    default=3,
    help="number of seeds, for the interval",
    show_default=True,
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    help="processes [one per core, for more than 8 configurations]",
)
@REPORT
@JSON
def search(
    what: str | None, report_file: str | None, json_file: str | None, **options: Any
) -> None:
    """Find the highest request rate, or the best deployment, within latency targets.

    The targets are those of --slo or --goodput.
    """
    from kvsim.api.search import find
    from kvsim.report.search import sheet

    check_targets(None, json_file)
    check_report(report_file)
    own = take_own(options)
    flags = options_given(options)
    found = find(
        with_beginning(what, dict(flags)),
        requests_of,
        flags=flags,
        silent=json_file == "-",
        **own,
    )
    answer = found.answer
    said = write_report(report_file, lambda compose: compose.search_page(answer))
    print_answer(answer, json_file, lambda: sheet(answer), [*answer["notes"], *said])
