"""The command line; its flags are the fields of the configuration."""

from __future__ import annotations

import errno
import gc
import os
import sys
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from kvsim.api.requests import requests_of, seeded
from kvsim.cli import pasted
from kvsim.cli.answers import (
    JSON,
    OUT,
    check_single,
    check_targets,
    print_answer,
    progress_bar,
    save_all,
    say_notes,
    show,
)
from kvsim.cli.beginning import with_beginning
from kvsim.cli.budgets import capacity, roofline, train_memory
from kvsim.cli.calibrate import calibrate
from kvsim.cli.cliffs import cliffs
from kvsim.cli.exports import METRICS, REQUESTS_DRAWN, TIMELINE, WINDOW, Exports
from kvsim.cli.hits import hits
from kvsim.cli.options import (
    PRICE,
    SectionedCommand,
    config_options,
    flag,
    join_pairs,
    options_given,
)
from kvsim.cli.replay_live import replay_live
from kvsim.cli.report import REPORT, check_report, report, with_map, with_records, write_report
from kvsim.cli.search import search
from kvsim.cli.serve import serve
from kvsim.cli.sweep import sweep
from kvsim.cli.traces import trace
from kvsim.cli.vary import compare_options
from kvsim.cli.warm import warm_options, warmth_of
from kvsim.engines.registry import all_engines
from kvsim.errors import FieldError, UnfinishedError, too_large
from kvsim.results.notes import add_notes, merged, notes_of, shared

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvsim.config import RunConfig
    from kvsim.results.comparison import Comparison
    from kvsim.results.result import Result

#: Exit code of a command that Ctrl-C stopped, as in shells.
INTERRUPTED = 130


class Commands(click.Group):
    """The commands; a reader such as ``| head`` may close their output early."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click would exit with 1
            _drop_output()
            raise click.exceptions.Exit(0) from None


@click.group(
    cls=Commands,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "token_normalize_func": lambda token: token.replace("_", "-"),  # --max_num_seqs works too
    },
    invoke_without_command=True,
)
@click.version_option(package_name="kvsim")
@click.pass_context
def cli(context: click.Context) -> None:
    """Simulate KV-cache managers: requests that fit, memory wasted, latency and throughput.

    Start with `kvsim compare`, which needs no arguments.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


VERBOSE = click.option(
    "-v", "--verbose", is_flag=True, help="print the backend of the run, and the reason"
)
REPLICATIONS = click.option(
    "--replications",
    type=click.IntRange(1),
    default=1,
    help="number of runs, with seed, seed + 1, ...",
)


@cli.command(cls=SectionedCommand)
@click.argument("what", metavar="[CONFIG.toml | MODEL]", required=False)
@config_options(leave_out=("allocator", "engine", "kv_events_config"))
@click.option(
    "--allocators",
    metavar="A,B",
    help="KV-cache managers [contiguous-max,contiguous-pow2,contiguous-oracle,paged]",
)
@click.option(
    "--engines",
    metavar="A,B",
    help=f"compare engines, not allocators: {','.join(all_engines())}",
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
    config = with_map(with_records(RunConfig.build(**given), report_file), out)
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
    said += write_report(comparisons[0], report_file)
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


@cli.command(cls=SectionedCommand)
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
    config = with_map(with_records(exports.records(config), report_file), out)
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
    said += [*exports.write(results[0]), *write_report(results[0], report_file)]
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


@cli.command("replay-case")
@click.argument("files", metavar="CASE.json...", nargs=-1, required=True)
@click.option(
    "--backend", type=click.Choice(["python", "compiled"]), help="backend that replays [both]"
)
def replay_case(files: Sequence[str], backend: str | None) -> None:
    """Replay recorded schedules under both backends, or one.

    Exits with 0 if all schedules are identical; else prints the first differences, exits with 1.
    """
    from kvsim.cases.recorded import read_case
    from kvsim.cases.replay import refuses, replay

    any_different = False
    for file in files:
        case = read_case(file)
        backends, left_out = [backend or "python"], ""
        if backend is None:
            reason = refuses(case)
            backends += [] if reason else ["compiled"]
            left_out = f"; not compiled: {reason}" if reason else ""
        for one in backends:
            difference = replay(case, backend=one)
            if difference is not None:
                any_different = True
                engine = "compiled engine: " if one == "compiled" else ""
                click.echo(f"{file}: {engine}{difference}")
                break
        else:
            click.echo(f"{file}: identical ({len(case.steps):,} steps{left_out})")
    sys.exit(int(any_different))


@cli.command("list")
@click.argument("kind", required=False)
def list_(kind: str | None) -> None:
    """List the names of models, gpus, allocators, routers, ..."""
    from kvsim.report.listing import KINDS, listing

    if kind is None:
        click.echo(f"kvsim list KIND lists the names of a kind: {', '.join(KINDS)}")
        return
    show(listing(kind))


def _say_backends(results: Mapping[str, Result]) -> None:
    for name, result in results.items():
        reason = result.provenance["reason"]
        said = f"{result.provenance['engine']} backend{f' ({reason})' if reason else ''}"
        click.echo(f"{name}: {said}", err=True)
        if len(result.summary["replicas"]) > 1 and result.summary["scaling"] is None:
            click.echo(f"{name}: {_shares(result)}", err=True)
    for basis in {result.provenance["step_time"] for result in results.values()}:
        click.echo(f"step times: {basis}", err=True)


for _command in (
    *(capacity, train_memory, roofline, report, search, calibrate, sweep, trace),
    *(cliffs, hits, serve, replay_live),
):
    cli.add_command(_command)


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


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exit 0 when done, 2 for a user's mistake, 130 on Ctrl-C, else 1."""
    if arguments is None:
        gc.freeze()  # modules live as long as the process, so the collector may skip them
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        line = pasted.translate(join_pairs(given), cli)
        say_notes(line.notes())
        cli.main(line.words, prog_name="kvsim", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        _fail(f"{error.ctx.command.name} needs a command: {', '.join(_commands(error.ctx))}", 2)
    except click.ClickException as error:
        _fail(" ".join(error.format_message().split()), 2)
    except (click.Abort, KeyboardInterrupt) as error:
        if isinstance(error.__cause__, EOFError):
            raise error.__cause__ from None
        _fail("interrupted; no file is incomplete", INTERRUPTED)
    except FieldError as error:
        _fail(error.said_of(flag(error.field)), 2)
    except (ValueError, UnfinishedError) as error:
        _fail(" ".join(str(error).split()), 2 if isinstance(error, ValueError) else 1)
    except (MemoryError, OverflowError) as error:
        _fail(str(too_large(error)), 2)
    except OSError as error:
        if error.filename is not None:
            raise
        _end_without_output(error)


def _end_without_output(error: OSError) -> None:
    _drop_output()
    if isinstance(error, BrokenPipeError):  # raised by the last flush
        sys.exit(0)
    if error.errno == errno.ENOMEM:
        _fail(f"too large: {error.strerror}", 2)
    _fail(f"cannot write the output: {error.strerror or error}", 1)


def _drop_output() -> None:
    """Discard buffered output; Python would fail again at exit if it were flushed."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


def _commands(context: click.Context) -> list[str]:
    command = context.command
    return command.list_commands(context) if isinstance(command, click.Group) else []


def _fail(message: str, code: int) -> None:
    click.echo(f"kvsim: {message}", err=True)
    sys.exit(code)
