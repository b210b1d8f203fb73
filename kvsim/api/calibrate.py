"""``kvsim.calibrate``: constants of your server, from its log and its benchmarks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from kvsim.api.calibrate_result import Calibrated
from kvsim.api.progress import progress_bar
from kvsim.calibration.answer import answer_of, undecided, worse
from kvsim.calibration.calibrate import calibrate as fit
from kvsim.calibration.collect import about, collect, cost_of, loops_for, notes_on
from kvsim.calibration.left_out import LEFT_OUT
from kvsim.calibration.memory import overhead_of
from kvsim.calibration.read_bench import read_bench
from kvsim.calibration.read_log import read_startup
from kvsim.calibration.server import server_of
from kvsim.calibration.vllm_bench import runs
from kvsim.config import Config
from kvsim.errors import FieldError
from kvsim.files import write_whole, writing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvsim.calibration.bench import Measured
    from kvsim.calibration.collect import Running
    from kvsim.options import Options


def calibrate(
    *,
    log: str | Path | None = None,
    bench: str | Path | Sequence[str | Path] = (),
    hold_out: str | Path | None = None,
    random_range_ratio: float = 0.0,
    collect: str | None = None,
    keep: str | Path | None = None,
    **options: Unpack[Options],
) -> Calibrated:
    """Fit step-time and memory constants to your server, from its log and its benchmarks.

    Parameters
    ----------
    log : start-up log of a server
    bench : results of ``vllm bench serve``, GuideLLM, inference-perf or aiperf, or request logs
    hold_out : the file of ``bench`` that is not used for fitting [the last]
    random_range_ratio : the client's ``--random-range-ratio``, for results without lengths per
        request
    collect : address of your running server, on which ten closed loops are measured, some minutes
        in all
    keep : file for the results of ``collect``, which ``bench`` can read
    **options : options of the server that the log lacks, or that replace those of the log

    Raises
    ------
    ValueError
        For a file that cannot be read or has another format, and if the model or the GPU is
        unknown.
    """
    for name in LEFT_OUT:
        if name in options:
            raise FieldError(name, "is not an option of a calibration: omit it")
    Config.build(**options)  # for its errors
    files = [bench] if isinstance(bench, str | Path) else bench
    return fit_server(
        {**options},
        log=None if log is None else str(log),
        bench=[str(file) for file in files],
        hold_out=None if hold_out is None else str(hold_out),
        random_range_ratio=random_range_ratio,
        collect=collect,
        keep=None if keep is None else Path(keep),
    )


def fit_server(
    given: Mapping[str, Any],
    *,
    log: str | None,
    bench: Sequence[str],
    hold_out: str | None,
    random_range_ratio: float,
    collect: str | None = None,
    keep: Path | None = None,
    silent: bool = False,
) -> Calibrated:
    """Fit with the command line's arguments; see :func:`calibrate`. ``silent``: no progress bar."""
    if log is None and not bench and collect is None:
        raise ValueError("calibrate needs --log SERVER.log, --bench RESULT.json or --collect URL")
    startup = None if log is None else read_startup(Path(log))
    running = None if collect is None else about(collect, given)
    server = server_of(startup, ({} if running is None else running.options) | dict(given))
    is_vllm = startup is not None and startup.engine == "vllm"
    overhead = overhead_of(server) if is_vllm else None
    files = _read(bench, hold_out, random_range_ratio)
    told: list[str] = []
    if running is not None:
        loops, told = _collected(running, server.options, keep, silent=silent)
        files = {running.url: loops} | files
    fitted, held_out, notes = _split(files, hold_out)
    notes += told
    found = None
    if fitted:
        with progress_bar("simulating", 100, silent=silent) as tick:
            found = fit(server.options, fitted, held_out, on_progress=lambda n: tick(min(n, 99)))
    answer = answer_of(startup, server, overhead, found, notes)
    values = {} if found is None else found.values
    answer["notes"] += [*undecided(answer, values), *worse(answer)]
    return Calibrated(answer, values, server.options)


def _collected(
    running: Running, options: Mapping[str, Any], keep: Path | None, *, silent: bool
) -> tuple[list[Measured], list[str]]:
    """Benchmark a running server, and save the results before the fit; return runs and notes."""
    loops = loops_for(options)
    print(f"{running.url}: {cost_of(options, loops)}", file=sys.stderr, flush=True)  # noqa: T201
    with progress_bar("measuring", len(loops), silent=silent) as tick:
        results = collect(running, loops, on_progress=tick)
    if keep is not None:
        with writing(keep):
            write_whole(keep, lambda out: out.write(json.dumps(results).encode()))
    sent = 1 + sum(result["completed"] for result in results)
    after = about(running.url, options)
    return runs(running.url, results) or [], notes_on(running, after, sent)


def _read(
    bench: Sequence[str], hold_out: str | None, range_ratio: float
) -> dict[str, list[Measured]]:
    """Read the runs of every file, the held-out file included."""
    if hold_out is not None and hold_out not in bench:
        raise ValueError(f"--hold-out {hold_out}: must be one of the files of --bench")
    if len(set(bench)) < len(bench):
        raise ValueError("--bench: a file is given twice")
    return {file: read_bench(Path(file), range_ratio) for file in bench}


def _split(
    files: dict[str, list[Measured]], hold_out: str | None
) -> tuple[list[Measured], list[Measured], list[str]]:
    """Return runs to fit, runs held out, and notes; of a single file, the last run is held out."""
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
