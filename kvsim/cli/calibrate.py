"""The command ``kvsim calibrate``: constants of a server from its log and benchmarks."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from kvsim.calibration.left_out import LEFT_OUT
from kvsim.cli.answers import JSON, check_file, check_targets, print_answer
from kvsim.cli.options import (
    SectionedCommand,
    config_options,
    options_given,
    take_own,
    with_beginning,
)
from kvsim.cli.pairs import flag
from kvsim.config import RunConfig


@click.command(cls=SectionedCommand)
@click.argument("what", metavar="[CONFIG.toml | MODEL]", required=False)
@click.option("--log", metavar="SERVER.log", help="start-up log of the server")
@click.option(
    "--bench", multiple=True, metavar="RESULT.json ...", help="benchmark results or request logs"
)
@click.option(
    "--hold-out",
    metavar="RESULT.json",
    help="file of --bench for validation, not fitting [the last]",
)
@click.option(
    "--random-range-ratio",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.0,
    help="the benchmark client's value, for results without lengths",
    show_default=True,
)
@click.option(
    "--collect",
    metavar="URL",
    help="benchmark your running server with ten closed loops; results are saved next to --out",
)
@click.option("--out", metavar="FILE.toml", help="file for the constants")
@config_options(leave_out=LEFT_OUT)
@JSON
def calibrate(what: str | None, out: str | None, json_file: str | None, **options: Any) -> None:
    """Fit step times and memory to the logs of your server.

    Constants are fitted to benchmark results; memory is read from the start-up log.
    """
    from kvsim.api.calibrate import fit_server
    from kvsim.report.calibration import sheet

    check_targets(None, json_file)
    if out is not None:
        check_file("--out", out)
    own = take_own(options)
    has_data = own["log"] or own["bench"] or own["collect"]
    given = with_beginning(what, options_given(options)) if has_data else {}
    found = fit_server(
        {k: v for k, v in given.items() if k not in LEFT_OUT},
        keep=None if out is None else Path(out).with_suffix(".bench.json"),
        silent=json_file == "-",
        **own,
    )
    answer = found.answer
    if out is not None:
        found.save(out)
    answer["out"] = out
    answer["use"] = _use(answer, out, found.values)
    answer["line"] = None if answer["use"] is None else _line(found.server, answer)
    told = f"{sheet(answer)}\n\n{answer['line'] or ''}".rstrip()
    print_answer(answer, json_file, lambda: told, answer["notes"])


def _use(answer: dict[str, Any], out: str | None, values: dict[str, float]) -> str | None:
    """Return the options that apply a calibration, in addition to the server's own flags."""
    if out is None:
        return None
    words = [f"--cost-model roofline+constants={out}"] if values else []
    if "front_end_latency" in values:
        words.append(f"--front-end-latency {values['front_end_latency']:.4g}")
    if answer["memory"] is not None:
        words.append(f"--logged {out}")
    return " ".join(words) or None


def _line(options: dict[str, Any], answer: dict[str, Any]) -> str:
    """Return the command that simulates the server, with its own flags.

    The log's number of blocks is omitted if its memory is known: the number then follows from the
    memory, even when other flags change.
    """
    words = ["kvsim", "run", "--model", str(options["model"]), "--gpu", str(options["gpu"])]
    told = {"model", "gpu", "logged"} | ({"num_gpu_blocks_override"} if answer["memory"] else set())
    for name, value in options.items():
        if name in told or value in (None, RunConfig.model_fields[name].default):
            continue
        if not isinstance(value, bool):
            words += [flag(name), str(value)]
        else:
            words.append(flag(name) if value else f"--no-{flag(name)[2:]}")
    return f"{shlex.join(words)} {answer['use']}"
