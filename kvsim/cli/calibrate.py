"""Teach the simulator a server: constants from its start-up log and its benchmarks."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvsim.cli.answers import JSON, check_file, check_targets, print_answer, progress_bar
from kvsim.cli.beginning import with_beginning
from kvsim.cli.options import SectionedCommand, config_options, flag, options_given
from kvsim.config import RunConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.calibration.bench import Measured

#: Options of requests and of recording, which a calibration does not have.
LEFT_OUT = (
    *(
        "workload",
        "trace",
        "tokenizer",
        "request_rate",
        "num_requests",
        "max_concurrency",
        "seed",
        "goodput",
    ),
    *("horizon", "kv_events_config", "record_steps", "record_memory_map", "check_invariants"),
    *("cost_model", "autoscaler", "cold_start", "failures", "migration"),
    "session_think_time",
)


@click.command(cls=SectionedCommand)
@click.argument("what", metavar="[CONFIG.toml | MODEL]", required=False)
@click.option("--log", "log_file", metavar="SERVER.log", help="start-up log of vLLM or SGLang")
@click.option(
    "--bench", multiple=True, metavar="RESULT.json ...", help="benchmark results or request logs"
)
@click.option(
    "--hold-out", metavar="RESULT.json", help="file to validate on, not to fit on [the last]"
)
@click.option(
    "--random-range-ratio",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.0,
    help="value of the client, for results without lengths",
    show_default=True,
)
@click.option("--out", metavar="FILE.toml", help="file for the constants")
@config_options(leave_out=LEFT_OUT)
@JSON
def calibrate(
    what: str | None,
    log_file: str | None,
    bench: tuple[str, ...],
    hold_out: str | None,
    random_range_ratio: float,
    out: str | None,
    json_file: str | None,
    **options: Any,
) -> None:
    """Fit step-time and memory constants to your server, from its log and its benchmarks."""
    from kvsim.calibration.answer import answer_of, constants_file
    from kvsim.calibration.calibrate import calibrate as fit
    from kvsim.calibration.memory import overhead_of
    from kvsim.calibration.read_log import read_startup
    from kvsim.calibration.server import server_of
    from kvsim.files import write_whole
    from kvsim.report.calibration import sheet

    check_targets(None, json_file)
    if out is not None:
        check_file("--out", out)
    if log_file is None and not bench:
        raise ValueError("calibrate needs --log SERVER.log, --bench RESULT.json or both")
    startup = None if log_file is None else read_startup(Path(log_file))
    given = with_beginning(what, options_given(options))
    server = server_of(startup, {k: v for k, v in given.items() if k not in LEFT_OUT})
    is_vllm = startup is not None and startup.engine == "vllm"
    overhead = overhead_of(server) if is_vllm else None
    files = _read(bench, hold_out, random_range_ratio)
    fitted, held_out, notes = _split(files, hold_out)
    found = None
    if fitted:
        with progress_bar("simulating", 100, json_file) as tick:
            found = fit(server.options, fitted, held_out, on_progress=lambda n: tick(min(n, 99)))
    answer = answer_of(startup, server, overhead, found, notes)
    if out is not None:
        text = constants_file(answer, {} if found is None else found.values)
        write_whole(Path(out), lambda file: file.write(text.encode()))
    answer["out"] = out
    values = {} if found is None else found.values
    answer["use"] = _use(answer, out, values)
    answer["line"] = None if answer["use"] is None else _line(server.options, answer)
    answer["notes"] += [*undecided(answer, values), *_worse(answer)]
    told = f"{sheet(answer)}\n\n{answer['line'] or ''}".rstrip()
    print_answer(answer, json_file, lambda: told, answer["notes"])


def _read(
    bench: Sequence[str], hold_out: str | None, range_ratio: float
) -> dict[str, list[Measured]]:
    """Read every file once; the one to be held out is one of them."""
    from kvsim.calibration.read_bench import read_bench

    if hold_out is not None and hold_out not in bench:
        raise ValueError(f"--hold-out {hold_out}: must be one of the files of --bench")
    if len(set(bench)) < len(bench):
        raise ValueError("--bench: a file is given twice")
    return {file: read_bench(Path(file), range_ratio) for file in bench}


def _split(
    files: dict[str, list[Measured]], hold_out: str | None
) -> tuple[list[Measured], list[Measured], list[str]]:
    """Hold one file out; of a single file, its last run."""
    notes = [note for runs in files.values() for run in runs for note in run.notes]
    every = [run for runs in files.values() for run in runs]
    if len(every) < 2:
        more = ["a single run: no run is held out, so the errors are those of the fit"]
        return every, [], notes + (more if every else [])
    if len(files) == 1:
        return every[:-1], every[-1:], notes
    held = hold_out or list(files)[-1]
    fitted = [run for file, runs in files.items() if file != held for run in runs]
    return fitted, files[held], notes


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

    Blocks that the log has are left out where its memory is told: then they follow, also when
    other flags are changed.
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


def undecided(answer: dict[str, Any], values: dict[str, float]) -> list[str]:
    """Return a note where step times are unchanged."""
    if values:
        return []
    why = "these runs determine no constant" if answer["constants"] else "no --bench is given"
    return [f"{why}: step times stay those of {answer['server']['gpu']}"]


def _worse(answer: dict[str, Any]) -> list[str]:
    means = answer["error_percent"]
    if not means or means["held_out_after"] is None:
        return []
    if means["held_out_after"] <= means["held_out_before"]:
        return []
    return [
        "the fitted constants predict the held-out file worse than the defaults: keep the "
        "defaults, or fit on more runs"
    ]
