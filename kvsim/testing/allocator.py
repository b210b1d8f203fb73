"""A check of an allocator, for authors of allocators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.config import Config
from kvsim.engine.setup import resolve
from kvsim.kv.allocator_rules import OwnManager
from kvsim.kv.manager import ALLOCATORS
from kvsim.results.tables import FinishReason
from kvsim.sched.scheduler import SCHEDULERS
from kvsim.testing.drive import Drive
from kvsim.testing.serving import (
    MAX_MODEL_LEN,
    Run,
    check_compiled,
    check_runs,
    checked,
    named,
    random_trace,
    told,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from kvsim.engine.setup import Setup
    from kvsim.kv.manager import KVCacheManager
    from kvsim.trace import Trace


def check_allocator(
    allocator: str | Callable[..., KVCacheManager],
    *,
    num_runs: int = 20,
    seed: int = 0,
    **options: Any,
) -> None:
    """Check an allocator on random small traces, under every scheduler that supports it.

    Every run draws a trace, limits, and a pool of one block to 256. First, the methods are called
    directly: a refused call and a lookup change nothing, a request for which ``fits()`` is true is
    served in an empty memory, and at the end all memory is free. Then each scheduler serves the
    trace twice: all memory is recounted after every step, and :func:`check_result` checks the
    tables. Rules (:class:`.AllocatorRules`) serve it once more, compiled. :mod:`kvsim.testing` has
    the parameters.

    Examples
    --------
    >>> from kvsim.testing import check_allocator
    >>> check_allocator("paged+block-size=4", num_runs=1)
    """
    with named(ALLOCATORS, allocator) as name:
        fixed = {"model": "llama-3-8b", "gpu": "h100-sxm", **options, "allocator": name}
        schedulers, num_served = _schedulers(fixed), 0

        def check(run: Run) -> None:
            nonlocal num_served
            trace = random_trace(run.rng)
            _drive(run.options, trace, run.rng)
            for scheduler in schedulers:
                more = run.options | {"scheduler": scheduler}
                more = _switches(run.rng, _resolved(more)) | more
                with told(f"{scheduler}: {more}"):
                    num_served += _serve(trace, more)

        check_runs(ALLOCATORS, name, _limits, check, num_runs, seed, options | {"allocator": name})
        if num_runs > 1 and not num_served:
            raise AssertionError(
                f"{name}: fits() is true for no request, even in a pool of 256 blocks"
            )


def _drive(options: dict[str, Any], trace: Trace, rng: np.random.Generator) -> None:
    setup = _resolved(options)
    if setup.kv.needs_scheduler is None:
        drive = Drive(setup, trace, rng)
        drive.one_by_one()
        drive.all_together()


def _serve(trace: Trace, options: dict[str, Any]) -> int:
    """Serve a trace, with a user's rules also compiled; return the number of finished requests."""
    result = checked(trace, options)
    if isinstance(_resolved(options).kv, OwnManager):
        check_compiled(trace, options, result)
    return int((result.requests["finish_reason"] == FinishReason.FINISHED).sum())


def _resolved(options: dict[str, Any]) -> Setup:
    return resolve(Config.build(**options))


def _schedulers(options: dict[str, Any]) -> list[str]:
    default = _resolved(options).scheduler  # raises for wrong options
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


def _limits(rng: np.random.Generator, number: int) -> dict[str, Any]:
    """Draw options that every scheduler has; the first runs have pools of 1 and of 256 blocks."""
    num_blocks = int(2 ** rng.uniform(0, 8))
    return {
        "num_gpu_blocks_override": {0: 1, 1: 256}.get(number, num_blocks),
        "max_model_len": int(rng.choice([16, 40, MAX_MODEL_LEN])) if number > 1 else MAX_MODEL_LEN,
        "block_size": int(rng.choice([4, 16])),
        "watermark": float(rng.choice([0.0, 0.0, 0.2])),
        "num_lookahead_tokens": int(rng.choice([0, 0, 3])),
        "scheduling_policy": str(rng.choice(["fcfs", "priority"])),
    }


def _switches(rng: np.random.Generator, setup: Setup) -> dict[str, Any]:
    """Draw options that only some schedulers have."""
    kind = setup.scheduler_type
    drawn: dict[str, Any] = {}
    if not kind.whole_prompts:
        fewest = max(setup.scheduler_config.max_num_seqs, setup.kv_config.block_size)
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
