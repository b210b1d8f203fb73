"""The commands ``kvsim run`` and ``kvsim compare``."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from kvsim.api.requests import requests_of
from kvsim.cli.answers import (
    JSON,
    OUT,
    check_single,
    check_targets,
    print_answer,
    progress_bar,
    save_all,
)
from kvsim.cli.exports import METRICS, REQUESTS_DRAWN, TIMELINE, WINDOW, Exports
from kvsim.cli.options import PRICE, SectionedCommand, config_options, options_given, with_beginning
from kvsim.cli.report import REPORT, check_report, with_records, write_report
from kvsim.cli.vary import compare_options
from kvsim.cli.warm import warm_options, warmth_of
from kvsim.engines.registry import all_engines
from kvsim.results.notes import add_notes, merged, notes_of, shared
from kvsim.study.plan import seeded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvsim.config import RunConfig
    from kvsim.results.comparison import Comparison
    from kvsim.results.result import Result

VERBOSE = click.option(
    "-v", "--verbose", is_flag=True, help="print the backend of the run, and the reason"
)
REPLICATIONS = click.option(
    "--replications",
    type=click.IntRange(1),
    default=1,
    help="number of runs, with seed, seed + 1, ...",
)


@click.command(cls=SectionedCommand)
@click.argument("what", metavar="[CONFIG.toml | MODEL]", required=False)
@config_options(leave_out=("allocator", "engine", "kv_events_config"))
@click.option(
    "--allocators",
    metavar="A,B",
    help="KV-cache managers [contiguous-max,contiguous-pow2,contiguous-oracle,paged]",
)
@click.option(
    "--engines", metavar="A,B", help=f"compare engines, not allocators: {','.join(all_engines())}"
)
@click.option(
    "--vary", multiple=True, metavar="OPTION=A,B ...", help="compare values of any option"
)
@click.option(
    "--policies",
    metavar="A,B",
    help="compare eviction and session policies, such as lru,sieve,program=20,hints",
)
@click.option(
    "--replications",
    type=click.IntRange(1),
    help="number of runs, with seed, seed + 1, ... [1; with --vary, --policies: 5]",
)
@PRICE
@REPORT
@VERBOSE
@OUT
@JSON
def compare(
    what: str | None,
    allocators: str | None,
    engines: str | None,
    vary: tuple[str, ...],
    policies: str | None,
    replications: int | None,
    price: tuple[str, ...],
    report_file: str | None,
    verbose: bool,
    out: str | None,
    json_file: str | None,
    **options: Any,
) -> None:
    """Serve one trace under several allocators or engines.

    With --vary, serve it under several values of any option; with --policies, under several
    policies of the prefix cache.
    """
    from kvsim.config import RunConfig
    from kvsim.fleet.simulate import DEFAULT_ALLOCATORS, compare_engines, run_comparison
    from kvsim.report.terminal import comparison_table
    from kvsim.results.cost import add_cost, prices_of
    from kvsim.results.replications import average, average_workloads

    check_targets(out, json_file)
    flags = options_given(options)
    given = with_beginning(what, dict(flags))
    _refuse_both(vary, policies, allocators, engines)
    if vary or policies is not None:
        compare_options(
            vary,
            given,
            flags,
            policies=policies,
            price=price,
            replications=replications,
            json_file=json_file,
            report_file=report_file,
            out=out,
        )
        return
    number = replications or 1
    check_report(report_file, number)
    config = with_records(RunConfig.build(**given), report_file, out)
    prices = prices_of(price, [config])
    serve, asked = (run_comparison, allocators) if engines is None else (compare_engines, engines)
    names = list(DEFAULT_ALLOCATORS) if asked is None else asked.split(",")
    names = list(filter(None, map(str.strip, names)))
    comparisons = [_compared(serve, one, names, json_file) for one in seeded(config, number)]
    every = list(chain.from_iterable(c.results.values() for c in comparisons))
    _refuse_if_nothing_ran(every)
    for one in every:
        add_cost(one, prices)
    if verbose:
        _say_backends(comparisons[0].results)
    said = shared({n: merged(notes_of(c[n].provenance) for c in comparisons) for n in names})
    rows = [average(row) for row in zip(*(c.rows for c in comparisons), strict=True)]
    facts = average_workloads([c.workload for c in comparisons])
    answer = {"workload": facts, "rows": rows}
    save_all(comparisons, out, {"comparison.json": answer})
    said += write_report(report_file, lambda compose: compose.comparison_page(comparisons[0]))
    print_answer(
        answer, json_file, lambda: comparison_table(comparisons[0], rows, facts), said, out
    )


def _refuse_both(
    vary: tuple[str, ...], policies: str | None, allocators: str | None, engines: str | None
) -> None:
    if policies is not None and (vary or allocators is not None or engines is not None):
        raise ValueError("--policies: conflicts with --vary, --allocators and --engines")
    if vary and allocators is not None:
        raise ValueError("--allocators: conflicts with --vary; give --vary allocator=A,B")
    if vary and engines is not None:
        raise ValueError(f"--engines: conflicts with --vary; give --vary engine={engines}")
    if engines is not None and allocators is not None:
        raise ValueError(
            "--allocators: conflicts with --engines; each engine has its own allocator"
        )


def _compared(
    serve: Callable[..., Comparison], config: RunConfig, names: list[str], json_file: str | None
) -> Comparison:
    """Serve the requests of one seed by several KV-cache managers or engines."""
    requests, notes = requests_of(config)
    done = dict.fromkeys(names, 0)
    with progress_bar("simulating", len(names) * len(requests), json_file) as tick:

        def on_progress(name: str, count: int) -> None:
            done[name] = count
            tick(sum(done.values()))

        comparison = serve(config, requests, names, on_progress=on_progress)
    for result in comparison.results.values():
        add_notes(result.provenance, notes)
    return comparison


@click.command(cls=SectionedCommand)
@click.argument("what", metavar="[CONFIG.toml | MODEL]", required=False)
@click.option(
    "--config", "config_file", metavar="CONFIG.toml", help="the configuration file, as an option"
)
@config_options()
@REPLICATIONS
@PRICE
@warm_options
@click.option(
    "--record", "case_file", metavar="CASE.json", help="file for the schedule of every step"
)
@REPORT
@METRICS
@TIMELINE
@WINDOW
@REQUESTS_DRAWN
@VERBOSE
@OUT
@JSON
def run(
    what: str | None,
    config_file: str | None,
    replications: int,
    price: tuple[str, ...],
    case_file: str | None,
    report_file: str | None,
    metrics_file: str | None,
    timeline_file: str | None,
    window: str | None,
    requests: int | None,
    verbose: bool,
    out: str | None,
    json_file: str | None,
    **options: Any,
) -> None:
    """Serve a trace under one configuration.

    The configuration is a TOML file, a model, a server's command line, or flags.
    """
    from kvsim.cases.record import record_run
    from kvsim.config import RunConfig
    from kvsim.fleet.simulate import describe
    from kvsim.fleet.simulate import run as simulate_run
    from kvsim.report.terminal import run_table
    from kvsim.results.cost import add_cost, prices_of
    from kvsim.results.replications import average, average_workloads

    check_targets(out, json_file)
    exports = Exports(metrics_file, timeline_file, window, requests)
    exports.check(replications)
    check_report(report_file, replications)
    if case_file is not None:
        check_single("--record", case_file, replications, "a case is one run")
    warm = warmth_of(options, replications, case_file)
    config = RunConfig.build(**with_beginning(_named(what, config_file), options_given(options)))
    events = config.kv_events_config
    if events is not None and events.writes:
        check_single("--kv-events-config", str(events.path), replications)
    config = with_records(exports.records(config), report_file, out)
    prices = prices_of(price, [config])
    results, described = [], []
    for one in seeded(config, replications):
        trace, notes = requests_of(one)
        described.append(describe(trace))
        with progress_bar("simulating", len(trace), json_file) as tick:
            if case_file is None:
                results.append(simulate_run(one, trace, on_progress=tick, warm=warm))
            else:
                results.append(record_run(one, trace, case_file, on_progress=tick))
        add_notes(add_cost(results[-1], prices).provenance, notes)
    _refuse_if_nothing_ran(results)
    if verbose:
        _say_backends({config.allocator: results[0]})
    said = merged(notes_of(result.provenance) for result in results)
    summary = average([result.summary for result in results])
    save_all(results, out, {"summary.json": summary})
    said += exports.write(results[0])
    said += write_report(report_file, lambda compose: compose.run_page(results[0]))
    facts = average_workloads(described)
    if case_file is not None and json_file != "-":
        said.append(f"{case_file} holds the schedule; kvsim replay-case replays it")
    answer = {**summary, "provenance": results[0].provenance}
    print_answer(answer, json_file, lambda: run_table(results[0], facts, summary), said, out)


def _named(what: str | None, config_file: str | None) -> str | None:
    if config_file is None:
        return what
    if what is not None:
        raise ValueError(f"--config {config_file}: conflicts with {what}: give one of them")
    return config_file if config_file.lower().endswith(".toml") else f"{config_file}.toml"


def _say_backends(results: Mapping[str, Result]) -> None:
    for name, result in results.items():
        reason = result.provenance["reason"]
        said = f"{result.provenance['engine']} backend{f' ({reason})' if reason else ''}"
        click.echo(f"{name}: {said}", err=True)
        if len(result.summary["replicas"]) > 1 and result.summary["scaling"] is None:
            click.echo(f"{name}: {_shares(result)}", err=True)
    for basis in {result.provenance["step_time"] for result in results.values()}:
        click.echo(f"step times: {basis}", err=True)


def _shares(result: Result) -> str:
    """Return a line with the share of requests that the router sent to each replica."""
    import numpy as np

    from kvsim.results.tables import FinishReason

    number = sum(row["role"] != "prefill" for row in result.summary["replicas"])
    served = result.served[result.served["finish_reason"] != FinishReason.REJECTED]
    counts = np.bincount(served["replica"], minlength=number)
    shares = ", ".join(f"{100 * count / max(len(served), 1):.1f}" for count in counts.tolist())
    return f"router {result.config.router}; requests per replica, %: {shares}"


def _refuse_if_nothing_ran(results: Sequence[Result]) -> None:
    if all(r.summary["num_rejected"] == len(r.requests) for r in results):
        from kvsim.engine.shortage import why_none

        raise ValueError(why_none(next(iter(results))))
