"""A check of a scheduler, for authors of schedulers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.config import Config
from kvsim.engine.refusal import refusal
from kvsim.engine.setup import resolve
from kvsim.fleet.simulate import serve
from kvsim.sched.scheduler import SCHEDULERS
from kvsim.testing.results import equal_tables
from kvsim.testing.serving import MAX_MODEL_LEN, checked, named, random_trace, told

if TYPE_CHECKING:
    from kvsim.parametric import PartLike
    from kvsim.results.result import Result
    from kvsim.trace import Trace


def check_scheduler(
    scheduler: PartLike, *, num_runs: int = 20, seed: int = 0, **options: Any
) -> None:
    """Drive a scheduler through random small traces, over pools that are short of blocks.

    Every request ends once, memory adds up after every step, no step is without progress for long,
    and a second run gives the same tables. Rules (:class:`.SchedulerRules`) give the same tables
    compiled as in Python.

    Parameters
    ----------
    scheduler : a name, with parameters if you like, an import path ``package.module:object``, an
        object, or the class itself
    num_runs : traces
    seed : of the random numbers
    **options : fields of :class:`kvsim.Config` that are the same in all runs

    Raises
    ------
    AssertionError, RuntimeError
        Naming the broken promise; a note names the run.

    Examples
    --------
    >>> from kvsim.testing import check_scheduler
    >>> check_scheduler("orca", num_runs=1)
    """
    with named(SCHEDULERS, scheduler) as name:
        for run in range(num_runs):
            rng = np.random.default_rng([seed, run])
            trace = random_trace(rng, max_requests=16)
            drawn: dict[str, Any] = {
                "model": "llama-3-8b",
                "gpu": "h100-sxm",
                "max_model_len": MAX_MODEL_LEN,
                "num_gpu_blocks_override": int(rng.integers(8, 24)),
                "max_num_seqs": int(rng.integers(1, 7)),
                "scheduler": name,
            } | options
            with told(f"{name}, run {run} of seed {seed}: {drawn}"):
                first = checked(trace, drawn)
                _check_compiled(trace, drawn, first)


def _check_compiled(trace: Trace, options: dict[str, Any], expected: Result) -> None:
    """Compare with the compiled engine, if it can run the scheduler."""
    setup = resolve(Config.build(**options))
    if setup.scheduler_config.order is None or refusal(setup) is not None:
        return
    found = serve(setup, trace)
    for table in ("requests", "memory"):
        if not equal_tables(getattr(expected, table), getattr(found, table)):
            raise AssertionError(f"compiled, its {table} table is another than in Python")
