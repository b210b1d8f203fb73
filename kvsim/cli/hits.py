"""Hit rates over the size of a prefix cache."""

from __future__ import annotations

from typing import Any

import click

from kvsim.api.requests import load
from kvsim.cli.answers import JSON, OUT, check_targets, print_answer, progress_bar
from kvsim.cli.options import (
    ENGINE_SECTIONS,
    SectionedCommand,
    config_options,
    options_given,
    take_own,
)
from kvsim.cli.report import REPORT, check_report, write_report


def _numbers(context: click.Context, option: click.Parameter, text: str | None) -> Any:
    if text is None:
        return None
    try:
        return [int(part) for part in text.replace("_", "").split(",")]
    except ValueError:
        raise ValueError(f"--sizes {text}: must be whole numbers, as in 1000,10000") from None


@click.command(cls=SectionedCommand)
@click.argument("trace")
@config_options(
    only=("Model and GPU", "KV memory", "Scheduler limits", *ENGINE_SECTIONS),
    leave_out=("allocator",),
)
@click.option(
    "--policies",
    metavar="A,B",
    help="eviction policies: lru, fifo, lfu, s3fifo, sieve, optimal [all six], slru, arc, gdsf",
)
@click.option(
    "--sizes", metavar="N,N,...", callback=_numbers, help="cache sizes in blocks [14 sizes]"
)
@click.option(
    "--measure-from",
    type=click.IntRange(0),
    default=0,
    help="first request that counts; those before it fill the cache [0]",
)
@click.option("--disk-size", type=float, metavar="GIB", help="disk behind GPU and host memory")
@click.option("--gib-price", type=float, metavar="X", help="dollars per GiB of cache")
@REPORT
@OUT
@JSON
def hits(
    trace: str,
    policies: str | None,
    report_file: str | None,
    out: str | None,
    json_file: str | None,
    **options: Any,
) -> None:
    """Compute hit rates over the size of a prefix cache.

    Requests are served one after another; their times do not matter. One pass gives LRU at all
    sizes; other policies are simulated at each size. With --model, hits count as in an engine,
    sizes are in GiB, and your GPU pool is marked; with --kv-offloading-size, your host memory is.
    """
    from kvsim.hits.hit_rate import hit_rate
    from kvsim.hits.policies import USUAL
    from kvsim.report.hits import hits_page, hits_table

    check_targets(out, json_file)
    check_report(report_file)
    own = take_own(options)
    given = options_given(options)
    requests, notes = load(trace, None, None, 0, given.pop("tokenizer", None))
    names = USUAL if policies is None else [name.strip() for name in policies.split(",")]
    with progress_bar("simulating", 14 * len(names), json_file) as tick:
        found = hit_rate(requests, policies=names, on_progress=tick, **own, **given)
    answer = found.to_dict()
    if out is not None:
        found.save(out)
    said = [*notes, *answer["notes"], *write_report(report_file, lambda _: hits_page(answer))]
    print_answer(answer, json_file, lambda: hits_table(answer), said, out)
