"""A check of a scheduler, for authors of schedulers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.config import Config
from kvsim.engine.setup import resolve
from kvsim.sched.scheduler import SCHEDULERS
from kvsim.testing.serving import Run, check_compiled, check_runs, checked, random_trace

if TYPE_CHECKING:
    import numpy as np

    from kvsim.parametric import PartLike


def check_scheduler(
    scheduler: PartLike, *, num_runs: int = 20, seed: int = 0, **options: Any
) -> None:
    """Check a scheduler on random small traces, with pools that are short of blocks.

    Every request must end once, the memory must add up after every step, the run must make
    progress, and a second run must give the same tables. Rules (:class:`.SchedulerRules`) must give
    the same tables compiled as in Python. :mod:`kvsim.testing` has the parameters.

    Examples
    --------
    >>> from kvsim.testing import check_scheduler
    >>> check_scheduler("orca", num_runs=1)
    """
    check_runs(SCHEDULERS, scheduler, _short_pool, _check, num_runs, seed, options)


def _short_pool(rng: np.random.Generator, number: int) -> dict[str, Any]:
    return {"num_gpu_blocks_override": int(rng.integers(8, 24))}


def _check(run: Run) -> None:
    options = run.options | {"scheduler": run.name}
    trace = random_trace(run.rng, max_requests=16)
    first = checked(trace, options)
    if resolve(Config.build(**options)).scheduler_config.order is not None:
        check_compiled(trace, options, first)
