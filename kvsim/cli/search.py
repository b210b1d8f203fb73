"""The highest rate, or the best configuration, that meets latency targets."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from kvsim.api.requests import requests_of
from kvsim.cli.answers import JSON, check_targets, print_answer, progress_bar
from kvsim.cli.beginning import refuse_both, with_beginning
from kvsim.cli.options import SectionedCommand, config_options, options_given
from kvsim.cli.report import REPORT, check_report, write_search_report

if TYPE_CHECKING:
    from kvsim.config import RunConfig
    from kvsim.study.objective import Wish
    from kvsim.study.trial import Requests
    from kvsim.trace import Trace

#: First rate of a search when none is given, requests per second.
GUESS = 1.0


@click.command(cls=SectionedCommand)
@click.argument("what", metavar="[CONFIG.toml | MODEL]", required=False)
@config_options(
    leave_out=(
        *("max_concurrency", "horizon", "kv_events_config"),
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
    help="seconds at both ends; arrivals in them do not count",
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
@click.option(
    "--gpu-price", multiple=True, metavar="GPU=X ...", help="price of a GPU-hour, for cost"
)
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
    what: str | None,
    slo: tuple[str, ...],
    attain: float | None,
    trim: float,
    over: tuple[str, ...],
    max_gpus: int | None,
    objective: str,
    gpu_price: tuple[str, ...],
    replications: int,
    workers: int | None,
    report_file: str | None,
    json_file: str | None,
    **options: Any,
) -> None:
    """Find the highest request rate that meets latency targets, or the best configuration."""
    from kvsim.config import RunConfig
    from kvsim.report.search import sheet
    from kvsim.study.choose import choose
    from kvsim.study.objective import Wish, read_objective, read_prices
    from kvsim.study.search_report import answer_of
    from kvsim.study.slo import read_slo
    from kvsim.study.space import COUNTED, read_over

    check_targets(None, json_file)
    check_report(report_file)
    flags = options_given(options)
    given = with_beginning(what, dict(flags))
    config = RunConfig.build(**given)
    target = replace(read_slo(slo, config.goodput, attain), trim=trim)
    space = read_over(over)
    refuse_both(flags, space, "--over")
    wish = Wish(read_objective(objective), config.request_rate, read_prices(gpu_price))
    counted = {"data_parallel_size", *COUNTED} & (space.keys() | config.model_fields_set)
    own = not (config.pool or counted or any("." in name for name in space))
    carries = wish.objective == "gpus" or (wish.objective == "cost" and wish.asked_rate is not None)
    wish = wish._replace(counts_replicas=carries and own)
    guess = config.request_rate or GUESS
    _check(config, given, space, wish)
    requests, notes = _requests(config)
    number = len(requests(guess, 0))
    with progress_bar("searching", 1, json_file) as tick:
        candidates, outcomes = choose(
            *(given, space, requests, target, wish),
            guess=guess,
            max_gpus=max_gpus,
            workers=workers,
            on_progress=lambda done, total: tick(int(done == total)),
        )
        seeds = replications if config.trace is None else 1
        answer = answer_of(candidates, outcomes, target, wish, num_requests=number, seeds=seeds)
    answer["notes"] = notes + answer["notes"]
    if config.trace is not None and replications > 1:
        answer["notes"].append("a trace has no seed: the interval is the bracket of one run")
    said = write_search_report(answer, report_file)
    print_answer(answer, json_file, lambda: sheet(answer), [*answer["notes"], *said])


def _check(
    config: RunConfig, given: dict[str, Any], space: dict[str, tuple[str, ...]], wish: Wish
) -> None:
    """Refuse what has no highest rate, or lacks what an objective needs."""
    scales = config.autoscaler, *(pool.autoscaler for pool in config.pool or ())
    refused = {
        "max_concurrency: a closed loop sets its own rate; search varies the rate; omit it": (
            config.max_concurrency is not None
        ),
        "autoscaler: search needs a fleet of constant size; omit it": (
            any(scales) or any("autoscaler" in name for name in space)
        ),
        "horizon: search serves whole traces; omit it": math.isfinite(config.horizon),
        "request_rate: inf: must be finite for a search": math.isinf(config.request_rate or 0.0),
    }
    if wish.objective == "gpus":
        refused |= {
            "--objective gpus: needs --request-rate, the rate to serve": config.request_rate
            is None,
            "--objective gpus: it searches the number of replicas; omit "
            "--data-parallel-size and the like": (not wish.counts_replicas),
        }
    for reason, holds in refused.items():
        if holds:
            raise ValueError(reason)
    if wish.objective == "cost":
        _check_prices(config, given, space, wish)


def _check_prices(
    config: RunConfig, given: dict[str, Any], space: dict[str, tuple[str, ...]], wish: Wish
) -> None:
    """Refuse cards that have no price."""
    from kvsim.study.space import combinations, gpus_by_card, with_pools

    for options in combinations({k: values for k, values in space.items() if k.endswith("gpu")}):
        made = config.model_copy(update={k: v for k, v in options.items() if "." not in k})
        if any("." in name for name in options):
            made = type(config).build(**with_pools({**given, **options}))
        for name in gpus_by_card(made):
            if name not in wish.prices:
                raise ValueError(f"--objective cost: give --gpu-price {name}=PRICE, per hour")


def _requests(config: RunConfig) -> tuple[Requests, list[str]]:
    """Return a function that gives the requests at a rate: the same ones with scaled gaps.

    A generator draws the same lengths and gaps for a seed and scales the gaps, so that what it
    gives at a rate is what ``kvsim run --request-rate`` serves; turns of a session keep the times
    between them. A trace is read once and scaled.
    """
    if config.trace is None:
        made: dict[tuple[float, int], Trace] = {}

        def generated(rate: float, seed: int) -> Trace:
            if (rate, seed) not in made:
                if len(made) > 8:  # many configurations ask for the same few rates in turn
                    made.pop(next(iter(made)))
                update = {"request_rate": rate, "seed": config.seed + seed, "trace_digest": None}
                made[rate, seed] = requests_of(config.model_copy(update=update))[0]
            return made[rate, seed]

        return generated, []
    rate = config.request_rate or GUESS
    trace, notes = requests_of(config.model_copy(update={"request_rate": rate}))
    return (lambda rate, seed: trace.with_request_rate(rate)), list(notes)
