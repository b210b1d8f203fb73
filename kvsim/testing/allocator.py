"""A check of an allocator, for authors of allocators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.config import Config
from kvsim.engine.setup import resolve
from kvsim.kv.manager import ALLOCATORS
from kvsim.results.tables import FinishReason
from kvsim.sched.scheduler import SCHEDULERS
from kvsim.testing.drive import Drive
from kvsim.testing.serving import MAX_MODEL_LEN, checked, named, random_trace, told

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.engine.setup import Setup
    from kvsim.kv.manager import KVCacheManager


def check_allocator(
    allocator: str | Callable[..., KVCacheManager],
    *,
    num_runs: int = 20,
    seed: int = 0,
    **options: Any,
) -> None:
    """Drive an allocator through random small traces, under every scheduler that supports it.

    Every run draws a trace, limits, and a pool from one block to a roomy one. The manager is then
    driven by hand: a refused call and a lookup change nothing, what ``fits()`` promises is
    served in an empty memory, at the end all memory is free. Then each scheduler serves the trace
    twice, with all memory recounted after every step and :func:`check_result` on the tables.

    Parameters
    ----------
    allocator : a name, with modifiers and parameters if you like, an import path
        ``package.module:object``, or the class or function itself
    num_runs : traces
    seed : of the random numbers
    **options : fields of :class:`kvsim.Config` that are the same in all runs, e.g. ``model``

    Raises
    ------
    AssertionError, RuntimeError
        Naming the broken invariant; a note says in which run.
    ValueError
        If the options cannot be run at all.

    Examples
    --------
    >>> from kvsim.testing import check_allocator
    >>> check_allocator("paged+block-size=4", num_runs=1)
    """
    with named(ALLOCATORS, allocator) as name:
        fixed = {"model": "llama-3-8b", "gpu": "h100-sxm", **options, "allocator": name}
        num_served = 0
        schedulers = _schedulers(fixed)
        for run in range(num_runs):
            rng = np.random.default_rng([seed, run])
            trace, drawn = random_trace(rng), _limits(rng, run) | fixed
            with told(f"{name}, run {run} of seed {seed}: {drawn}"):
                setup = _resolved(drawn)
                if setup.kv.needs_scheduler is None:
                    drive = Drive(setup, trace, rng)
                    drive.one_by_one()
                    drive.all_together()
            for scheduler in schedulers:
                more = drawn | {"scheduler": scheduler}
                more = _switches(rng, _resolved(more)) | more
                with told(f"{name}, run {run} of seed {seed}: {more}"):
                    result = checked(trace, more)
                reasons = result.requests["finish_reason"]
                num_served += int((reasons == FinishReason.FINISHED).sum())
        if num_runs > 1 and not num_served:
            raise AssertionError(f"{name}: fits() lets no request in, even into a roomy pool")


def _resolved(options: dict[str, Any]) -> Setup:
    return resolve(Config.build(**options))


def _schedulers(options: dict[str, Any]) -> list[str]:
    """Return the schedulers that support an allocator."""
    default = _resolved(options).scheduler  # whoever is wrong hears of it here
    if options.get("scheduler"):
        return [default]
    found = []
    for scheduler in dict.fromkeys([default, *SCHEDULERS.names()]):
        try:
            _resolved(options | {"scheduler": scheduler})
        except ValueError:
            continue
        found.append(scheduler)
    return found


def _limits(rng: np.random.Generator, run: int) -> dict[str, Any]:
    """Draw options of every scheduler; the first pools are the smallest and a large one."""
    num_blocks = int(2 ** rng.uniform(0, 8))
    return {
        "num_gpu_blocks_override": {0: 1, 1: 256}.get(run, num_blocks),
        "max_model_len": int(rng.choice([16, 40, MAX_MODEL_LEN])) if run > 1 else MAX_MODEL_LEN,
        "max_num_seqs": int(rng.integers(1, 7)),
        "block_size": int(rng.choice([4, 16])),
        "watermark": float(rng.choice([0.0, 0.0, 0.2])),
        "num_lookahead_tokens": int(rng.choice([0, 0, 3])),
        "scheduling_policy": str(rng.choice(["fcfs", "priority"])),
    }


def _switches(rng: np.random.Generator, setup: Setup) -> dict[str, Any]:
    """Draw options of some schedulers."""
    kind = setup.scheduler_type
    drawn: dict[str, Any] = {}
    if not kind.whole_prompts:
        fewest = setup.scheduler_config.max_num_seqs
        drawn["max_num_batched_tokens"] = max(fewest, int(rng.choice([8, 16, 300])))
    if kind.looks_up_prefix:
        drawn["enable_prefix_caching"] = bool(rng.random() < 0.7)
    if kind.supports_async:
        drawn["async_scheduling"] = bool(rng.random() < 0.5)
        drawn["scheduler_reserve_full_isl"] = bool(rng.random() < 0.5)
    if kind.can_swap:
        drawn["preemption_mode"] = str(rng.choice(["recompute", "swap"]))
        drawn["swap_space"] = float(rng.choice([0.0, 1e-3, 4.0]))
    return drawn
