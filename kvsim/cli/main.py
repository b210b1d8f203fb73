"""The command line. Flags are the fields of the configuration; each command is a few lines."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvsim.cli import pasted
from kvsim.cli.answers import (
    JSON,
    OUT,
    check_file,
    check_targets,
    print_answer,
    progress_bar,
    save_all,
    show,
)
from kvsim.cli.beginning import with_beginning
from kvsim.cli.budgets import capacity, roofline, train_memory
from kvsim.cli.calibrate import calibrate
from kvsim.cli.exports import METRICS, REQUESTS_DRAWN, TIMELINE, WINDOW, Exports
from kvsim.cli.options import (
    SectionedCommand,
    config_options,
    flag,
    join_pairs,
    options_given,
)
from kvsim.cli.report import REPORT, check_report, report, with_records, write_report
from kvsim.cli.requests import requests_of, seeded
from kvsim.cli.search import search
from kvsim.cli.sweep import sweep
from kvsim.cli.traces import trace
from kvsim.cli.vary import compare_options
from kvsim.errors import FieldError, UnfinishedError, too_large
from kvsim.results.notes import add_notes, merged, notes_of, shared

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvsim.results.result import Result

#: Exit code of a command that was stopped by Ctrl-C, as shells have it.
INTERRUPTED = 130


class Commands(click.Group):
    """The commands; a reader of their output may go before its end, as ``| head`` does."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command asked for."""
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
    """Simulate KV-cache managers: how many requests fit, what is wasted, what it costs.

    Start with `kvsim compare`, which needs no arguments.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


VERBOSE = click.option("-v", "--verbose", is_flag=True, help="say which backend ran, and why")
REPLICATIONS = click.option(
    "--replications", type=click.IntRange(1), default=1, help="runs with seed, seed + 1, ..."
)


@cli.command(cls=SectionedCommand)
@click.argument("what", metavar="[CONFIG.toml | MODEL]", required=False)
@config_options(leave_out=("allocator", "engine", "kv_events_config"))
@click.option(
    "--allocators",
    metavar="A,B",
    help="see `kvsim list allocators` [contiguous-max,contiguous-pow2,contiguous-oracle,paged]",
)
@click.option("--engines", metavar="A,B", help="vllm,sglang, instead: each with its defaults")
@click.option(
    "--vary", multiple=True, metavar="OPTION=A,B ...", help="values of any option, instead"
)
@click.option(
    "--replications",
    type=click.IntRange(1),
    help="runs with seed, seed + 1, ... [1; with --vary: 5]",
)
@REPORT
@VERBOSE
@OUT
@JSON
def compare(
    what: str | None,
    allocators: str | None,
    engines: str | None,
    vary: tuple[str, ...],
    replications: int | None,
    report_file: str | None,
    verbose: bool,
    out: str | None,
    json_file: str | None,
    **options: Any,
) -> None:
    """Serve one trace by several KV-cache managers, engines, or values of any option."""
    from kvsim.config import RunConfig
    from kvsim.fleet.simulate import DEFAULT_ALLOCATORS, compare_engines, run_comparison
    from kvsim.report.terminal import comparison_table
    from kvsim.results.replications import average, average_workloads

    check_targets(out, json_file)
    flags = options_given(options)
    given = with_beginning(what, dict(flags))
    if vary:
        _refuse_beside_vary(allocators, engines)
        compare_options(
            vary,
            given,
            flags,
            replications=replications,
            json_file=json_file,
            report_file=report_file,
            out=out,
        )
        return
    if engines is not None and allocators is not None:
        raise ValueError("--allocators: beside --engines, each of which has its own")
    check_report(report_file, replications or 1)
    config = with_records(RunConfig.build(**given), report_file)
    asked = ",".join(DEFAULT_ALLOCATORS) if allocators is None else allocators
    asked = asked if engines is None else engines
    names = [name.strip() for name in asked.split(",") if name.strip()]
    serve = run_comparison if engines is None else compare_engines
    if out is not None:
        config = config.model_copy(update={"record_memory_map": True})
    comparisons = []
    for one in seeded(config, replications or 1):
        requests, notes = requests_of(one)
        total = len(names) * len(requests)
        with progress_bar("simulating", total, json_file) as tick:
            done = dict.fromkeys(names, 0)

            def on_progress(name: str, count: int, done: dict[str, int] = done) -> None:
                done[name] = count
                tick(sum(done.values()))

            comparisons.append(serve(one, requests, names, on_progress=on_progress))
        for result in comparisons[-1].results.values():
            add_notes(result.provenance, notes)
    _refuse_if_nothing_ran([r for c in comparisons for r in c.results.values()])
    if verbose:
        _say_backends(comparisons[0].results)
    said = shared({n: merged(notes_of(c[n].provenance) for c in comparisons) for n in names})
    rows = [average([c.rows[i] for c in comparisons]) for i in range(len(names))]
    facts = average_workloads([c.workload for c in comparisons])
    answer = {"workload": facts, "rows": rows}
    if out is not None:
        save_all(comparisons, Path(out), {"comparison.json": answer})
    said += write_report(comparisons[0], report_file)
    print_answer(
        answer, json_file, lambda: comparison_table(comparisons[0], rows, facts), said, out
    )


def _refuse_beside_vary(allocators: str | None, engines: str | None) -> None:
    if allocators is not None:
        raise ValueError("--allocators: beside --vary; give --vary allocator=A,B")
    if engines is not None:
        raise ValueError("--engines: beside --vary; give --vary engine=vllm,sglang")


@cli.command(cls=SectionedCommand)
@click.argument("what", metavar="[CONFIG.toml | MODEL]", required=False)
@click.option("--config", "config_file", metavar="CONFIG.toml", help="the same by its name")
@config_options()
@REPLICATIONS
@click.option("--record", "case_file", metavar="CASE.json", help="write every step's schedule here")
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
    """Serve a trace by one configuration: a TOML file or a model, and flags."""
    from kvsim.cases.record import record_run
    from kvsim.config import RunConfig
    from kvsim.fleet.simulate import describe
    from kvsim.fleet.simulate import run as simulate_run
    from kvsim.report.terminal import run_table
    from kvsim.results.replications import average, average_workloads

    check_targets(out, json_file)
    exports = Exports(metrics_file, timeline_file, window, requests)
    exports.check(replications)
    check_report(report_file, replications)
    if case_file is not None:
        check_file("--record", case_file)
        if replications > 1:
            raise ValueError("--record: a case is one run; leave --replications out")
    given = options_given(options)
    if config_file is not None:
        if what is not None:
            raise ValueError(f"--config {config_file}: beside {what}: give one of them")
        what = config_file if config_file.lower().endswith(".toml") else f"{config_file}.toml"
    config = RunConfig.build(**with_beginning(what, given))
    if config.kv_events_config is not None and config.kv_events_config.writes:
        check_file("--kv-events-config", str(config.kv_events_config.path))
        if replications > 1:
            raise ValueError("--kv-events-config: a file holds one run; leave --replications out")
    config = with_records(exports.records(config), report_file)
    if out is not None:
        config = config.model_copy(update={"record_memory_map": True})
    results, described = [], []
    for one in seeded(config, replications):
        trace, notes = requests_of(one)
        described.append(describe(trace))
        with progress_bar("simulating", len(trace), json_file) as tick:
            if case_file is None:
                results.append(simulate_run(one, trace, on_progress=tick))
            else:
                results.append(record_run(one, trace, case_file, on_progress=tick))
        add_notes(results[-1].provenance, notes)
    _refuse_if_nothing_ran(results)
    if verbose:
        _say_backends({config.allocator: results[0]})
    said = merged(notes_of(result.provenance) for result in results)
    summary = average([result.summary for result in results])
    if out is not None:
        save_all(results, Path(out), {"summary.json": summary})
    said += [*exports.write(results[0]), *write_report(results[0], report_file)]
    facts = average_workloads(described)
    if case_file is not None and json_file != "-":
        said.append(f"{case_file} holds the schedule; kvsim replay-case plays it")
    print_answer(summary, json_file, lambda: run_table(results[0], facts, summary), said, out)


cli.add_command(capacity)
cli.add_command(train_memory)
cli.add_command(roofline)
cli.add_command(report)
cli.add_command(search)
cli.add_command(calibrate)


@cli.command("replay-case")
@click.argument("files", metavar="CASE.json...", nargs=-1, required=True)
@click.option("--backend", type=click.Choice(["python", "compiled"]), help="One engine, not both.")
def replay_case(files: Sequence[str], backend: str | None) -> None:
    """Replay recorded schedules by both engines, or by one.

    Exit 0 if all are identical, else 1 after the first differences.
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


cli.add_command(sweep)
cli.add_command(trace)


@cli.command("list")
@click.argument("kind", required=False)
def list_(kind: str | None) -> None:
    """List what there is: models, gpus, allocators, schedulers, cost-models, workloads, ..."""
    from kvsim.report.listing import KINDS, listing

    if kind is None:
        click.echo(f"kvsim list KIND shows what there is, of: {', '.join(KINDS)}")
        return
    show(listing(kind))


def _say_backends(results: Mapping[str, Result]) -> None:
    for name, result in results.items():
        reason = result.provenance["backend_reason"]
        said = f"{result.provenance['backend']} backend{f' ({reason})' if reason else ''}"
        click.echo(f"{name}: {said}", err=True)
        if len(result.summary["replicas"]) > 1 and result.summary["scaling"] is None:
            click.echo(f"{name}: {_shares(result)}", err=True)
    for basis in {result.provenance["step_time"] for result in results.values()}:
        click.echo(f"step times: {basis}", err=True)


def _shares(result: Result) -> str:
    """Say how the router has dealt out the requests."""
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
    """Run the command line: exit 0 when done, 2 for a user's mistake, 1 for anything else."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        line = pasted.translate(join_pairs(given), cli)
        for note in line.notes():
            click.echo(f"note: {note}", err=True)
        cli.main(line.words, prog_name="kvsim", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        _fail(f"{error.ctx.command.name} needs one of: {', '.join(_commands(error.ctx))}", 2)
    except click.ClickException as error:
        _fail(" ".join(error.format_message().split()), 2)
    except click.Abort as error:
        if isinstance(error.__cause__, EOFError):
            raise error.__cause__ from None
        _fail("interrupted; nothing is half written", INTERRUPTED)
    except KeyboardInterrupt:
        _fail("interrupted; nothing is half written", INTERRUPTED)
    except FieldError as error:
        _fail(f"{flag(error.field)} {error.problem}", 2)
    except ValueError as error:
        _fail(" ".join(str(error).split()), 2)
    except UnfinishedError as error:
        _fail(" ".join(str(error).split()), 1)
    except (MemoryError, OverflowError) as error:
        _fail(str(too_large(error)), 2)
    except BrokenPipeError:  # met by the last flush
        _drop_output()
        sys.exit(0)
    except OSError as error:
        if error.filename is not None:
            raise
        _drop_output()
        if error.errno == errno.ENOMEM:
            _fail(f"too large: {error.strerror}", 2)
        _fail(f"cannot write the output: {error.strerror or error}", 1)


def _drop_output() -> None:
    """Send what is still buffered nowhere; Python would fail over it once more at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


def _commands(context: click.Context) -> list[str]:
    command = context.command
    return command.list_commands(context) if isinstance(command, click.Group) else []


def _fail(message: str, code: int) -> None:
    click.echo(f"kvsim: {message}", err=True)
    sys.exit(code)
