"""The commands about traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kvsim.api.requests import NUM_REQUESTS, load, named_trace, usual_rate
from kvsim.cli.answers import JSON, print_answer, say

if TYPE_CHECKING:
    from collections.abc import Callable


@click.group()
def trace() -> None:
    """Inspect, convert and generate traces."""


_TOKENIZER = click.option("--tokenizer", help="tokenizer.json to count the tokens of texts")


@trace.command("inspect")
@click.argument("file")
@_TOKENIZER
@JSON
def trace_inspect(file: str, tokenizer: str | None, json_file: str | None) -> None:
    """Describe a trace file as kvsim reads it: FILE[+KEY=VALUE]..."""
    import workloads
    from kvsim.report.trace_facts import facts_table, trace_facts

    path, options, said = named_trace(file, tokenizer)
    loaded = workloads.read(path, **options)
    facts = {"file": file, "format": loaded.format, **trace_facts(loaded.trace)}
    facts["notes"] = [*loaded.notes, *said]
    print_answer(facts, json_file, lambda: facts_table(facts))


_RESHAPE = [
    click.option("--request-rate", type=float, help="requests per second; inf: all arrive at once"),
    click.option("--num-requests", type=click.IntRange(1), help="number of requests"),
    click.option("--seed", type=click.IntRange(0), default=0, help="seed of random draws"),
]


def _reshape(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_RESHAPE):
        command = option(command)
    return command


@trace.command("convert")
@click.argument("source")
@click.argument("target")
@_TOKENIZER
@_reshape
def trace_convert(
    source: str,
    target: str,
    tokenizer: str | None,
    request_rate: float | None,
    num_requests: int | None,
    seed: int,
) -> None:
    """Write a trace file as kvsim's own CSV, JSONL (each also .gz) or Parquet."""
    requests, notes = load(source, request_rate, num_requests, seed, tokenizer)
    requests.save(target)
    say(f"{target}: {len(requests):,} requests", notes)


@trace.command("generate")
@click.argument("target")
@click.option(
    "--workload",
    default="sharegpt",
    show_default=True,
    help="workload to generate: NAME[+KEY=VALUE]...",
)
@_reshape
def trace_generate(
    target: str, workload: str, request_rate: float | None, num_requests: int | None, seed: int
) -> None:
    """Generate the requests of a workload; see `kvsim list workloads`."""
    import workloads

    made = workloads.generate(
        workload,
        num_requests=num_requests or NUM_REQUESTS,
        request_rate=usual_rate(workload) if request_rate is None else request_rate,
        seed=seed,
    )
    made.save(target)
    say(f"{target}: {len(made):,} requests")
