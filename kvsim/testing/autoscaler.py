"""A check of an autoscaler, for authors of autoscalers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from kvsim.fleet.scaling.autoscaler import AUTOSCALERS, Load, PoolLoad, make_autoscaler
from kvsim.fleet.scaling.traffic import Traffic
from kvsim.testing.serving import Run, check_runs, checked, pool_of_any_size, random_trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.fleet.scaling.autoscaler import Autoscaler

#: Decisions of one run.
NUM_DECISIONS = 30


def check_autoscaler(
    autoscaler: str | Callable[..., Autoscaler],
    *,
    num_runs: int = 20,
    seed: int = 0,
    **options: Any,
) -> None:
    """Check an autoscaler on random loads, and on random small traces.

    It must return a whole number of replicas for any load, also if no replica is ready or busy. A
    second instance must return the same numbers for the same loads. The pool must never exceed its
    maximum, and every request must be served. :mod:`kvsim.testing` has the parameters.

    Examples
    --------
    >>> from kvsim.testing import check_autoscaler
    >>> check_autoscaler("hpa+target=2", num_runs=2)
    """
    check_runs(AUTOSCALERS, autoscaler, _cold_start, _check, num_runs, seed, options)


def _cold_start(rng: np.random.Generator, number: int) -> dict[str, Any]:
    return pool_of_any_size(rng, number) | {"cold_start": float(rng.choice([0.0, 0.05, 1.0]))}


def _check(run: Run) -> None:
    pools = list(_draw_pools(run.rng))
    scalers = make_autoscaler(run.name), make_autoscaler(run.name)
    first, second = ([_ask(scaler, pool) for pool in pools] for scaler in scalers)
    for pool, one, other in zip(pools, first, second, strict=True):
        if one != other:
            _fail(
                pool, f"it wants {one} replicas, and a second instance {other} for the same loads"
            )
    most = int(run.rng.integers(1, 5))
    name = f"{run.name}+max={most}+interval={run.rng.choice([0.02, 0.2])}"
    result = checked(random_trace(run.rng, max_requests=16), run.options | {"autoscaler": name})
    peak = result.summary["scaling"]["peak_replicas"]
    if peak > most:
        raise AssertionError(f"it has {peak} replicas at once, at most {most} are allowed")


def _draw_pools(rng: np.random.Generator) -> list[PoolLoad]:
    """Draw the loads of a pool over time: few or many replicas, idle, busy or short of memory."""
    pools, now, role = [], 0.0, str(rng.choice(["mixed", "mixed", "prefill", "decode"]))
    for _ in range(NUM_DECISIONS):
        now += float(rng.choice([0.5, 15.0, 60.0]))
        ready = [_draw_load(rng, replica) for replica in range(int(rng.integers(0, 5)))]
        num_sent, prompt, output = (float(n) for n in rng.integers(0, 500, 3))
        sent = Traffic(num_sent, prompt, output, float(rng.random()))
        pool = PoolLoad(
            now=now,
            ready=ready,
            num_starting=int(rng.integers(0 if ready else 1, 3)),
            num_unplaced=0 if ready else int(rng.integers(0, 9)),
            num_kv_tokens=4096,
            block_size=16,
            prefill_rate=5000.0,
            step_time=_step_time,
            max_num_seqs=64,
            traffic=lambda seconds, sent=sent: sent,  # type: ignore[misc]
            max_model_len=2048,
            role=role,  # type: ignore[arg-type]
        )
        pools.append(pool)
    return pools


def _step_time(num_requests: int, num_tokens: int) -> float:
    return 0.01 + 1e-4 * num_requests + 1e-7 * num_tokens


def _draw_load(rng: np.random.Generator, replica: int) -> Load:
    running, waiting = (int(n) * int(rng.integers(0, 2)) for n in rng.integers(1, 40, 2))
    prompt = int(rng.integers(1, 1000)) if running + waiting else 0
    usage = float(rng.random()) if running else 0.0
    return Load(waiting, running, usage, waiting * prompt, float(prompt), replica)


def _ask(scaler: Autoscaler, pool: PoolLoad) -> int:
    scaler.look(pool)
    wanted = scaler.desired(pool)
    if not isinstance(wanted, int | np.integer):
        _fail(pool, f"it wants {wanted!r} replicas, must be a whole number")
    return int(wanted)


def _fail(pool: PoolLoad, what: str) -> NoReturn:
    waiting, running = (int(pool.total(metric)) for metric in ("waiting", "running"))
    raise AssertionError(
        f"at {pool.now:g} s, with {len(pool.ready)} replicas ready and {pool.num_starting} "
        f"starting, {running} requests running and {waiting} waiting: {what}"
    )
